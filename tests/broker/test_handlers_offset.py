"""ListOffsets, DeleteRecords and OffsetForLeaderEpoch over the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import RawClient, values_batch
from millstream.model.error import ErrorCode
from millstream.records.compression import CompressionType
from millstream.wire.messages.delete_records import DeleteRecordsRequest
from millstream.wire.messages.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from millstream.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest

T0 = 1_700_000_000_000


@pytest.fixture
def topic(client: RawClient, request: pytest.FixtureRequest) -> str:
    """A topic with three batches of three records, 1 ms apart; the second has the latest ones."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    client.create_topic(name, configs={"segment.bytes": 1_048_576})
    for start, codec in (
        (T0, CompressionType.NONE),
        (T0 + 500, CompressionType.ZSTD),
        (T0 + 100, CompressionType.GZIP),
    ):
        batch = values_batch(b"a", b"b", b"c", timestamp=start, codec=codec)
        assert client.produce(name, batch).error_code == 0
    return name


def found(row: Any) -> tuple[int, int]:
    assert row.error_code == 0, ErrorCode(row.error_code)
    return row.timestamp, row.offset


# ListOffsets


@pytest.mark.parametrize("version", range(1, 12))
def test_earliest_and_latest_in_every_version(client: RawClient, topic: str, version: int) -> None:
    assert found(client.list_offset(topic, EARLIEST, version=version)) == (-1, 0)
    assert found(client.list_offset(topic, LATEST, version=version)) == (-1, 9)
    assert found(client.list_offset(topic, T0, version=version)) == (T0, 0)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (0, (T0, 0)),
        (T0 + 1, (T0 + 1, 1)),
        (T0 + 2, (T0 + 2, 2)),
        (T0 + 3, (T0 + 500, 3)),
        (T0 + 501, (T0 + 501, 4)),
        (T0 + 503, (-1, -1)),
        (2**63 - 1, (-1, -1)),
    ],
)
def test_the_first_record_at_or_after_a_timestamp_is_found(
    client: RawClient, topic: str, timestamp: int, expected: tuple[int, int]
) -> None:
    assert found(client.list_offset(topic, timestamp)) == expected


def test_special_timestamps_are_resolved(client: RawClient, topic: str) -> None:
    assert found(client.list_offset(topic, MAX_TIMESTAMP)) == (T0 + 502, 5)
    assert found(client.list_offset(topic, EARLIEST_LOCAL)) == (-1, 0)
    assert found(client.list_offset(topic, LATEST_TIERED))[1] == -1
    assert found(client.list_offset(topic, EARLIEST_PENDING_UPLOAD))[1] == -1


@pytest.mark.parametrize(
    ("word", "version"), [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8)]
)
def test_special_timestamps_need_their_version(
    client: RawClient, topic: str, word: int, version: int
) -> None:
    row = client.list_offset(topic, word, version=version)
    assert row.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_an_empty_partition(client: RawClient) -> None:
    client.create_topic("empty")
    assert found(client.list_offset("empty", EARLIEST)) == (-1, 0)
    assert found(client.list_offset("empty", LATEST)) == (-1, 0)
    assert found(client.list_offset("empty", MAX_TIMESTAMP)) == (-1, -1)
    assert found(client.list_offset("empty", 0)) == (-1, -1)


def test_unknown_partitions(client: RawClient, topic: str) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.list_offset("nowhere", LATEST).error_code == unknown
    assert client.list_offset(topic, LATEST, 5).error_code == unknown


# DeleteRecords


def delete_records(client: RawClient, topic: str, offset: int, partition: int = 0) -> Any:
    wanted = DeleteRecordsRequest.Topic.Partition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsRequest.Topic(name=topic, partitions=[wanted])], timeout_ms=5000
    )
    return client.call(request).topics[0].partitions[0]


def test_the_log_start_offset_advances_and_survives_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with RawClient(broker.host, broker.port) as client:
            client.create_topic("cut")
            for n in range(6):
                client.produce("cut", values_batch(b"%d" % n))
            row = delete_records(client, "cut", 4)
            assert (row.error_code, row.low_watermark) == (0, 4)
        broker.kill()
        broker.start()
        with RawClient(broker.host, broker.port) as client:
            assert found(client.list_offset("cut", EARLIEST)) == (-1, 4)
            assert client.fetch("cut", 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert [record.value for record in client.read_all("cut", offset=4)] == [b"4", b"5"]


def test_records_are_deleted_up_to_the_high_watermark(client: RawClient, topic: str) -> None:
    out_of_range = ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete_records(client, topic, 10).error_code == out_of_range
    assert delete_records(client, topic, -2).error_code == out_of_range
    assert delete_records(client, topic, 5).low_watermark == 5
    assert delete_records(client, topic, 3).low_watermark == 5
    row = delete_records(client, topic, -1)
    assert (row.error_code, row.low_watermark) == (0, 9)
    assert found(client.list_offset(topic, EARLIEST)) == (-1, 9)
    assert found(client.list_offset(topic, 0)) == (-1, -1)
    assert client.produce(topic, values_batch(b"next")).base_offset == 9


def test_delete_from_unknown_partitions(client: RawClient, topic: str) -> None:
    row = delete_records(client, topic, 0, partition=3)
    assert (row.error_code, row.low_watermark) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


# OffsetForLeaderEpoch


def epoch_end(client: RawClient, topic: str, epoch: int, current: int = -1) -> Any:
    wanted = OffsetForLeaderEpochRequest.Topic.Partition(
        partition=0, leader_epoch=epoch, current_leader_epoch=current
    )
    topics = [OffsetForLeaderEpochRequest.Topic(topic=topic, partitions=[wanted])]
    return client.call(OffsetForLeaderEpochRequest(topics=topics)).topics[0].partitions[0]


def test_the_end_offset_of_an_epoch_is_returned(client: RawClient, topic: str) -> None:
    epoch = client.list_offset(topic, LATEST).leader_epoch
    row = epoch_end(client, topic, epoch)
    assert (row.error_code, row.leader_epoch, row.end_offset) == (0, epoch, 9)
    row = epoch_end(client, topic, epoch + 5)
    assert (row.error_code, row.leader_epoch, row.end_offset) == (0, -1, -1)


def test_a_wrong_current_epoch_is_rejected(client: RawClient, topic: str) -> None:
    epoch = client.list_offset(topic, LATEST).leader_epoch
    row = epoch_end(client, topic, epoch, current=epoch + 1)
    assert row.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert epoch_end(client, topic, epoch, current=epoch).error_code == 0
    assert epoch_end(client, "nowhere", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
