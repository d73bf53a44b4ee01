"""Topics over the wire: created, expanded, deleted and described."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import RawClient, values_batch
from millstream.model.error import ErrorCode
from millstream.wire.messages.create_partitions import CreatePartitionsRequest
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from millstream.wire.messages.metadata import MetadataRequest

Topic = CreateTopicsRequest.Topic


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("topic")
    with BrokerProcess(folder, {"num.partitions": 3}) as process:
        yield process


def new(name: str, partitions: int = 1, factor: int = 1, **fields: Any) -> Topic:
    return Topic(name=name, num_partitions=partitions, replication_factor=factor, **fields)


def create(client: RawClient, *topics: Topic, version: int = 7, validate: bool = False) -> Any:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate)
    return client.call(request, version).topics


def metadata(client: RawClient, *names: str, version: int = 12, create: bool = False) -> Any:
    wanted = [MetadataRequest.Topic(name=name) for name in names]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
    return client.call(request, version).topics


# CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
def test_create_in_every_version(client: RawClient, version: int) -> None:
    (row,) = create(client, new(f"made-v{version}", 2), version=version)
    assert (row.error_code, row.name) == (0, f"made-v{version}")
    (described,) = metadata(client, f"made-v{version}")
    assert [each.partition_index for each in described.partitions] == [0, 1]
    assert {each.leader_id for each in described.partitions} == {1}


def test_a_topic_has_the_defaults_of_the_broker(client: RawClient) -> None:
    (row,) = create(client, new("defaulted", -1, -1))
    assert (row.error_code, row.num_partitions, row.replication_factor) == (0, 3, 1)


def test_the_response_has_the_configs_in_force(client: RawClient) -> None:
    config = Topic.Config(name="retention.ms", value="12345")
    (row,) = create(client, new("configured", configs=[config]))
    configs = {each.name: each.value for each in row.configs}
    assert configs["retention.ms"] == "12345"
    assert configs["cleanup.policy"] == "delete"


REFUSED = {
    "name with space": (new("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "empty name": (new(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "dots": (new(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "long name": (new("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "slash": (new("../../etc"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "no partitions": (new("zero", 0), ErrorCode.INVALID_PARTITIONS),
    "negative partitions": (new("minus", -2), ErrorCode.INVALID_PARTITIONS),
    "too many partitions": (new("many", 2_000_000_000), ErrorCode.INVALID_PARTITIONS),
    "replicas": (new("wide", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
    "no replicas": (new("thin", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
    "config name": (
        new("conf", configs=[Topic.Config(name="no.such.thing", value="1")]),
        ErrorCode.INVALID_CONFIG,
    ),
    "config value": (
        new("conf", configs=[Topic.Config(name="segment.bytes", value="many")]),
        ErrorCode.INVALID_CONFIG,
    ),
    "config null": (
        new("conf", configs=[Topic.Config(name="segment.bytes", value=None)]),
        ErrorCode.INVALID_CONFIG,
    ),
    "unknown broker": (
        new("placed", -1, -1, assignments=[Topic.Assignment(partition_index=0, broker_ids=[9])]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "gap": (
        new("placed", -1, -1, assignments=[Topic.Assignment(partition_index=1, broker_ids=[1])]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "no broker": (
        new("placed", -1, -1, assignments=[Topic.Assignment(partition_index=0, broker_ids=[])]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ),
    "both": (
        new("placed", 1, -1, assignments=[Topic.Assignment(partition_index=0, broker_ids=[1])]),
        ErrorCode.INVALID_REQUEST,
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_topics_are_rejected(client: RawClient, what: str) -> None:
    topic, expected = REFUSED[what]
    rows = create(client, topic, new(f"good {what}".replace(" ", "-")))
    assert ErrorCode(rows[0].error_code) == expected
    assert rows[0].error_message
    assert rows[1].error_code == 0


def test_an_existing_topic_is_not_created_again(client: RawClient) -> None:
    assert create(client, new("once"))[0].error_code == 0
    assert create(client, new("once"))[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    rows = create(client, new("twice"), new("twice"))
    assert {row.error_code for row in rows} == {ErrorCode.INVALID_REQUEST}
    assert metadata(client, "twice")[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_names_that_differ_in_dots_and_underscores_collide(client: RawClient) -> None:
    assert create(client, new("a.b"))[0].error_code == 0
    assert create(client, new("a_b"))[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_validation_creates_nothing(client: RawClient) -> None:
    assert create(client, new("checked"), validate=True)[0].error_code == 0
    assert metadata(client, "checked")[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_replicas_may_be_assigned(client: RawClient) -> None:
    assignments = [Topic.Assignment(partition_index=n, broker_ids=[1]) for n in (1, 0)]
    assert create(client, new("placed-well", -1, -1, assignments=assignments))[0].error_code == 0
    assert len(metadata(client, "placed-well")[0].partitions) == 2


# CreatePartitions


def grow(client: RawClient, name: str, count: int, **fields: Any) -> int:
    wanted = CreatePartitionsRequest.Topic(name=name, count=count, **fields)
    return int(client.call(CreatePartitionsRequest(topics=[wanted])).results[0].error_code)


def test_partitions_are_added_and_usable(client: RawClient) -> None:
    client.create_topic("growing")
    assert grow(client, "growing", 4) == 0
    assert len(metadata(client, "growing")[0].partitions) == 4
    assert client.produce("growing", values_batch(b"a"), 3).base_offset == 0


def test_the_partition_count_cannot_shrink(client: RawClient) -> None:
    client.create_topic("fixed", 3)
    for count in (3, 2, 0, -1, 2_000_000_000):
        assert grow(client, "fixed", count) == ErrorCode.INVALID_PARTITIONS
    assert grow(client, "nowhere", 5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assignment = CreatePartitionsRequest.Topic.Assignment
    code = grow(client, "fixed", 5, assignments=[assignment(broker_ids=[1])])
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    code = grow(client, "fixed", 4, assignments=[assignment(broker_ids=[8])])
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(client, "fixed", 4, assignments=[assignment(broker_ids=[1])]) == 0


# DeleteTopics


def test_delete_by_name_and_by_id(client: RawClient) -> None:
    client.create_topic("gone-by-name")
    topic_id = client.create_topic("gone-by-id")
    by_name = DeleteTopicsRequest.Topic(name="gone-by-name")
    by_id = DeleteTopicsRequest.Topic(name=None, topic_id=topic_id)
    rows = client.call(DeleteTopicsRequest(topics=[by_name, by_id])).responses
    assert [(row.error_code, row.name) for row in rows] == [(0, "gone-by-name"), (0, "gone-by-id")]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {row.error_code for row in metadata(client, "gone-by-name", "gone-by-id")} == {unknown}
    rows = client.call(DeleteTopicsRequest(topics=[by_name, by_id])).responses
    assert [row.error_code for row in rows] == [unknown, ErrorCode.UNKNOWN_TOPIC_ID]


def test_a_recreated_topic_is_empty(client: RawClient) -> None:
    for _ in range(3):
        client.create_topic("phoenix")
        assert client.produce("phoenix", values_batch(b"a")).base_offset == 0
        client.call(DeleteTopicsRequest(topic_names=["phoenix"]), 5)


# Metadata


@pytest.mark.parametrize("version", range(14))
def test_metadata_in_every_version(broker: BrokerProcess, client: RawClient, version: int) -> None:
    if metadata(client, "described")[0].error_code:
        client.create_topic("described", 2)
    wanted = [MetadataRequest.Topic(name="described")]
    response = client.call(MetadataRequest(topics=wanted), version)
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port) == (1, broker.host, broker.port)
    (topic,) = response.topics
    assert (topic.error_code, topic.name, len(topic.partitions)) == (0, "described", 2)
    assert topic.partitions[0].isr_nodes == [1]
    everything = MetadataRequest(topics=None if version else [])
    assert "described" in {each.name for each in client.call(everything, version).topics}


def test_metadata_by_id(client: RawClient) -> None:
    topic_id = client.create_topic("by-id")
    request = MetadataRequest(topics=[MetadataRequest.Topic(topic_id=topic_id)])
    (row,) = client.call(request, 12).topics
    assert (row.error_code, row.name) == (0, "by-id")
    request = MetadataRequest(topics=[MetadataRequest.Topic(topic_id=b"\x09" * 16)])
    assert client.call(request, 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_topics_are_auto_created_only_if_the_client_allows_it(client: RawClient) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert metadata(client, "wished-for")[0].error_code == unknown
    metadata(client, "wished-for", create=True)
    (row,) = metadata(client, "wished-for")
    assert (row.error_code, len(row.partitions)) == (0, 3)
    (row,) = metadata(client, "bad name", create=True)
    assert row.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


# DescribeTopicPartitions


def test_partitions_are_described_in_pages(client: RawClient) -> None:
    client.create_topic("page-a", 5)
    client.create_topic("page-b", 2)
    wanted = [DescribeTopicPartitionsRequest.Topic(name=f"page-{c}") for c in "bca"]
    seen: list[tuple[str, int, list[int]]] = []
    cursor = None
    for _ in range(10):
        response = client.call(
            DescribeTopicPartitionsRequest(topics=wanted, response_partition_limit=3, cursor=cursor)
        )
        numbers = [len(topic.partitions) for topic in response.topics]
        assert sum(numbers) <= 3
        seen += [
            (topic.name, topic.error_code, [each.partition_index for each in topic.partitions])
            for topic in response.topics
        ]
        if response.next_cursor is None:
            break
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=response.next_cursor.topic_name,
            partition_index=response.next_cursor.partition_index,
        )
    numbers_of: dict[str, list[int]] = {}
    for name, _, numbers in seen:
        numbers_of.setdefault(name, []).extend(numbers)
    assert numbers_of == {"page-a": [0, 1, 2, 3, 4], "page-b": [0, 1], "page-c": []}
    codes = {name: code for name, code, _ in seen}
    assert codes["page-c"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes["page-a"] == codes["page-b"] == 0
