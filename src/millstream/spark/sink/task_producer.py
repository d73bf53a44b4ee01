"""Sends record batches to the leaders of their partitions, with several requests in flight.

Brokers append the batches of a partition in the listed order, each once, because batches carry
sequence numbers. When a connection breaks or a leader moves, the producer resends every
unacknowledged request, one at a time, until brokers acknowledge it or the deadline passes.

The producer has its own connection to each leader, beside those of the cluster. Not thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition
from millstream.protocol.broker_connection import BrokerConnection
from millstream.protocol.cluster_client import RETRIABLE, ClusterClient
from millstream.protocol.connection_setting import Address
from millstream.records.crc import Buffer
from millstream.spark.error import ConnectionLost, OptionError
from millstream.spark.sink import transaction_request
from millstream.spark.sink.batch_encoder import PartitionBatch
from millstream.spark.sink.transaction_request import ProducerIdentity
from millstream.wire.messages.produce import ProduceRequest, ProduceResponse

#: The last version of the classic protocol, which requires AddPartitionsToTxn first.
_CLASSIC_VERSION: Final = 11
#: Brokers remember the last five batches of a producer in a partition.
_WINDOW: Final = 5
_REQUEST_BYTES: Final = 4 << 20
_ACKS_ALL: Final = -1
_ACKNOWLEDGED: Final = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_RETRIED: Final = RETRIABLE | {ErrorCode.CONCURRENT_TRANSACTIONS}

#: The batches of one request, at most one per partition.
RequestBatches: TypeAlias = dict[TopicPartition, Buffer]


@dataclass(slots=True)
class _LeaderConnection:
    """A connection to a leader, and its unacknowledged requests in order."""

    channel: BrokerConnection
    unacknowledged: deque[tuple[int, RequestBatches]] = field(default_factory=deque)


class TaskProducer:
    """Sends the batches of one producer."""

    def __init__(self, cluster: ClusterClient, producer: ProducerIdentity) -> None:
        self._cluster = cluster
        self._producer = producer
        self._connections: dict[Address, _LeaderConnection] = {}
        #: The leader of each partition, cached.
        self._leaders: dict[TopicPartition, Address] = {}
        self._request_number = 0
        #: The base offset of the last acknowledged batch of each partition.
        self.offsets: dict[TopicPartition, int] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.channel.close()
            connection.unacknowledged.clear()
        self._connections.clear()

    def send(self, batches: Iterable[PartitionBatch]) -> None:
        """Send batches. Wait only while too many requests are in flight.

        Raises BrokerError or Unavailable. The batches may then be appended or not, but no batch is
        appended twice."""
        listed = list(batches)
        self._add({partition for partition, _ in listed} - self._leaders.keys())
        by_leader: dict[Address, tuple[RequestBatches, int]] = {}
        for partition, batch in listed:
            leader = self._leaders[partition]
            request, size = by_leader.get(leader, ({}, 0))
            if partition in request or (request and size + len(batch) > _REQUEST_BYTES):
                self._dispatch(leader, request)
                request, size = {}, 0
            request[partition] = batch
            by_leader[leader] = request, size + len(batch)
        for leader, (request, _) in by_leader.items():
            self._dispatch(leader, request)

    def flush(self) -> None:
        """Wait until brokers have acknowledged all batches."""
        for connection in list(self._connections.values()):
            while connection.unacknowledged:
                self._receive(connection)

    # Requests in flight

    def _add(self, partitions: Collection[TopicPartition]) -> None:
        if not partitions:
            return
        if self._producer.transactional_id:
            transaction_request.add_partitions(self._cluster, self._producer, sorted(partitions))
        for partition in partitions:
            self._leaders[partition] = self._leader(partition)

    def _leader(self, partition: TopicPartition) -> Address:
        return self._cluster.attempt(
            f"find the leader of {partition}",
            lambda: self._cluster.leader_connection(*partition).address,
        )

    def _dispatch(self, leader: Address, batches: RequestBatches) -> None:
        self._request_number += 1
        entry = self._request_number, batches
        try:
            connection = self._connections.get(leader)
            if connection is None:
                channel = BrokerConnection(leader, self._cluster.settings)
                connection = self._connections[leader] = _LeaderConnection(channel)
            while len(connection.unacknowledged) >= _WINDOW:
                self._receive(connection)
            connection.unacknowledged.append(entry)
            connection.channel.send(self._request(batches), _CLASSIC_VERSION)
        except ConnectionLost:
            self._resend_unacknowledged(entry)

    def _receive(self, connection: _LeaderConnection) -> None:
        entry = connection.unacknowledged[0]
        try:
            rejected = self._read(connection.channel.receive(ProduceResponse))
        except ConnectionLost:
            self._resend_unacknowledged(entry)
            return
        if rejected:
            _raise_permanent(rejected)
            self._resend_unacknowledged(entry)
        else:
            connection.unacknowledged.popleft()

    def _request(self, batches: RequestBatches) -> ProduceRequest:
        topics: dict[str, ProduceRequest.Topic] = {}
        for (name, number), batch in batches.items():
            topic = topics.setdefault(name, ProduceRequest.Topic(name=name, partition_data=[]))
            topic.partition_data.append(ProduceRequest.Topic.Partition(index=number, records=batch))
        return ProduceRequest(
            transactional_id=self._producer.transactional_id or None,
            acks=_ACKS_ALL,
            timeout_ms=self._cluster.settings.request_timeout_ms,
            topic_data=list(topics.values()),
        )

    def _read(self, response: ProduceResponse) -> dict[TopicPartition, BrokerError]:
        """Process a response. Return the errors of the rejected batches."""
        rejected = {}
        for topic in response.responses:
            for row in topic.partition_responses:
                code = ErrorCode(row.error_code)
                partition = TopicPartition(topic.name, row.index)
                if code in _ACKNOWLEDGED:
                    self.offsets[partition] = row.base_offset
                else:
                    message = row.error_message or f"writing to {partition}"
                    rejected[partition] = BrokerError(code, message)
        return rejected

    # Recovery

    def _resend_unacknowledged(self, failed: tuple[int, RequestBatches]) -> None:
        """Resend all unacknowledged requests in order and wait for their responses."""
        connections = self._connections.values()
        pending = {
            number: batches for each in connections for number, batches in each.unacknowledged
        }
        pending.setdefault(*failed)
        self.close()
        self._cluster.forget_leaders()
        for _, batches in sorted(pending.items(), key=lambda entry: entry[0]):
            self._resend(dict(batches))
        self._leaders = {partition: self._leader(partition) for partition in self._leaders}

    def _resend(self, batches: RequestBatches) -> None:
        while batches:
            partition = next(iter(batches))
            self._cluster.attempt(f"write to {partition}", lambda: self._resend_to_leader(batches))

    def _resend_to_leader(self, batches: RequestBatches) -> None:
        """Send one leader its batches, and remove the acknowledged ones from `batches`."""
        leader = self._cluster.leader_connection(*next(iter(batches)))
        mine = {
            partition: batch
            for partition, batch in batches.items()
            if self._cluster.leader_connection(*partition) is leader
        }
        rejected = self._read(leader.call(self._request(mine), ProduceResponse, _CLASSIC_VERSION))
        for partition in mine.keys() - rejected.keys():
            del batches[partition]
        if rejected:
            _raise_permanent(rejected)
            partition, error = next(iter(rejected.items()))
            code = error.code if error.code in RETRIABLE else ErrorCode.REQUEST_TIMED_OUT
            raise BrokerError(code, f"{partition}: {error}")


def _raise_permanent(rejected: Mapping[TopicPartition, BrokerError]) -> None:
    """Raise the first error that a retry cannot solve."""
    for partition, error in rejected.items():
        if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            raise OptionError(
                f"a batch for {partition} is larger than the topic's max.message.bytes: lower"
                " kafka.batch.size, or make rows smaller"
            ) from error
        if error.code not in _RETRIED:
            raise error
