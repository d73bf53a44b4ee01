"""Computes the target assignment of a consumer group from subscriptions, topics and an assignor.

A hash of the subscribed topics shows whether they changed since the last target assignment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from millstream.groups.consumer.assignor import (
    RANGE,
    UNIFORM,
    Assignment,
    Assignor,
    SubscribedMember,
    assign_ranges,
)
from millstream.groups.consumer.consumer_state import ConsumerState
from millstream.groups.consumer.uniform_assignor import assign_uniformly
from millstream.groups.subscription.topic_view import TopicView
from millstream.model.topic import TopicId

ASSIGNORS: Final[dict[str, Assignor]] = {UNIFORM: assign_uniformly, RANGE: assign_ranges}

_HASH_BYTES: Final = 8


def preferred_assignor(state: ConsumerState, offered: Sequence[str]) -> str:
    """Return the assignor that most members choose; the first one if no member chooses."""
    votes = Counter(member.metadata.server_assignor for member in state.members.values())
    return max(offered, key=lambda name: (votes[name], -offered.index(name)))


def metadata_hash(names: Iterable[str], topics: TopicView) -> int:
    """Return a hash of the ids and partition counts of the topics that exist; 0 if none does.
    Racks are left out, because no assignor uses them."""
    digest = blake2b(digest_size=_HASH_BYTES)
    is_empty = True
    for name in sorted(names):
        topic = topics.topic(name)
        if topic is not None:
            is_empty = False
            digest.update(f"{name} {topic.topic_id.hex()} {topic.partition_count}\n".encode())
    return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)


def make_targets(
    state: ConsumerState, assignor_name: str, topics: TopicView
) -> dict[str, Assignment]:
    """Return the target assignment of every member, based on the previous targets."""
    found = {name: topics.topic(name) for name in state.subscribed}
    ids = {name: topic.topic_id for name, topic in found.items() if topic is not None}
    partition_counts: dict[TopicId, int] = {
        topic.topic_id: topic.partition_count for topic in found.values() if topic is not None
    }
    candidates = {
        member_id: SubscribedMember(
            instance_id=member.instance_id,
            topics=frozenset(ids[name] for name in state.topics_of(member) if name in ids),
            previous=state.targets.get(member_id, {}),
        )
        for member_id, member in state.members.items()
    }
    return ASSIGNORS[assignor_name](candidates, partition_counts)
