from __future__ import annotations

import pytest

from millstream.replication.leader.catch_up_pace import CatchUpPace

MIB = 1024 * 1024
#: Longer than producers are watched at a time.
WINDOW_S = 0.3


def paced(produce_rate: float, *, rate_min: int = 64 * MIB) -> CatchUpPace:
    """At time `WINDOW_S`, with producers that wrote at this rate until then."""
    pace = CatchUpPace(rate_min, 0.0)
    pace.produced(int(produce_rate * WINDOW_S))
    return pace


def served(pace: CatchUpPace, seconds: float) -> int:
    """Bytes that a follower gets which asks again at once, from `WINDOW_S` on."""
    now, total = WINDOW_S, 0
    while now < WINDOW_S + seconds:
        size = min(pace.available_bytes(now), 10 * MIB)
        pace.sent(size, now)
        total += size
        now += max(pace.wait_s(now), 0.0001)
    return total


def test_nobody_writes_so_nobody_is_held_back() -> None:
    pace = paced(0)
    pace.sent(1 << 40, WINDOW_S)
    assert pace.available_bytes(WINDOW_S) > 1 << 30
    assert pace.wait_s(WINDOW_S) == 0


def test_at_first_somebody_may_well_write() -> None:
    pace = CatchUpPace(64 * MIB, 0.0)
    assert 0 < pace.available_bytes(0.0) <= MIB
    assert pace.available_bytes(WINDOW_S) > 1 << 30


def test_a_trickle_does_not_count() -> None:
    assert paced(MIB / 2).available_bytes(WINDOW_S) > 1 << 30


@pytest.mark.parametrize(
    ("produce_rate", "expected"),
    [(10 * MIB, 64 * MIB), (25 * MIB, 64 * MIB), (100 * MIB, 250 * MIB)],
)
def test_who_catches_up_gets_the_rate_or_more_than_producers_write(
    produce_rate: int, expected: int
) -> None:
    # Shorter than a window, in which producers would have to go on.
    total = served(paced(produce_rate), 0.2)
    assert total == pytest.approx(expected * 0.2, abs=MIB)


def test_pieces_are_small_and_nothing_is_saved_up() -> None:
    pace = paced(50 * MIB)
    room = pace.available_bytes(WINDOW_S + 0.1)
    assert 0 < room <= MIB
    pace.sent(room, WINDOW_S + 0.1)
    assert pace.available_bytes(WINDOW_S + 0.1) == 0
    rest_s = pace.wait_s(WINDOW_S + 0.1)
    assert 0 < rest_s < 0.1
    assert pace.available_bytes(WINDOW_S + 0.1 + rest_s) == room


def test_when_producers_end_the_rest_does() -> None:
    pace = paced(50 * MIB, rate_min=1)
    pace.sent(1 << 40, WINDOW_S)
    assert pace.available_bytes(WINDOW_S) == 0
    now = WINDOW_S
    for _ in range(40):
        now += WINDOW_S
        pace.available_bytes(now)
    assert pace.available_bytes(now) > 1 << 30
