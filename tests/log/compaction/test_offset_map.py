from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.log.compaction.offset_map import SLOT_BYTES, OffsetMap, slots_for


def test_the_latest_offset_put_is_the_one_found() -> None:
    known = OffsetMap(11)
    assert known.get(b"a") == -1
    assert known.put(b"a", 0)
    assert known.get(b"a") == 0
    assert known.put(b"a", 7)
    assert known.put(b"", 9)
    assert (known.get(b"a"), known.get(b""), known.get(b"b")) == (7, 9, -1)
    assert known.size == 2


def test_a_full_map_rejects_new_keys_and_updates_known_ones() -> None:
    known = OffsetMap(11, load_factor=0.5)
    keys = [b"%d" % number for number in range(known.capacity)]
    assert known.capacity == 5
    assert all(known.put(key, 1) for key in keys)
    assert known.is_full
    assert not known.put(b"one more", 2)
    assert known.get(b"one more") == -1
    assert known.put(keys[0], 3)
    assert known.get(keys[0]) == 3


def test_searching_ends_even_when_filled_to_the_brim() -> None:
    known = OffsetMap(3, load_factor=1.0)
    assert known.put(b"a", 1)
    assert known.put(b"b", 2)
    assert not known.put(b"c", 3)
    assert known.get(b"c") == -1


def test_offsets_up_to_the_largest_fit() -> None:
    known = OffsetMap(3)
    known.put(b"a", 2**63 - 1)
    assert known.get(b"a") == 2**63 - 1


@pytest.mark.parametrize("keys_max", [0, 1, 2, 3, 10, 1000, 4096, 5000, 100_000, 1_000_000])
def test_a_map_has_room_for_the_keys_it_was_made_for(keys_max: int) -> None:
    known = OffsetMap(slots_for(keys_max, 1 << 30, 0.9))
    assert known.capacity >= keys_max
    assert known.memory_bytes <= 4096 * SLOT_BYTES


def test_a_map_grows_with_its_keys_and_loses_none() -> None:
    known = OffsetMap(20_000)
    before = known.memory_bytes
    keys = [b"%d" % number for number in range(known.capacity)]
    for offset, key in enumerate(keys):
        assert known.put(key, offset)
    assert known.memory_bytes > 3 * before
    assert [known.get(key) for key in keys] == list(range(len(keys)))
    assert not known.put(b"one more", 1)


def test_a_map_stays_within_its_buffer_even_while_it_grows() -> None:
    buffer_bytes = 1 << 18
    known = OffsetMap(slots_for(10**12, buffer_bytes, 0.9))
    sizes = [known.memory_bytes]
    number = 0
    while known.put(b"%d" % number, number):
        number += 1
        if known.memory_bytes != sizes[-1]:
            sizes.append(known.memory_bytes)
    assert len(sizes) > 1
    assert sizes[-1] + sizes[-2] <= buffer_bytes
    assert known.size == known.capacity > 0.7 * buffer_bytes / SLOT_BYTES


@pytest.mark.parametrize(("slots", "load_factor"), [(2, 0.9), (10, 0.0), (10, 1.5)])
def test_a_map_that_cannot_work_is_rejected(slots: int, load_factor: float) -> None:
    with pytest.raises(ValueError, match="cannot work"):
        OffsetMap(slots, load_factor)


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 2**62))), st.integers(3, 64))
def test_it_behaves_as_a_bounded_dict(puts: list[tuple[bytes, int]], slots: int) -> None:
    known = OffsetMap(slots, 0.9)
    model: dict[bytes, int] = {}
    for key, offset in puts:
        has_room = key in model or len(model) < known.capacity
        assert known.put(key, offset) == has_room
        if has_room:
            model[key] = offset
    assert known.size == len(model)
    for key, _ in puts:
        assert known.get(key) == model.get(key, -1)
