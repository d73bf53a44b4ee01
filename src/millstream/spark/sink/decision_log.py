"""Reads the last decision of a query and writes the next one.

A decision is a record of the commit topic. It is written in a transaction of the query's own
transactional id. `claim` fences every other driver of the query, so that no other driver can write
a decision from then on.

The same transaction commits the offset of the record for a group with the query's name. The last
decision is therefore found without reading the topic. If that offset has expired, the topic is read
from its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition
from millstream.protocol.cluster_client import GROUP, TRANSACTION, ClusterClient
from millstream.records.batch import iterate_batches
from millstream.records.builder import build_batch
from millstream.records.crc import Buffer
from millstream.records.record import Record, decode_records
from millstream.spark.error import ProtocolError
from millstream.spark.sink import transaction_request
from millstream.spark.sink.batch_encoder import PartitionBatch
from millstream.spark.sink.decision import Decision, decode_decision
from millstream.spark.sink.task_producer import TaskProducer
from millstream.spark.sink.transaction_request import ProducerIdentity, TransactionEnder
from millstream.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from millstream.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from millstream.wire.messages.fetch import FetchRequest, FetchResponse
from millstream.wire.messages.list_offsets import EARLIEST, LATEST
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

_PARTITION: Final = 0
_TIMEOUT_MS: Final = 60_000
_FETCH_BYTES: Final = 8 << 20
#: Enough for one decision. Brokers return the first batch whole even if it is larger.
_ONE_BYTES: Final = 1 << 14
_DECISION_BYTES_MAX: Final = 64 << 20
#: The last versions that name topics and that ask for one group.
_FETCH_VERSION: Final = 12
_OFFSET_FETCH_VERSION: Final = 7
_TXN_OFFSET_COMMIT_VERSION: Final = 4
_FENCED: Final = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}


class DecisionLog:
    """The decisions of one query in the commit topic. Not thread-safe."""

    def __init__(self, cluster: ClusterClient, topic: str, query: str) -> None:
        self._cluster = cluster
        self._place = TopicPartition(topic, _PARTITION)
        self._query = query
        #: The group id, and the transactional id of the decisions.
        self._name = f"spark-commit-{query}"
        self._producer: ProducerIdentity | None = None

    def claim(self) -> None:
        """Fence all other drivers of the query."""
        self._producer = transaction_request.init_producer(self._cluster, self._name, _TIMEOUT_MS)

    # The last decision

    def check_claim(self) -> None:
        """Raise ProtocolError if another driver has claimed the query since `claim`."""
        assert self._producer is not None, "claim first"
        try:
            self._producer = transaction_request.init_producer(
                self._cluster, self._name, _TIMEOUT_MS, self._producer
            )
        except BrokerError as error:
            if error.code not in _FENCED:
                raise
            raise self._fenced() from error

    def last(self) -> Decision | None:
        """Return the last decision of any driver. Before `claim`, another one may be pending."""
        offset = self._known_offset()
        if offset is not None:
            # The decision is committed, as its offset is. Other transactions may be open.
            for record in committed_records(self._fetch(offset, _ONE_BYTES, is_committed=False)):
                if record.offset == offset and record.value is not None:
                    return decode_decision(record.value)
        return self._search()

    def _known_offset(self) -> int | None:
        topic, number = self._place
        wanted = OffsetFetchRequest.Topic(name=topic, partition_indexes=[number])
        # `claim` has ended earlier transactions, so no offset commit is pending.
        request = OffsetFetchRequest(group_id=self._name, topics=[wanted])

        def attempt() -> int:
            connection = self._cluster.coordinator_connection(self._name, GROUP)
            response = connection.call(request, OffsetFetchResponse, _OFFSET_FETCH_VERSION)
            _check(response.error_code, "asking for the last decision")
            row = response.topics[0].partitions[0]
            _check(row.error_code, "asking for the last decision")
            return int(row.committed_offset)

        offset = self._cluster.attempt("find the last decision", attempt)
        return None if offset < 0 else offset

    def _search(self) -> Decision | None:
        """Search the whole topic for the last committed decision."""
        try:
            position = self._cluster.list_offsets({self._place: EARLIEST})[self._place]
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return None
        end = self._stable_end()
        found: Decision | None = None
        while position < end:
            row = self._fetch(position, _FETCH_BYTES, is_committed=True)
            for record in committed_records(row):
                if position <= record.offset < end and record.key == self._query.encode():
                    found = found if record.value is None else decode_decision(record.value)
            position = _next_offset(row, position)
        return found

    def _stable_end(self) -> int:
        """Return the end of the topic once no transaction before it is open."""
        end = self._cluster.list_offsets({self._place: LATEST})[self._place]
        retry = self._cluster.backoff(f"read {self._place} up to offset {end}")
        while self._cluster.list_offsets({self._place: LATEST}, True)[self._place] < end:
            retry.pause(ProtocolError("a decision of another query is pending"))
        return end

    def _fetch(
        self, offset: int, size: int, *, is_committed: bool
    ) -> FetchResponse.Topic.Partition:
        topic, number = self._place
        partition = FetchRequest.Topic.Partition(
            partition=number, fetch_offset=offset, partition_max_bytes=size
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=size,
            isolation_level=int(is_committed),
            topics=[FetchRequest.Topic(topic=topic, partitions=[partition])],
        )

        def attempt() -> FetchResponse.Topic.Partition:
            connection = self._cluster.leader_connection(*self._place)
            response = connection.call(request, FetchResponse, _FETCH_VERSION)
            row: FetchResponse.Topic.Partition = response.responses[0].partitions[0]
            _check(row.error_code, f"reading {self._place}")
            return row

        return self._cluster.attempt("read decisions", attempt)

    # The next decision

    def decide(self, decision: Decision) -> None:
        """Write and commit the decision. Raises ProtocolError if another driver claimed the query.

        If this raises, the decision may be committed or not: `claim` and `last` find out."""
        assert self._producer is not None, "claim first"
        try:
            self._write(self._producer, decision)
        except BrokerError as error:
            if error.code not in _FENCED:
                raise
            raise self._fenced() from error

    def _write(self, producer: ProducerIdentity, decision: Decision) -> None:
        self._make_topic()
        batch = build_batch(
            [Record(0, time.time_ns() // 1_000_000, self._query.encode(), decision.encode(), [])],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            is_transactional=True,
        )
        sender = TaskProducer(self._cluster, producer)
        try:
            sender.send([PartitionBatch(self._place, batch)])
            sender.flush()
        finally:
            sender.close()
        self._commit_offset(producer, sender.offsets[self._place])
        ender = TransactionEnder(self._cluster, is_commit=True)
        ender.end([producer])
        if ender.rejected:
            raise self._fenced()

    def _commit_offset(self, producer: ProducerIdentity, offset: int) -> None:
        transactional_id, producer_id, epoch = producer
        group_request = AddOffsetsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=self._name,
        )

        def add_offsets() -> None:
            connection = self._cluster.coordinator_connection(transactional_id, TRANSACTION)
            _check(
                connection.call(group_request, AddOffsetsToTxnResponse).error_code,
                "adding the group",
            )

        self._cluster.attempt("add a decision's offset", add_offsets)
        topic, number = self._place
        row = TxnOffsetCommitRequest.Topic.Partition(
            partition_index=number, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=self._name,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[TxnOffsetCommitRequest.Topic(name=topic, partitions=[row])],
        )

        def commit() -> None:
            connection = self._cluster.coordinator_connection(self._name, GROUP)
            response = connection.call(request, TxnOffsetCommitResponse, _TXN_OFFSET_COMMIT_VERSION)
            _check(response.topics[0].partitions[0].error_code, "committing a decision's offset")

        self._cluster.attempt("commit a decision's offset", commit)

    def _make_topic(self) -> None:
        try:
            self._cluster.topic(self._place.topic)
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        else:
            return
        shape = CreateTopicsRequest.Topic
        topic = shape(
            name=self._place.topic,
            num_partitions=1,
            replication_factor=-1,
            configs=[shape.Config(name=name, value=value) for name, value in _CONFIG.items()],
        )

        def make() -> None:
            connection = self._cluster.any_connection()
            (row,) = connection.call(
                CreateTopicsRequest(topics=[topic]), CreateTopicsResponse
            ).topics
            if row.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                _check(row.error_code, f"creating the commit topic {topic.name}")
            self._cluster.forget_leaders()
            self._cluster.leader_connection(*self._place)

        self._cluster.attempt("create the commit topic", make)

    def _fenced(self) -> ProtocolError:
        return ProtocolError(
            f"another driver writes for query {self._query}: do two queries share one checkpoint?"
        )


def committed_records(row: FetchResponse.Topic.Partition) -> Iterator[Record]:
    """Yield the records of a response, without those of aborted transactions."""
    data: Buffer = row.records or b""  # type: ignore[assignment]
    starts = sorted(
        (each.first_offset, each.producer_id) for each in row.aborted_transactions or ()
    )
    aborted: set[int] = set()
    for position, header in iterate_batches(data, verify_crc=True):
        while starts and starts[0][0] <= header.base_offset:
            aborted.add(starts.pop(0)[1])
        if header.is_control:
            aborted.discard(header.producer_id)
        elif not header.is_transactional or header.producer_id not in aborted:
            yield from decode_records(data, _DECISION_BYTES_MAX, position)


def _next_offset(row: FetchResponse.Topic.Partition, offset: int) -> int:
    """Return the next offset to fetch after a response to a fetch at `offset`."""
    data: Buffer = row.records or b""  # type: ignore[assignment]
    ends = [header.next_offset for _, header in iterate_batches(data, verify_crc=False)]
    return max([offset + 1, *ends])


def _check(code: int, doing: str) -> None:
    if code != ErrorCode.NONE:
        raise BrokerError(ErrorCode(code), doing)
