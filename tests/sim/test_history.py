"""The checker finds what it is there to find."""

from __future__ import annotations

from sim.history import Acknowledged, PartitionHistory, Seen, Value, check_partition

A0, A1, B0 = Value(1, 0), Value(1, 1), Value(2, 0)


def _history(*values: Value) -> PartitionHistory:
    """All acknowledged, all seen."""
    records = [Seen(offset, value) for offset, value in enumerate(values)]
    return PartitionHistory(
        acknowledged=[Acknowledged(record.value, record.offset) for record in records],
        seen={0: list(records)},
        final=records,
    )


def test_nothing_is_wrong_with_a_good_history() -> None:
    assert check_partition(_history(A0, B0, A1)) == []


def test_what_was_never_acknowledged_may_be_there_or_not() -> None:
    history = _history(A0, A1)
    history.acknowledged.pop()
    assert check_partition(history) == []


def test_lost() -> None:
    history = _history(A0, A1)
    history.final.pop()
    history.seen.clear()
    (found,) = check_partition(history)
    assert "was acknowledged at 1, where None is now" in found


def test_twice() -> None:
    history = _history(A0, A1)
    history.final.append(Seen(2, A1))
    (found,) = check_partition(history)
    assert "comes after number 1" in found


def test_out_of_order() -> None:
    history = _history(A1, A0)
    (found,) = check_partition(history)
    assert "comes after number 1" in found


def test_gap() -> None:
    history = _history(A0)
    history.final.append(Seen(2, A1))
    (found,) = check_partition(history)
    assert "not a sequence" in found


def test_seen_but_not_kept() -> None:
    history = _history(A0, A1)
    history.acknowledged.pop()
    history.final[1] = Seen(1, B0)
    (found,) = check_partition(history)
    assert "consumer 0: saw" in found


def test_skipped() -> None:
    history = _history(A0, B0, A1)
    del history.seen[0][1]
    (found,) = check_partition(history)
    assert "saw 2 where 1 was next" in found
