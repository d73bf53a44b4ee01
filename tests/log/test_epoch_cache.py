from __future__ import annotations

from millstream.log.epoch_cache import EpochCache


def test_where_epochs_end() -> None:
    cache = EpochCache([(2, 10), (5, 20), (7, 35)])
    assert cache.end_offset(2, 50) == (2, 20)
    assert cache.end_offset(4, 50) == (2, 20)
    assert cache.end_offset(5, 50) == (5, 35)
    assert cache.end_offset(7, 50) == (7, 50)
    assert cache.end_offset(8, 50) == (-1, -1)
    assert cache.end_offset(1, 50) == (1, 10)
    assert cache.end_offset(-1, 50) == (-1, -1)
    assert EpochCache([]).end_offset(3, 50) == (-1, -1)


def test_epochs_are_assigned_in_order() -> None:
    cache = EpochCache([])
    cache.assign(1, 0)
    cache.assign(1, 5)
    cache.assign(0, 6)
    cache.assign(3, 10)
    assert cache.entries == [(1, 0), (3, 10)]
    cache.assign(4, 10)
    assert cache.entries == [(1, 0), (4, 10)]
    assert [cache.epoch_at(offset) for offset in (0, 9, 10, 99)] == [1, 1, 4, 4]


def test_epochs_are_truncated_at_both_ends() -> None:
    cache = EpochCache([(1, 0), (3, 10), (4, 20)])
    cache.truncate_from(20)
    assert cache.entries == [(1, 0), (3, 10)]
    cache.truncate_before(15)
    assert cache.entries == [(3, 15)]
    cache.truncate_before(15)
    assert cache.entries == [(3, 15)]
    cache.drop_above(2)
    assert cache.entries == []
