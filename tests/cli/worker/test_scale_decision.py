"""How many workers a lag asks for."""

from __future__ import annotations

import pytest

from millstream.cli.worker.scale_decision import GroupObservation, ScalePolicy, ScaleState, decide


def seen(
    at: float, ends: int, committed: int, members: int = 1, partitions: int = 50
) -> GroupObservation:
    return GroupObservation(at, ends, committed, ends - committed, members, partitions)


def test_the_lag_is_divided_by_the_rate_and_the_catch_up_time() -> None:
    policy = ScalePolicy(catch_up_s=60, rate=10)
    for lag, workers in [(0, 1), (1, 1), (600, 1), (601, 2), (6000, 10), (600_000, 50)]:
        assert decide(policy, seen(0, lag, 0), ScaleState()).workers == workers
    assert decide(ScalePolicy(rate=10, workers_min=0), seen(0, 5, 5), ScaleState()).workers == 0
    limited = ScalePolicy(rate=10, workers_min=3, workers_max=7)
    assert decide(limited, seen(0, 600_000, 0), ScaleState()).workers == 7
    assert decide(limited, seen(0, 0, 0), ScaleState()).workers == 3


def test_rates_are_measured_between_two_observations() -> None:
    policy, state = ScalePolicy(catch_up_s=60), ScaleState()
    first = decide(policy, seen(0, 10_000, 0, members=2), state)
    # Nothing is known about rates yet: the number stays.
    assert (first.workers, first.rate, first.arrival_rate) == (2, None, None)
    second = decide(policy, seen(10, 12_000, 1000, members=2), state)
    assert (second.rate, second.arrival_rate) == (50.0, 200.0)
    # 200 a second arrive, and 11,000 in 60 s are 183.3 a second.
    assert second.needed == 8
    third = decide(policy, seen(20, 12_000, 3000, members=8), state)
    assert third.rate == pytest.approx(50 + 0.3 * (25 - 50))


def test_workers_that_wait_do_not_count_as_slow() -> None:
    policy, state = ScalePolicy(), ScaleState(at=0, ends=100, committed=50, lag=50, rate=40.0)
    decide(policy, seen(10, 110, 110), state)
    decide(policy, seen(20, 111, 110), state)
    assert state.rate == 40.0


def test_a_steady_arrival_needs_workers_without_lag() -> None:
    policy, state = ScalePolicy(cool_down_s=0, rate=10), ScaleState()
    assert decide(policy, seen(0, 0, 0), state).workers == 1
    assert decide(policy, seen(10, 1000, 1000), state).workers == 10


def test_fewer_workers_only_after_the_cool_down() -> None:
    policy, state = ScalePolicy(cool_down_s=300, rate=10), ScaleState()
    lags = {0: 6000, 60: 0, 120: 3000, 299: 0, 300: 0, 419: 0, 420: 0, 430: 12_000}
    workers = {}
    for at, lag in lags.items():
        # Nothing arrives between these: only the lag counts.
        state.at = None
        workers[at] = decide(policy, seen(at, lag, 0), state).workers
    assert workers == {0: 10, 60: 10, 120: 10, 299: 10, 300: 5, 419: 5, 420: 1, 430: 20}
    assert len(state.needs) <= 6


def test_offsets_that_were_reset_are_no_measurement() -> None:
    state = ScaleState(at=0, ends=1000, committed=900, lag=100, rate=5.0)
    decision = decide(ScalePolicy(), seen(10, 1000, 0), state)
    assert decision.arrival_rate is None
    assert decision.rate == 5.0
    assert decide(ScalePolicy(), seen(20, 10, 10), state).arrival_rate is None
