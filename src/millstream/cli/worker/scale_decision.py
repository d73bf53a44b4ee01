"""How many workers a group needs, with hysteresis. Pure.

    needed = (records that arrive per second + lag / catch-up time) / records per second of a worker

The arrival rate and the rate of a worker are measured between two observations. A worker's rate is
measured only while the group has lag, because workers that wait for messages say nothing about
their speed. Before the first measurement the result is the current number of workers, and at least
one if there is lag.

Hysteresis: more workers are wanted at once, fewer only after the cool-down: the result is the
highest need of that time. So a short pause does not stop workers that are needed again soon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import msgspec

#: The share of a new measurement in the rate of a worker.
_SMOOTHING: Final = 0.3


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """What the caller asks for. `rate` is that of one worker; None: it is measured."""

    catch_up_s: float = 60.0
    cool_down_s: float = 300.0
    workers_min: int = 1
    workers_max: int | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class GroupObservation:
    """The group at one time. `ends` and `committed` are sums over all partitions."""

    at: float
    ends: int
    committed: int
    lag: int
    members: int
    partitions: int


class ScaleState(msgspec.Struct):
    """What is remembered between two decisions."""

    at: float | None = None
    ends: int = 0
    committed: int = 0
    lag: int = 0
    #: Records per second of one worker.
    rate: float | None = None
    #: The need at each time within the cool-down.
    needs: list[tuple[float, int]] = msgspec.field(default_factory=list)


class ScaleDecision(msgspec.Struct, frozen=True):
    """The number of workers, and the figures behind it. `needed` ignores the cool-down."""

    workers: int
    needed: int
    members: int
    lag: int
    rate: float | None
    arrival_rate: float | None


def decide(policy: ScalePolicy, seen: GroupObservation, state: ScaleState) -> ScaleDecision:
    """Return the number of workers, and update the state."""
    arrival_rate = _measure(seen, state)
    rate = state.rate if policy.rate is None else policy.rate
    needed = _needed(policy, seen, rate, arrival_rate or 0.0)
    since = seen.at - policy.cool_down_s
    state.needs = [each for each in state.needs if since < each[0] <= seen.at]
    state.needs.append((seen.at, needed))
    workers = max(need for _, need in state.needs)
    state.at, state.ends, state.committed = seen.at, seen.ends, seen.committed
    state.lag = seen.lag
    return ScaleDecision(workers, needed, seen.members, seen.lag, rate, arrival_rate)


def _measure(seen: GroupObservation, state: ScaleState) -> float | None:
    """Update the rate of a worker. Return the arrival rate, None without a measurement."""
    if state.at is None or seen.at <= state.at:
        return None
    seconds = seen.at - state.at
    arrived, processed = seen.ends - state.ends, seen.committed - state.committed
    if arrived < 0 or processed < 0:
        # A topic was deleted, or the group's offsets were reset.
        return None
    if seen.members and processed and state.lag and seen.lag:
        rate = processed / seconds / seen.members
        before = rate if state.rate is None else state.rate
        state.rate = before + _SMOOTHING * (rate - before)
    return arrived / seconds


def _needed(
    policy: ScalePolicy, seen: GroupObservation, rate: float | None, arrival_rate: float
) -> int:
    if not rate:
        wanted = max(seen.members, min(1, seen.lag))
    else:
        wanted = math.ceil((arrival_rate + seen.lag / policy.catch_up_s) / rate)
    limit = seen.partitions if policy.workers_max is None else policy.workers_max
    return max(policy.workers_min, min(wanted, limit))
