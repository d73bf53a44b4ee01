"""The bounds and the top items of the heavy-hitter sketch."""

from __future__ import annotations

import doctest
from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.client.hot_keys import heavy_hitter
from millstream.client.hot_keys.heavy_hitter import HeavyHitters

streams = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=300)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams, st.integers(1, 12))
def test_the_bounds_hold(stream: list[tuple[int, int]], capacity: int) -> None:
    sketch: HeavyHitters[int] = HeavyHitters(capacity)
    true: Counter[int] = Counter()
    for item, weight in stream:
        sketch.add(item, weight)
        true[item] += weight
    assert sketch.total == true.total()
    assert len(sketch.top(100)) == min(len(true), capacity)
    assert sketch.error_max() * capacity <= sketch.total
    for item in range(31):
        bounds = sketch.bounds(item)
        assert bounds.at_least <= true[item] <= bounds.at_most
        assert bounds.at_most - bounds.at_least <= sketch.error_max()
        if true[item] * capacity > sketch.total:
            assert item in [hitter.item for hitter in sketch.top(capacity)]


def test_hot_items_are_found_among_many() -> None:
    random = Random(7)
    sketch: HeavyHitters[int] = HeavyHitters(100)
    true: Counter[int] = Counter()
    for _ in range(20_000):
        item = random.randrange(3) if random.random() < 0.3 else random.randrange(10, 10_000)
        sketch.add(item)
        true[item] += 1
    top = sketch.top(3)
    assert {hitter.item for hitter in top} == {0, 1, 2}
    assert [hitter.at_most for hitter in top] == sorted(
        (hitter.at_most for hitter in top), reverse=True
    )
    assert all(hitter.at_least > 0.8 * true[hitter.item] for hitter in top)


def test_wrong_use_raises() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        HeavyHitters(0)
    with pytest.raises(ValueError, match="must not be negative"):
        HeavyHitters[str](1).add("a", -1)


def test_the_example_runs() -> None:
    assert doctest.testmod(heavy_hitter).failed == 0
