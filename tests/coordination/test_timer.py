from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.timer import TimerHeap

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 20), st.just(0)),
    )
)


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
            assert set(heap.pop_due(now_ms, 100)) == due
            expected = {key: at for key, at in expected.items() if key not in due}
        assert len(heap) == len(expected)
        next_ms = heap.next_ms()
        assert not expected or (next_ms is not None and next_ms <= min(expected.values()))


def test_cancelled_timers_do_not_pile_up() -> None:
    heap: TimerHeap[int] = TimerHeap()
    for number in range(100_000):
        heap.set(number, 10**9)
        heap.cancel(number)
    assert len(heap._heap) < 5000
    heap.set(1, 5)
    heap.cancel_where(lambda key: key == 1)
    assert heap.pop_due(10, 10) == []


def test_no_more_than_asked_for_at_a_time() -> None:
    heap: TimerHeap[int] = TimerHeap()
    for number in range(10):
        heap.set(number, number)
    assert heap.pop_due(100, 4) == [0, 1, 2, 3]
    assert len(heap.pop_due(100, 100)) == 6
