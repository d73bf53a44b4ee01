from __future__ import annotations

import pytest

from millstream.replication.leader.catch_up_pace import CatchUpPace

MIB = 1024 * 1024
#: Longer than the window in which producers are measured.
WINDOW_S = 0.3


def paced(produce_rate: float, *, rate_min: int = 64 * MIB) -> CatchUpPace:
    """Return the pace at time `WINDOW_S`, after producers wrote at this rate."""
    pace = CatchUpPace(rate_min, 0.0)
    pace.produced(int(produce_rate * WINDOW_S))
    return pace


def served(pace: CatchUpPace, seconds: float) -> int:
    """Return the bytes that a follower gets from `WINDOW_S` on if it fetches without a pause."""
    now, total = WINDOW_S, 0
    while now < WINDOW_S + seconds:
        size = min(pace.available_bytes(now), 10 * MIB)
        pace.sent(size, now)
        total += size
        now += max(pace.wait_s(now), 0.0001)
    return total


def test_without_producers_followers_are_not_paced() -> None:
    pace = paced(0)
    pace.sent(1 << 40, WINDOW_S)
    assert pace.available_bytes(WINDOW_S) > 1 << 30
    assert pace.wait_s(WINDOW_S) == 0


def test_followers_are_paced_until_producers_were_measured() -> None:
    pace = CatchUpPace(64 * MIB, 0.0)
    assert 0 < pace.available_bytes(0.0) <= MIB
    assert pace.available_bytes(WINDOW_S) > 1 << 30


def test_a_low_produce_rate_is_ignored() -> None:
    assert paced(MIB / 2).available_bytes(WINDOW_S) > 1 << 30


@pytest.mark.parametrize(
    ("produce_rate", "expected"),
    [(10 * MIB, 64 * MIB), (25 * MIB, 64 * MIB), (100 * MIB, 250 * MIB)],
)
def test_a_follower_gets_the_minimum_rate_or_more_than_producers_write(
    produce_rate: int, expected: int
) -> None:
    # Shorter than a window: a longer time would need further writes of producers.
    total = served(paced(produce_rate), 0.2)
    assert total == pytest.approx(expected * 0.2, abs=MIB)


def test_portions_are_small_and_unused_rate_does_not_accumulate() -> None:
    pace = paced(50 * MIB)
    room = pace.available_bytes(WINDOW_S + 0.1)
    assert 0 < room <= MIB
    pace.sent(room, WINDOW_S + 0.1)
    assert pace.available_bytes(WINDOW_S + 0.1) == 0
    rest_s = pace.wait_s(WINDOW_S + 0.1)
    assert 0 < rest_s < 0.1
    assert pace.available_bytes(WINDOW_S + 0.1 + rest_s) == room


def test_pacing_ends_when_producers_stop() -> None:
    pace = paced(50 * MIB, rate_min=1)
    pace.sent(1 << 40, WINDOW_S)
    assert pace.available_bytes(WINDOW_S) == 0
    now = WINDOW_S
    for _ in range(40):
        now += WINDOW_S
        pace.available_bytes(now)
    assert pace.available_bytes(now) > 1 << 30
