"""Plans changes of topics from an image. Pure.

Each function checks one request against an image and returns the transaction that applies it, or
raises `BrokerError` with the protocol's code. The catalog runs the transaction, and plans again
with a newer image if another change came first. The caller decides where replicas go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from millstream.env.random import Random
from millstream.metadata.cluster_record import (
    NO_CONFIGS,
    Configs,
    PartitionRecord,
    TopicRecord,
    encode_partition,
    encode_topic,
    partition_key,
    topic_key,
)
from millstream.metadata.image import ClusterImage
from millstream.metadata.store.port import Change, Compare, Delete, Put
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map
from millstream.model.topic import TopicId, format_topic_id, validate_topic_name

#: Returns the new overrides from the present ones; may be called again with newer ones.
Edit: TypeAlias = Callable[[Configs], Configs]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. `assignment[n]` are the replicas of partition n, the preferred one
    first."""

    name: str
    assignment: Sequence[Sequence[int]]
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """Partitions to add: `count` is the new total, `assignment` has the new partitions only."""

    name: str
    count: int
    assignment: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Plan:
    """A transaction, and the topic after it (for a deletion: before it)."""

    topic: TopicRecord
    compares: list[Compare]
    changes: list[Change]


def new_topic_id(random: Random) -> TopicId:
    """Return a random topic id. Kafka reserves ids 0 and 1; an id with a leading '-' would look
    like a command-line flag."""
    while True:
        topic_id = random.randbytes(16)
        if any(topic_id[:15]) and not format_topic_id(topic_id).startswith("-"):
            return topic_id


def collision_key(name: str) -> str:
    """Return a key that is equal for names which are the same in metrics; such topics collide."""
    return name.replace(".", "_")


def create_topic(
    image: ClusterImage,
    new: NewTopic,
    topic_id: TopicId,
    defaults: TopicConfig,
    partitions_max: int,
) -> Plan:
    validate_topic_name(new.name)
    if new.name in image.topics:
        raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {new.name} already exists")
    if not new.assignment:
        raise BrokerError(ErrorCode.INVALID_PARTITIONS, "a topic needs at least one partition")
    if len(new.assignment) > partitions_max:
        raise _too_many(len(new.assignment), partitions_max)
    TopicConfig.from_strings(new.configs, defaults)
    partitions = _place(image, new.assignment, len(new.assignment[0]))
    configs: Configs = Map(new.configs) if new.configs else NO_CONFIGS
    changes = [_put_partition(topic_id, n, placed) for n, placed in enumerate(partitions)]
    changes.append(Put(topic_key(new.name), encode_topic(topic_id, configs)))
    topic = TopicRecord(new.name, topic_id, partitions, configs)
    return Plan(topic, [Compare(topic_key(new.name), 0)], changes)


def create_partitions(image: ClusterImage, new: NewPartitions, partitions_max: int) -> Plan:
    topic = find_topic(image, new.name)
    present = len(topic.partitions)
    if new.count <= present:
        raise BrokerError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {new.name} has {present} partitions, which cannot become {new.count}: "
            "expected more than it has",
        )
    if new.count - present > partitions_max:
        raise _too_many(new.count - present, partitions_max)
    if len(new.assignment) != new.count - present:
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{new.count - present} partitions are to be added to topic {new.name}, but replicas "
            f"are given for {len(new.assignment)}",
        )
    placed = _place(image, new.assignment, len(topic.partitions[0].replicas))
    changes = [
        _put_partition(topic.topic_id, n, record) for n, record in enumerate(placed, start=present)
    ]
    # Put the topic's key again: a concurrent deletion then fails, and does not leave the new
    # partitions behind.
    changes.append(Put(topic_key(new.name), encode_topic(topic.topic_id, topic.configs)))
    grown = TopicRecord(new.name, topic.topic_id, topic.partitions + placed, topic.configs)
    return Plan(grown, [_unchanged(topic)], changes)


def delete_topic(image: ClusterImage, wanted: str | TopicId) -> Plan:
    topic = find_topic(image, wanted)
    changes: list[Change] = [Delete(topic_key(topic.name))]
    changes += (
        Delete(partition_key(topic.topic_id, number)) for number in range(len(topic.partitions))
    )
    return Plan(topic, [_unchanged(topic)], changes)


def alter_configs(image: ClusterImage, name: str, edit: Edit, defaults: TopicConfig) -> Plan:
    topic = find_topic(image, name)
    configs = edit(topic.configs)
    TopicConfig.from_strings(configs, defaults)
    changed = TopicRecord(name, topic.topic_id, topic.partitions, configs or NO_CONFIGS)
    put = Put(topic_key(name), encode_topic(topic.topic_id, configs))
    return Plan(changed, [_unchanged(topic)], [put])


def find_topic(image: ClusterImage, wanted: str | TopicId) -> TopicRecord:
    if isinstance(wanted, str):
        topic = image.topics.get(wanted)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise BrokerError(code, f"there is no topic {wanted[:249]!r}")
    else:
        topic = image.topic_by_id(wanted)
        if topic is None:
            text = format_topic_id(wanted)
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {text}")
    return topic


def _unchanged(topic: TopicRecord) -> Compare:
    return Compare(topic_key(topic.name), topic.revision)


def _put_partition(topic_id: TopicId, number: int, record: PartitionRecord) -> Change:
    return Put(partition_key(topic_id, number), encode_partition(record))


def _place(
    image: ClusterImage, assignment: Sequence[Sequence[int]], factor: int
) -> tuple[PartitionRecord, ...]:
    """Return the records of new partitions; the first live replica leads."""
    placed: dict[tuple[int, ...], PartitionRecord] = {}
    for replicas in map(tuple, assignment):
        if replicas not in placed:
            placed[replicas] = _place_one(image, replicas, factor)
    return tuple(placed[tuple(replicas)] for replicas in assignment)


def _place_one(image: ClusterImage, replicas: tuple[int, ...], factor: int) -> PartitionRecord:
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    if not replicas or len(set(replicas)) != len(replicas) or min(replicas) < 0:
        raise BrokerError(code, f"replicas {list(replicas)} are not a list of distinct broker ids")
    if len(replicas) != factor:
        raise BrokerError(
            code, f"partitions of one topic need equally many replicas: {len(replicas)}, {factor}"
        )
    alive = tuple(node_id for node_id in replicas if node_id in image.eligible)
    if not alive:
        raise BrokerError(code, f"none of the replicas {list(replicas)} is on a live broker")
    return PartitionRecord(
        replicas=replicas,
        leader=alive[0],
        leader_epoch=0,
        isr=alive,
        directories=tuple(
            (node_id, image.brokers[node_id].directory)
            for node_id in alive
            if image.brokers[node_id].directory
        ),
    )


def _too_many(count: int, count_max: int) -> BrokerError:
    return BrokerError(
        ErrorCode.INVALID_PARTITIONS,
        f"{count} partitions cannot be created at once: expected at most {count_max}",
    )
