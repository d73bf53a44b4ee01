from __future__ import annotations

import datetime as dt

import pytest

from millstream.client import Partition, UsageError
from millstream.client.admin.offset_reset import ResetTarget, plan_changes, target_of

ZERO, ONE = Partition("t", 0), Partition("t", 1)
RANGES = {ONE: (0, 8), ZERO: (10, 20)}


def new_offsets(target: ResetTarget, committed: dict[Partition, int]) -> list[int]:
    times = {ZERO: 15, ONE: -1}
    return [each.new for each in plan_changes(target, RANGES, committed, times)]


def test_targets() -> None:
    assert target_of("latest", None, None) == ResetTarget(end="latest")
    assert target_of(0, None, None) == ResetTarget(offset=0)
    assert target_of(None, None, -5) == ResetTarget(shift=-5)
    assert target_of({ZERO: 4}, None, None) == ResetTarget(offsets={ZERO: 4})
    moment = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
    assert target_of(moment, None, None).time_ms == int(moment.timestamp() * 1000)
    ago = target_of(None, dt.timedelta(days=1), None).time_ms
    seconds = target_of(None, 86_400.0, None).time_ms
    assert ago is not None
    assert seconds is not None
    assert 0 <= seconds - ago < 60_000


@pytest.mark.parametrize(
    ("to", "duration", "shift"),
    [
        (None, None, None),
        ("latest", 1.0, None),
        ("soon", None, None),
        (-1, None, None),
        (True, None, None),
        (None, -1.0, None),
        (dt.datetime(2026, 1, 31), None, None),  # noqa: DTZ001
    ],
)
def test_wrong_targets(to: object, duration: float | None, shift: int | None) -> None:
    with pytest.raises(UsageError):
        target_of(to, duration, shift)  # type: ignore[arg-type]


def test_new_offsets_lie_within_their_partitions() -> None:
    committed = {ZERO: 12, ONE: 3}
    assert new_offsets(ResetTarget(end="earliest"), committed) == [10, 0]
    assert new_offsets(ResetTarget(end="latest"), committed) == [20, 8]
    assert new_offsets(ResetTarget(offset=9), committed) == [10, 8]
    assert new_offsets(ResetTarget(shift=-5), committed) == [10, 0]
    assert new_offsets(ResetTarget(time_ms=1), committed) == [15, 8]
    assert new_offsets(ResetTarget(offsets={ZERO: 11, ONE: 99}), committed) == [11, 8]


def test_a_change_keeps_the_requested_and_the_current_offset() -> None:
    zero, one = plan_changes(ResetTarget(offset=12), RANGES, {ZERO: 12}, {})
    assert (zero.current, zero.difference, zero.is_changed) == (12, 0, False)
    assert (one.current, one.requested, one.new, one.difference) == (None, 12, 8, None)
    assert one.is_changed


def test_a_partition_without_an_offset() -> None:
    with pytest.raises(UsageError, match="t-1 has no committed offset"):
        new_offsets(ResetTarget(shift=1), {ZERO: 12})
    with pytest.raises(UsageError, match="no offset for t-1"):
        new_offsets(ResetTarget(offsets={ZERO: 12}), {})
