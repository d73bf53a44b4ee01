from __future__ import annotations

from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.timer import TimerHeap

_K = TypeVar("_K")

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 20), st.just(0)),
    )
)


def pop_all(heap: TimerHeap[_K], now_ms: int) -> list[_K]:
    found: list[_K] = []
    while (key := heap.pop_due(now_ms)) is not None:
        found.append(key)
    return found


@given(_steps)
def test_timers_fire_once_at_the_last_time_they_were_set_to(
    steps: list[tuple[str, int, int]],
) -> None:
    heap: TimerHeap[int] = TimerHeap()
    expected: dict[int, int] = {}
    now_ms = 0
    for what, number, more in steps:
        if what == "set":
            heap.set(number, now_ms + more)
            expected[number] = now_ms + more
        elif what == "cancel":
            heap.cancel(number)
            expected.pop(number, None)
        else:
            now_ms += number
            due = {key for key, at in expected.items() if at <= now_ms}
            assert set(pop_all(heap, now_ms)) == due
            expected = {key: at for key, at in expected.items() if key not in due}
        assert len(heap) == len(expected)
        next_ms = heap.next_ms()
        assert not expected or (next_ms is not None and next_ms <= min(expected.values()))


def test_cancelled_timers_are_removed_from_the_heap() -> None:
    heap: TimerHeap[int] = TimerHeap()
    for number in range(100_000):
        heap.set(number, 10**9)
        heap.cancel(number)
    assert len(heap._heap) < 5000
    heap.set(1, 5)
    heap.cancel_where(lambda key: key == 1)
    assert heap.pop_due(10) is None


def test_a_timer_moved_or_cancelled_by_the_one_before_it_is_not_due() -> None:
    heap: TimerHeap[str] = TimerHeap()
    for number, key in enumerate(("first", "moved", "cancelled", "last")):
        heap.set(key, number)
    assert heap.pop_due(100) == "first"
    heap.set("moved", 200)
    heap.cancel("cancelled")
    assert pop_all(heap, 100) == ["last"]
    assert "moved" in heap
    assert pop_all(heap, 200) == ["moved"]
