"""The settings of consumer groups."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.groups.consumer.assignor import RANGE, UNIFORM
from millstream.model.sentinel import INT32_MAX


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """Settings of consumer groups: the broker's, or those of a single group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    group_size_max: int = INT32_MAX
    #: The assignors that members may choose; the first is the default.
    assignors: tuple[str, ...] = (UNIFORM, RANGE)
    #: The least time between two resolutions of the group's topic patterns.
    pattern_refresh_ms: int = 10_000
    #: A group with at least this many members computes at most one target assignment per
    #: interval. Otherwise a thousand members that start together would cause a thousand.
    large_group_size: int = 100
    assignment_interval_ms: int = 1_000
