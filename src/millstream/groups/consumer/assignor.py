"""Server-side assignors: which member of a consumer group gets which partitions.

An assignor is a pure function of the members, with what each was meant to have before, and of the
partition counts of the topics that they subscribe to. Every partition of every topic that has a
subscriber goes to exactly one subscriber of it.

- `uniform` (in `uniform.py`) balances the number of partitions, and moves as few as that allows.
- `range` gives each member a stretch of every topic, so that partitions with the same number go to
  the same member as long as topics have equally many. It pays with movement when members change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from millstream.model.topic import TopicId

#: What one member gets; topics without a partition are left out.
Assignment: TypeAlias = dict[TopicId, frozenset[int]]


class SubscribedMember(NamedTuple):
    """A member, as assignors see it."""

    instance_id: str | None
    #: Only topics that exist.
    topics: frozenset[TopicId]
    #: What it was given the last time. May hold topics and partitions that are gone.
    previous: Mapping[TopicId, Collection[int]]


Assignor: TypeAlias = Callable[
    [Mapping[str, SubscribedMember], Mapping[TopicId, int]], dict[str, Assignment]
]


def assign_ranges(
    members: Mapping[str, SubscribedMember], partition_counts: Mapping[TopicId, int]
) -> dict[str, Assignment]:
    """The `range` assignor. Static members come first, by instance id: their ranges stay where
    they are when dynamic members come and go behind them."""
    order = sorted(members, key=lambda each: _range_order(each, members[each].instance_id))
    assignments: dict[str, Assignment] = {member_id: {} for member_id in order}
    subscribers: dict[TopicId, list[str]] = {}
    for member_id in order:
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    for topic_id in sorted(subscribers):
        quota, extra = divmod(partition_counts[topic_id], len(subscribers[topic_id]))
        start = 0
        for number, member_id in enumerate(subscribers[topic_id]):
            end = start + quota + (number < extra)
            if end > start:
                assignments[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return assignments


def _range_order(member_id: str, instance_id: str | None) -> tuple[bool, str]:
    return (True, member_id) if instance_id is None else (False, instance_id)


UNIFORM: Final = "uniform"
RANGE: Final = "range"
