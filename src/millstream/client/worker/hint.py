"""How many workers a group could do with, from how far it is behind. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from millstream.client.record import Partition


class Hint(NamedTuple):
    """For an autoscaler. `rate` is what this worker finishes a second, measured since it began."""

    lag: int
    rate: float
    workers: int


def lag_of(ends: Mapping[Partition, int], committed: Mapping[Partition, int]) -> int:
    """Records that the group has not committed yet; what has no commit counts from 0."""
    return sum(max(0, end - committed.get(each, 0)) for each, end in ends.items())


def hint_of(lag: int, rate: float, catch_up_s: float, workers_max: int) -> Hint:
    """So many workers of this rate would have caught up in `catch_up_s`: 0 if there is nothing to
    do, 1 while no rate is known, never more than can have a partition."""
    if lag == 0:
        return Hint(0, rate, 0)
    wanted = 1 if rate <= 0 else math.ceil(lag / (rate * catch_up_s))
    return Hint(lag, rate, max(1, min(wanted, workers_max)))
