"""The persistent map compared with a dict: changes, and older maps that stay unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model import map as map_module
from millstream.model.map import Map

#: Keys of which some share a bucket.
KEYS = st.integers(0, 40) | st.text(max_size=2)
#: A key and its new value; None deletes it.
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 3)), max_size=60)


@pytest.fixture(params=[2, 256])
def _bucket_items_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_module, "_BUCKET_ITEMS_MAX", request.param)


def check(found: Map[object, int], expected: dict[object, int]) -> None:
    assert dict(found.items()) == dict(found) == expected
    assert len(found) == len(list(found)) == len(expected)
    assert sorted(found.values()) == sorted(expected.values())
    assert set(found.keys()) == set(expected)
    assert bool(found) is bool(expected)
    for key in [*expected, "absent"]:
        assert (key in found) == (key in expected)
        assert found.get(key) == expected.get(key)
        assert found.get(key, "default") == expected.get(key, "default")


@pytest.mark.usefixtures("_bucket_items_max")
@given(rounds=st.lists(CHANGES, max_size=6))
def test_a_map_equals_a_dict_and_older_maps_stay_unchanged(
    rounds: list[list[tuple[object, int | None]]],
) -> None:
    present: Map[object, int] = Map()
    expected: dict[object, int] = {}
    past: list[tuple[Map[object, int], dict[object, int]]] = []
    for changes in rounds:
        past.append((present, dict(expected)))
        mutation = present.mutate()
        for key, value in changes:
            if value is None:
                assert mutation.pop(key, None) == expected.pop(key, None)
            else:
                mutation[key] = expected[key] = value
            assert len(mutation) == len(expected)
            assert mutation.get(key) == expected.get(key)
        present = mutation.finish()
        check(present, expected)
        assert present == Map(expected)
        assert hash(present) == hash(Map(expected))
    for before, was in past:
        check(before, was)


@pytest.mark.usefixtures("_bucket_items_max")
def test_single_changes() -> None:
    one = Map({"a": 1})
    two = one.set("b", 2)
    assert (dict(one), dict(two), dict(two.delete("a"))) == ({"a": 1}, {"a": 1, "b": 2}, {"b": 2})
    with pytest.raises(KeyError):
        one.delete("b")
    with pytest.raises(KeyError):
        one["b"]
    assert one != two
    assert one != {"a": 1}
    assert repr(one) == "Map({'a': 1})"


def test_a_mutation_without_changes_returns_the_same_map() -> None:
    some = Map({"a": 1})
    mutation = some.mutate()
    assert mutation.pop("b", None) is None
    assert mutation.finish() is some


def test_a_change_of_a_large_map_copies_one_bucket() -> None:
    many = Map({f"topic-{number}": number for number in range(100_000)})
    changed = many.set("topic-5", -1)
    shared = sum(a is b for a, b in zip(many._buckets, changed._buckets, strict=True))
    assert len(many._buckets) == 512
    assert shared == 511
    assert max(map(len, many._buckets)) < 400
