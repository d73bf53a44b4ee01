"""How many workers a group needs, computed from its lag. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from millstream.client.record import Partition


class Hint(NamedTuple):
    """For an autoscaler. `rate` is the number of messages that this worker finishes per second,
    measured since it started.
    """

    lag: int
    rate: float
    workers: int


def lag_of(ends: Mapping[Partition, int], committed: Mapping[Partition, int]) -> int:
    """Return the number of records that the group has not committed. Partitions without a commit
    count from 0.
    """
    return sum(max(0, end - committed.get(each, 0)) for each, end in ends.items())


def hint_of(lag: int, rate: float, catch_up_s: float, workers_max: int) -> Hint:
    """Return how many workers of this rate would catch up within `catch_up_s`.

    The result is 0 without lag, 1 while the rate is unknown, and at most `workers_max`.
    """
    if lag == 0:
        return Hint(0, rate, 0)
    wanted = 1 if rate <= 0 else math.ceil(lag / (rate * catch_up_s))
    return Hint(lag, rate, max(1, min(wanted, workers_max)))
