"""A transactional producer that sends each request in any version and returns its error code."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from harness.raw.raw_client import (
    RawClient,
    fetch_request,
    produce_request,
    records_of,
    values_batch,
)
from millstream.model.error import ErrorCode
from millstream.records.batch import scan
from millstream.records.control import read_marker
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millstream.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, TxnTopic
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest
from millstream.wire.messages.txn_offset_commit import TxnOffsetCommitRequest

GROUP, TRANSACTION = 0, 1
READ_COMMITTED = 1
#: The last versions of the classic protocol.
CLASSIC_PRODUCE, CLASSIC_END = 11, 4


def find_coordinator(client: RawClient, key: str, key_type: int = TRANSACTION) -> None:
    """Wait for the coordinator. The first request creates the coordinator's topic."""
    response = client.call(FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type))
    assert response.coordinators[0].error_code == 0, response


class RawProducer:
    """Sends requests with the producer id and epoch of `init`, which a test may change."""

    def __init__(self, client: RawClient, transactional_id: str) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        #: The next sequence by partition, in the current epoch.
        self.sequences: dict[tuple[str, int], int] = {}

    def init(
        self, version: int | None = None, timeout_ms: int = 60_000, seconds_max: float = 60.0
    ) -> None:
        """Get a producer id; retry until the previous transaction has ended."""
        deadline = time.monotonic() + seconds_max
        while (code := self.try_init(version, timeout_ms)) == ErrorCode.CONCURRENT_TRANSACTIONS:
            assert time.monotonic() < deadline, (
                f"the previous transaction is still open after {seconds_max} s"
            )
            time.sleep(0.01)
        assert code == 0, ErrorCode(code)

    def try_init(
        self, version: int | None = None, timeout_ms: int = 60_000, *, goes_on: bool = False
    ) -> int:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms
        )
        if goes_on:
            request.producer_id, request.producer_epoch = self.producer_id, self.epoch
        response = self.client.call(request, version)
        if response.error_code == 0:
            self.become(response.producer_id, response.producer_epoch)
        return int(response.error_code)

    def become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.producer_id, self.epoch = producer_id, epoch
            self.sequences.clear()

    def add(self, topic: str, *partitions: int, version: int = 3) -> list[int]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[TxnTopic(name=topic, partitions=list(partitions))],
        )
        (row,) = self.client.call(request, version).results_by_topic_v3_and_below
        return [each.partition_error_code for each in row.results_by_partition]

    def verify(self, topic: str, *partitions: int, version: int = 5) -> list[int]:
        transaction = AddPartitionsToTxnRequest.Transaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            verify_only=True,
            topics=[TxnTopic(name=topic, partitions=list(partitions))],
        )
        response = self.client.call(AddPartitionsToTxnRequest(transactions=[transaction]), version)
        (row,) = response.results_by_transaction[0].topic_results
        return [each.partition_error_code for each in row.results_by_partition]

    def batch(self, topic: str, *values: bytes, partition: int = 0) -> bytearray:
        sequence = self.sequences.get((topic, partition), 0)
        return values_batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )

    def produce(self, topic: str, *values: bytes, partition: int = 0, version: int = 12) -> int:
        batch = self.batch(topic, *values, partition=partition)
        topic_id = self.client.topic_id(topic) if version > 12 else bytes(16)
        request = produce_request(topic, batch, partition, topic_id=topic_id)
        request.transactional_id = self.transactional_id
        (row,) = self.client.call(request, version).responses[0].partition_responses
        if row.error_code == 0:
            place = (topic, partition)
            self.sequences[place] = self.sequences.get(place, 0) + len(values)
        return int(row.error_code)

    def add_offsets(self, group_id: str, version: int | None = None) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group_id,
        )
        return int(self.client.call(request, version).error_code)

    def commit_offset(
        self,
        group_id: str,
        topic: str,
        offset: int,
        partition: int = 0,
        version: int | None = None,
        **fields: Any,
    ) -> int:
        wanted = TxnOffsetCommitRequest.Topic.Partition(
            partition_index=partition, committed_offset=offset
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequest.Topic(name=topic, partitions=[wanted])],
            **fields,
        )
        response = self.client.call(request, version)
        return int(response.topics[0].partitions[0].error_code)

    def end(self, *, commit: bool, version: int = 5) -> int:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        response = self.client.call(request, version)
        if response.error_code == 0 and version > CLASSIC_END:
            self.become(response.producer_id, response.producer_epoch)
        return int(response.error_code)


def committed_values(client: RawClient, topic: str, partition: int = 0) -> list[bytes]:
    """Return the values that a read-committed client returns: without control records and aborted
    transactions."""
    request = fetch_request(
        [(topic, partition, 0)], max_bytes=8 << 20, isolation_level=READ_COMMITTED
    )
    row = client.call(request, 12).responses[0].partitions[0]
    assert row.error_code == 0, row
    return _without_aborted(row)


def _without_aborted(row: Any) -> list[bytes]:
    starts: dict[int, list[int]] = {}
    for each in row.aborted_transactions or ():
        starts.setdefault(each.producer_id, []).append(each.first_offset)
    aborting: set[int] = set()
    values: list[bytes] = []
    for position, header in scan(row.records) if row.records else ():
        producer_id = header.producer_id
        pending = starts.get(producer_id, [])
        if pending and pending[0] <= header.base_offset:
            aborting.add(producer_id)
        if header.is_control:
            marker = read_marker(row.records, header, position)
            if marker is not None and not marker.is_commit and producer_id in aborting:
                aborting.discard(producer_id)
                pending.pop(0)
            continue
        if header.is_transactional and producer_id in aborting:
            continue
        end = position + header.size
        values += [each.value or b"" for each in records_of(row.records[position:end])]
    return values


def fetch_offset(
    client: RawClient, group_id: str, topic: str, partition: int = 0, *, stable: bool = False
) -> tuple[int, int]:
    """Return the group's committed offset and the error code."""
    return fetch_offsets(client, group_id, topic, [partition], stable=stable)[0]


def fetch_offsets(
    client: RawClient, group_id: str, topic: str, partitions: Sequence[int], *, stable: bool
) -> list[tuple[int, int]]:
    group = OffsetFetchRequest.Group(
        group_id=group_id,
        topics=[OffsetFetchRequest.Group.Topic(name=topic, partition_indexes=list(partitions))],
    )
    response = client.call(OffsetFetchRequest(groups=[group], require_stable=stable), 9)
    (row,) = response.groups
    assert row.error_code == 0, row
    return [(each.committed_offset, each.error_code) for each in row.topics[0].partitions]
