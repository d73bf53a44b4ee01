"""Plans of topic changes: what is written, and the error code of each rejected change."""

from __future__ import annotations

import random

import pytest

from millstream.metadata import topic_change
from millstream.metadata.cluster_record import encode_broker
from millstream.metadata.image import (
    EMPTY_IMAGE,
    BrokerRecord,
    ClusterImage,
    PartitionRecord,
    apply,
)
from millstream.metadata.store.port import Compare, Delete, Put, WatchEvent
from millstream.metadata.topic_change import NewPartitions, NewTopic, Plan
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map

TOPIC_ID = bytes(range(16))


def cluster(*brokers: int) -> ClusterImage:
    value = encode_broker(BrokerRecord(node_id=0, endpoints=()))
    return apply(EMPTY_IMAGE, [WatchEvent(f"brokers/{n}", value, 1) for n in brokers], 1)[0]


def create(image: ClusterImage, new: NewTopic, partitions_max: int = 100) -> Plan:
    return topic_change.create_topic(image, new, TOPIC_ID, TopicConfig(), partitions_max)


def after(image: ClusterImage, plan: Plan) -> ClusterImage:
    revision = image.revision + 1
    events = [
        WatchEvent(change.key, change.value if isinstance(change, Put) else None, revision)
        for change in plan.changes
    ]
    return apply(image, events, revision)[0]


def check_refused(code: ErrorCode, image: ClusterImage, new: NewTopic) -> None:
    with pytest.raises(BrokerError) as raised:
        create(image, new)
    assert raised.value.code is code
    assert raised.value.message


def test_a_created_topic_matches_its_plan() -> None:
    image = cluster(1, 2)
    plan = create(image, NewTopic("a", [[2, 1], [1, 2]], {"segment.bytes": "100"}))
    assert plan.compares == [Compare("topics/a", 0)]
    assert plan.changes[-1].key == "topics/a"
    topic = after(image, plan).topics["a"]
    assert topic.partitions == plan.topic.partitions
    assert topic.partitions[0] == PartitionRecord(
        replicas=(2, 1), leader=2, leader_epoch=0, isr=(2, 1)
    )
    assert topic.configs == Map({"segment.bytes": "100"})
    assert topic.topic_id == TOPIC_ID


def test_replicas_on_dead_brokers_are_out_of_sync() -> None:
    plan = create(cluster(2), NewTopic("a", [[1, 2]]))
    assert plan.topic.partitions[0].isr == (2,)
    assert plan.topic.partitions[0].leader == 2


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("a/b", [[1]]), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a", []), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("a", [[1]] * 101), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("a", [[]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", [[1, 1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", [[-1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", [[1], [1, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", [[9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", [[1]], {"nonsense": "1"}), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_creations_are_rejected(new: NewTopic, code: ErrorCode) -> None:
    check_refused(code, cluster(1, 2), new)


def test_an_existing_name_is_rejected() -> None:
    image = cluster(1)
    image = after(image, create(image, NewTopic("a", [[1]])))
    check_refused(ErrorCode.TOPIC_ALREADY_EXISTS, image, NewTopic("a", [[1]]))


def test_adding_partitions_changes_the_topic_key() -> None:
    image = cluster(1)
    image = after(image, create(image, NewTopic("a", [[1]], {"segment.ms": "5"})))
    plan = topic_change.create_partitions(image, NewPartitions("a", 3, [[1], [1]]), 100)
    assert plan.compares == [Compare("topics/a", 2)]
    grown = after(image, plan).topics["a"]
    assert len(grown.partitions) == 3
    assert grown.revision == 3
    assert dict(grown.configs) == {"segment.ms": "5"}


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewPartitions("b", 2, [[1]]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NewPartitions("a", 1, []), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("a", 0, []), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("a", 200, [[1]] * 199), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("a", 3, [[1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("a", 2, [[1, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_invalid_partition_counts_are_rejected(new: NewPartitions, code: ErrorCode) -> None:
    image = cluster(1, 2)
    image = after(image, create(image, NewTopic("a", [[1]])))
    with pytest.raises(BrokerError) as raised:
        topic_change.create_partitions(image, new, 100)
    assert raised.value.code is code


def test_deletion_by_name_and_by_id_deletes_every_key() -> None:
    image = cluster(1)
    image = after(image, create(image, NewTopic("a", [[1], [1]])))
    by_name = topic_change.delete_topic(image, "a")
    assert by_name == topic_change.delete_topic(image, TOPIC_ID)
    assert by_name.topic is image.topics["a"]
    assert all(isinstance(change, Delete) for change in by_name.changes)
    gone = after(image, by_name)
    assert not gone.topics
    assert not gone.waiting
    for wanted, code in [
        ("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (b"b" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
    ]:
        with pytest.raises(BrokerError) as raised:
            topic_change.delete_topic(image, wanted)
        assert raised.value.code is code


def test_configs_are_checked_after_the_edit() -> None:
    image = cluster(1)
    image = after(image, create(image, NewTopic("a", [[1]])))
    plan = topic_change.alter_configs(
        image, "a", lambda old: old.set("segment.ms", "7"), TopicConfig()
    )
    assert dict(after(image, plan).topics["a"].configs) == {"segment.ms": "7"}
    with pytest.raises(BrokerError) as raised:
        topic_change.alter_configs(image, "a", lambda old: old.set("x", "7"), TopicConfig())
    assert raised.value.code is ErrorCode.INVALID_CONFIG


def test_topic_ids_are_not_reserved_and_do_not_start_with_a_dash() -> None:
    class Rigged(random.Random):
        given = iter([bytes(16), bytes(15) + b"\x01", b"\xfb" * 16, b"\x01" * 16])

        def randbytes(self, n: int) -> bytes:
            return next(self.given)

    assert topic_change.new_topic_id(Rigged()) == b"\x01" * 16
