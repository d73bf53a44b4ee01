"""Server-side assignors, which assign partitions to the members of a consumer group.

An assignor is a pure function of the members, with their previous target assignments, and of the
partition counts of the subscribed topics. It assigns every partition of every topic that has a
subscriber to exactly one subscriber.

- `uniform` (in `uniform_assignor`) balances the number of partitions and moves as few as possible.
- `range` assigns each member a range of every topic. Partitions with the same number go to the same
  member if the topics have equally many partitions. More partitions move when members change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from millstream.model.topic import TopicId

#: The partitions of one member; topics without a partition are left out.
Assignment: TypeAlias = dict[TopicId, frozenset[int]]


class SubscribedMember(NamedTuple):
    """The input of an assignor for one member."""

    instance_id: str | None
    #: The subscribed topics that exist.
    topics: frozenset[TopicId]
    #: The previous target assignment. It may hold topics and partitions that no longer exist.
    previous: Mapping[TopicId, Collection[int]]


Assignor: TypeAlias = Callable[
    [Mapping[str, SubscribedMember], Mapping[TopicId, int]], dict[str, Assignment]
]


def assign_ranges(
    members: Mapping[str, SubscribedMember], partition_counts: Mapping[TopicId, int]
) -> dict[str, Assignment]:
    """Assign ranges of each topic. Static members come first, ordered by instance id: their ranges
    do not move when dynamic members join and leave."""
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
