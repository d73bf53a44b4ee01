"""Reassignments and log directories over the wire, on three brokers in one process.

Broker 3 does not replicate, so a reassignment to it stays in progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from harness.in_process.server_set import ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import values_batch
from millstream.broker.handlers.elect_leaders import elect_uncleanly
from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.topic_change import NewTopic
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from millstream.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)

NODE, OTHER, SILENT = 1, 2, 3


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSet]:
    folder: Path = tmp_path_factory.mktemp("reassignment")
    with ServerSet(folder, 3) as running:
        running.run(running.services(SILENT).replicator.stop())
        for name in ("t", "u"):
            catalog = running.services(NODE).catalog
            running.run(catalog.create_topics([NewTopic(name, [[NODE], [NODE]])]))
        yield running


def alter(
    brokers: ServerSet,
    replicas: Sequence[int] | None,
    topic: str = "t",
    number: int = 0,
    *,
    may_resize: bool = True,
) -> ErrorCode:
    row = AlterPartitionReassignmentsRequest.Topic.Partition(
        partition_index=number, replicas=None if replicas is None else list(replicas)
    )
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=may_resize,
        topics=[AlterPartitionReassignmentsRequest.Topic(name=topic, partitions=[row])],
    )
    with brokers.client(NODE) as client:
        response = client.call(request, 1)
    assert response.error_code == 0
    ((result,),) = [each.partitions for each in response.responses]
    assert result.error_code or result.error_message is None
    return ErrorCode(result.error_code)


def in_progress(
    brokers: ServerSet, topics: dict[str, list[int]] | None = None
) -> dict[tuple[str, int], tuple[list[int], list[int], list[int]]]:
    """Return replicas, adding and removing replicas of the partitions that are reassigned."""
    wanted = ListPartitionReassignmentsRequest.Topic
    request = ListPartitionReassignmentsRequest(
        topics=None
        if topics is None
        else [wanted(name=name, partition_indexes=rows) for name, rows in topics.items()]
    )
    with brokers.client(NODE) as client:
        response = client.call(request, 0)
    assert response.error_code == 0
    return {
        (topic.name, row.partition_index): (
            row.replicas,
            row.adding_replicas,
            row.removing_replicas,
        )
        for topic in response.topics
        for row in topic.partitions
    }


def test_a_reassignment_is_listed_until_it_is_cancelled(brokers: ServerSet) -> None:
    assert in_progress(brokers) == {}
    assert alter(brokers, [SILENT]) == ErrorCode.NONE
    expected = {("t", 0): ([SILENT, NODE], [SILENT], [NODE])}
    assert in_progress(brokers) == expected
    assert in_progress(brokers, {"t": [0, 1], "u": [0], "unknown": [0]}) == expected
    assert in_progress(brokers, {"t": [1]}) == {}
    assert alter(brokers, None) == ErrorCode.NONE
    assert in_progress(brokers) == {}
    assert brokers.record("t").replicas == (NODE,)


def test_a_reassignment_is_complete_when_the_new_replica_is_in_sync(brokers: ServerSet) -> None:
    assert alter(brokers, [OTHER], number=1) == ErrorCode.NONE
    wait_until(lambda: brokers.record("t", 1).replicas == (OTHER,), "the reassignment")
    assert in_progress(brokers) == {}
    assert brokers.record("t", 1).leader == OTHER


@pytest.mark.parametrize(
    ("topic", "replicas", "may_resize", "code"),
    [
        ("unknown", [NODE], True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("u", None, True, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("u", [NODE, OTHER], False, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("u", [NODE, 99], True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("u", [NODE, NODE], True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("u", [], True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_invalid_reassignments_change_nothing(
    brokers: ServerSet,
    topic: str,
    replicas: list[int] | None,
    may_resize: bool,
    code: ErrorCode,
) -> None:
    assert alter(brokers, replicas, topic, may_resize=may_resize) == code
    assert brokers.record("u").replicas == (NODE,)
    assert in_progress(brokers) == {}


def test_log_directories_have_the_size_of_each_log(brokers: ServerSet) -> None:
    def sizes(topics: dict[str, list[int]] | None) -> dict[tuple[str, int], int]:
        wanted = DescribeLogDirsRequest.Topic
        request = DescribeLogDirsRequest(
            topics=None
            if topics is None
            else [wanted(topic=name, partitions=rows) for name, rows in topics.items()]
        )
        with brokers.client(NODE) as client:
            (result,) = client.call(request).results
        assert result.error_code == 0
        assert result.log_dir == str(brokers.services(NODE).directory.path.resolve())
        assert result.total_bytes >= result.usable_bytes > 0
        return {
            (topic.name, row.partition_index): row.partition_size
            for topic in result.topics
            for row in topic.partitions
        }

    batch = values_batch(b"v" * 1000)
    with brokers.client(NODE) as client:
        assert client.produce("u", batch).error_code == 0
    assert sizes({"u": [0, 1], "unknown": [0]}) == {("u", 0): len(batch), ("u", 1): 0}
    everything = sizes(None)
    assert everything["u", 0] == len(batch)
    assert ("t", 0) in everything


def test_a_dead_leader_does_not_count_as_one(brokers: ServerSet) -> None:
    """An unclean election is requested before the controller has removed the dead leader."""
    image = brokers.services(NODE).catalog.image
    dead = PartitionRecord(replicas=(9, OTHER), leader=9, leader_epoch=3, isr=(9,))
    after = elect_uncleanly(dead, image, 1)
    assert after is not None
    assert (after.leader, after.leader_epoch, after.isr) == (OTHER, 4, (OTHER,))
    with pytest.raises(BrokerError) as caught:
        elect_uncleanly(msgspec.structs.replace(dead, replicas=(9,)), image, 1)
    assert caught.value.code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert elect_uncleanly(msgspec.structs.replace(dead, leader=OTHER), image, 1) is None
