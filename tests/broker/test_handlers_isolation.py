"""Fetch, ListOffsets and DescribeProducers with transactions; the handlers are called directly.

The partition and its log are real. The rest of the broker is a stub.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.in_process.log_home import NOW_MS, StillClock, UnsyncedDisk
from harness.in_process.reply_receiver import RecordedReplies
from harness.raw.raw_client import records_of
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.context import ConnectedClient, Context
from millstream.broker.fetch_session import FetchSessions
from millstream.broker.handlers import describe_producers, fetch, list_offsets
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.log import PartitionLog
from millstream.metadata.cluster_record import PartitionRecord
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.reply import Reply
from millstream.model.topic import TopicPartition
from millstream.records.batch import read_header
from millstream.records.builder import build_batch
from millstream.records.record import Record
from millstream.replication.partition import Partition
from millstream.wire.messages.describe_producers import DescribeProducersRequest
from millstream.wire.messages.fetch import FetchRequest
from millstream.wire.messages.list_offsets import ListOffsetsRequest

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST = -1
ALONE = PartitionRecord(replicas=(1,), leader=1, leader_epoch=0, isr=(1,))


class Broker:
    """One partition of topic `t`, its host, and a context for requests."""

    def __init__(self, path: Path) -> None:
        clock = StillClock()
        self.directory = LogDirectory.open(path, UnsyncedDisk(), clock, random.Random(1))
        log = self.directory.log(TopicPartition("t", 0), b"i" * 16, TopicConfig())
        self.partition = Partition(1, log, ALONE, self, flushes_before_ack=False)
        self.partition.apply_state(ALONE, 0)
        services: Any = SimpleNamespace(
            authorizer=None,
            authentication=None,
            quotas=None,
            config=BrokerConfig(),
            metrics=Metrics(),
            replicas=self,
            fetch_sessions=FetchSessions(8, clock, random.Random(1)),
        )
        self.failures = CallbackFailures()
        self.kept = RecordedReplies()
        self.context = Context(
            services, "PLAINTEXT", 12, "test", ConnectedClient("127.0.0.1", 0), 0.0, self.kept
        )

    # The interface of `Replicas`

    def get(self, topic: str, partition: int) -> Partition | None:
        return self.partition if (topic, partition) == ("t", 0) else None

    def find(self, topic: str, partition: int) -> Partition:
        return self.partition

    # The interface of `Host`

    def wake_later(self, partition: Partition) -> None:
        asyncio.get_running_loop().call_soon(partition.wake)

    def flush(self, partition: Partition) -> None:
        raise AssertionError("nothing is flushed here")

    def counters(self, partition: Partition) -> Any:
        counters = SimpleNamespace(
            bytes_in=0, bytes_out=0, messages_in=0, messages_out=0, failed_fetches=0
        )
        return counters, counters

    # Requests

    def send(self, producer_id: int, sequence: int, timestamp: int = NOW_MS) -> None:
        batch = build_batch(
            [Record(0, timestamp, b"key", b"value", [])],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=producer_id >= 0,
        )
        self.partition.append(memoryview(batch), read_header(batch), acks_all=True)

    def end(self, producer_id: int, *, commit: bool) -> None:
        self.partition.append_marker(producer_id, 0, commit=commit, coordinator_epoch=3)

    def fetch(self, offset: int, isolation: int, *, max_bytes: int = 1 << 20) -> Any:
        response = fetch.handle(fetch_request(offset, isolation, max_bytes=max_bytes), self.context)
        assert not isinstance(response, Reply)
        ((row,),) = (topic.partitions for topic in response.responses)
        return row

    def find_offset(self, timestamp: int, isolation: int) -> int:
        request = ListOffsetsRequest(isolation_level=isolation)
        wanted = ListOffsetsRequest.Topic.Partition(partition_index=0, timestamp=timestamp)
        request.topics = [ListOffsetsRequest.Topic(name="t", partitions=[wanted])]
        ((row,),) = (
            topic.partitions for topic in list_offsets.handle(request, self.context).topics
        )
        assert row.error_code == 0
        return row.offset


def fetch_request(
    offset: int, isolation: int, *, max_bytes: int = 1 << 20, max_wait_ms: int = 0
) -> FetchRequest:
    wanted = FetchRequest.Topic.Partition(
        partition=0, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        isolation_level=isolation,
        topics=[FetchRequest.Topic(topic="t", partitions=[wanted])],
    )


def offsets(row: Any) -> list[int]:
    return [record.offset for record in records_of(row.records)]


def aborted(row: Any) -> list[tuple[int, int]] | None:
    if row.aborted_transactions is None:
        return None
    return [(each.producer_id, each.first_offset) for each in row.aborted_transactions]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.directory.close(clean=False)


def test_read_committed_ends_at_the_first_open_transaction(broker: Broker) -> None:
    broker.send(-1, -1)
    broker.send(1, 0)
    broker.send(-1, -1)
    row = broker.fetch(0, READ_COMMITTED)
    assert (offsets(row), row.high_watermark, row.last_stable_offset) == ([0], 3, 1)
    assert aborted(row) == []
    row = broker.fetch(0, READ_UNCOMMITTED)
    assert (offsets(row), row.high_watermark, row.last_stable_offset) == ([0, 1, 2], 3, 1)
    assert aborted(row) is None
    row = broker.fetch(2, READ_COMMITTED)
    assert (row.error_code, offsets(row), aborted(row)) == (0, [], [])


def test_a_response_names_the_aborted_transactions_of_its_records(broker: Broker) -> None:
    broker.send(1, 0)
    broker.send(2, 0)
    broker.end(1, commit=False)
    broker.end(2, commit=True)
    broker.send(3, 0)
    broker.end(3, commit=False)
    row = broker.fetch(0, READ_COMMITTED)
    assert (offsets(row), aborted(row)) == ([0, 1, 2, 3, 4, 5], [(1, 0), (3, 4)])
    # One batch: only the transactions that overlap it.
    assert aborted(broker.fetch(1, READ_COMMITTED, max_bytes=1)) == [(1, 0)]
    assert aborted(broker.fetch(3, READ_COMMITTED, max_bytes=1)) == []
    assert aborted(broker.fetch(5, READ_COMMITTED)) == [(3, 4)]
    assert aborted(broker.fetch(6, READ_COMMITTED)) == []


def test_a_marker_ends_the_wait_of_a_committed_reader(broker: Broker) -> None:
    async def wait() -> tuple[bool, Any]:
        response = fetch.handle(
            fetch_request(0, READ_COMMITTED, max_wait_ms=60_000), broker.context
        )
        assert isinstance(response, Reply)
        broker.send(1, 1)
        await asyncio.sleep(0)
        was_answered = not response.is_open
        broker.end(1, commit=True)
        await asyncio.sleep(0)
        return was_answered, broker.kept.results[0]

    broker.send(1, 0)
    was_answered, response = asyncio.run(wait())
    assert not was_answered
    assert offsets(response.responses[0].partitions[0]) == [0, 1, 2]


def test_latest_is_the_last_stable_offset_for_committed_readers(broker: Broker) -> None:
    broker.send(-1, -1, timestamp=NOW_MS - 9)
    broker.send(1, 0, timestamp=NOW_MS - 5)
    assert broker.find_offset(LATEST, READ_UNCOMMITTED) == 2
    assert broker.find_offset(LATEST, READ_COMMITTED) == 1
    assert broker.find_offset(NOW_MS - 6, READ_UNCOMMITTED) == 1
    assert broker.find_offset(NOW_MS - 6, READ_COMMITTED) == -1
    broker.end(1, commit=False)
    assert broker.find_offset(LATEST, READ_COMMITTED) == 3
    assert broker.find_offset(NOW_MS - 6, READ_COMMITTED) == 1


def test_producers_are_described_with_their_transactions(broker: Broker) -> None:
    broker.send(1, 0)
    broker.end(1, commit=True)
    broker.send(1, 1)
    broker.send(2, 0)
    request = DescribeProducersRequest(
        topics=[DescribeProducersRequest.Topic(name="t", partition_indexes=[0])]
    )
    (topic,) = describe_producers.handle(request, broker.context).topics
    rows = {row.producer_id: row for row in topic.partitions[0].active_producers}
    assert (rows[1].current_txn_start_offset, rows[1].coordinator_epoch) == (2, 3)
    assert (rows[2].current_txn_start_offset, rows[2].coordinator_epoch) == (3, -1)
    assert rows[1].last_sequence == 1


class UnreadableIndex:
    """A log whose index of aborted transactions cannot be read."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[Any]:
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "the index cannot be read")


def test_no_records_are_returned_if_the_aborted_transactions_are_unreadable(broker: Broker) -> None:
    broker.send(1, 0)
    broker.end(1, commit=False)
    index: Any = UnreadableIndex(broker.partition.log)
    broker.partition.log = index
    row = broker.fetch(0, READ_COMMITTED)
    assert (row.error_code, offsets(row)) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    assert offsets(broker.fetch(0, READ_UNCOMMITTED)) == [0, 1]
