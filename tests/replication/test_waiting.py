from __future__ import annotations

from millstream.model.failure import CallbackFailures
from millstream.replication.waiting import OffsetWaiters


def test_callbacks_fire_in_offset_order_once_their_offset_is_passed() -> None:
    waiters = OffsetWaiters(CallbackFailures(), "t-0")
    fired: list[str] = []
    waiters.add(5, lambda: fired.append("five"), None)
    waiters.add(3, lambda: fired.append("three"), None)
    waiters.add(5, lambda: fired.append("five again"), None)
    waiters.advance(2)
    assert fired == []
    waiters.advance(4)
    assert fired == ["three"]
    waiters.advance(5)
    assert fired == ["three", "five", "five again"]
    assert len(waiters) == 0


def test_fire_all_calls_no_callback_that_is_added_meanwhile() -> None:
    waiters = OffsetWaiters(CallbackFailures(), "t-0")
    fired: list[int] = []
    waiters.add(1, lambda: waiters.add(9, lambda: fired.append(9), None), None)
    waiters.add(2, lambda: fired.append(2), None)
    waiters.fire_all()
    assert fired == [2]
    assert len(waiters) == 1
