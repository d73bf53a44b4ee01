"""Record batches to the leaders of their partitions, several requests on their way at a time.

Batches of a partition arrive in the order in which they are given, each once: they carry sequence
numbers, and what was not answered when a connection broke or a leader moved is sent again, one
request at a time, until brokers have it or the connection's deadline has passed.

Has connections of its own, beside those of the cluster: one per leader. Not for several threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from millstream.model.error import BrokerError, ErrorCode
from millstream.protocol.broker_connection import BrokerConnection
from millstream.protocol.cluster_client import RETRIABLE, ClusterClient, TopicPartition
from millstream.protocol.connection_setting import Address
from millstream.records.crc import Buffer
from millstream.spark.error import ConnectionLost, OptionError
from millstream.spark.sink import transaction_request
from millstream.spark.sink.batch_encoder import PartitionBatch
from millstream.spark.sink.transaction_request import ProducerIdentity
from millstream.wire.messages.produce import ProduceRequest, ProduceResponse

#: The last version of the classic protocol, in which partitions are added before.
_CLASSIC_VERSION: Final = 11
#: Brokers remember the last five batches of a producer in a partition.
_WINDOW: Final = 5
_REQUEST_BYTES: Final = 4 << 20
_ACKS_ALL: Final = -1
_DONE: Final = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_AGAIN: Final = RETRIABLE | {ErrorCode.CONCURRENT_TRANSACTIONS}

#: What one request brings: a batch for each of some partitions.
RequestBatches: TypeAlias = dict[TopicPartition, Buffer]


@dataclass(slots=True)
class _LeaderConnection:
    """A leader's connection, and what it has not answered yet, in order."""

    link: BrokerConnection
    waiting: deque[tuple[int, RequestBatches]] = field(default_factory=deque)


class TaskProducer:
    """See the module's text."""

    def __init__(self, cluster: ClusterClient, producer: ProducerIdentity) -> None:
        self._cluster = cluster
        self._producer = producer
        self._lanes: dict[Address, _LeaderConnection] = {}
        #: Where a partition's batches go, so that the cluster is asked once.
        self._leaders: dict[TopicPartition, Address] = {}
        self._serial = 0
        #: Of the first record in the last batch that a partition has taken.
        self.offsets: dict[TopicPartition, int] = {}

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.link.close()
            lane.waiting.clear()
        self._lanes.clear()

    def send(self, batches: Iterable[PartitionBatch]) -> None:
        """Give batches on their way; waits only where too much is. Raises BrokerError or
        Unavailable: then nothing is known of what was given, but that it was not given twice."""
        given = list(batches)
        self._add({place for place, _ in given} - self._leaders.keys())
        shares: dict[Address, tuple[RequestBatches, int]] = {}
        for place, batch in given:
            leader = self._leaders[place]
            share, size = shares.get(leader, ({}, 0))
            if place in share or (share and size + len(batch) > _REQUEST_BYTES):
                self._dispatch(leader, share)
                share, size = {}, 0
            share[place] = batch
            shares[leader] = share, size + len(batch)
        for leader, (share, _) in shares.items():
            self._dispatch(leader, share)

    def flush(self) -> None:
        """Wait until brokers have everything."""
        for lane in list(self._lanes.values()):
            while lane.waiting:
                self._receive(lane)

    # On the way

    def _add(self, places: Collection[TopicPartition]) -> None:
        if not places:
            return
        if self._producer.transactional_id:
            transaction_request.add_partitions(self._cluster, self._producer, sorted(places))
        for place in places:
            self._leaders[place] = self._leader(place)

    def _leader(self, place: TopicPartition) -> Address:
        return self._cluster.attempt(
            f"find the leader of {place}", lambda: self._cluster.leader_connection(*place).address
        )

    def _dispatch(self, leader: Address, share: RequestBatches) -> None:
        self._serial += 1
        entry = self._serial, share
        try:
            lane = self._lanes.get(leader)
            if lane is None:
                lane = self._lanes[leader] = _LeaderConnection(
                    BrokerConnection(leader, self._cluster.settings)
                )
            while len(lane.waiting) >= _WINDOW:
                self._receive(lane)
            lane.waiting.append(entry)
            lane.link.send(self._request(share), _CLASSIC_VERSION)
        except ConnectionLost:
            self._recover(entry)

    def _receive(self, lane: _LeaderConnection) -> None:
        entry = lane.waiting[0]
        try:
            refused = self._read(lane.link.receive(ProduceResponse))
        except ConnectionLost:
            self._recover(entry)
            return
        if refused:
            _raise_lasting(refused)
            self._recover(entry)
        else:
            lane.waiting.popleft()

    def _request(self, share: RequestBatches) -> ProduceRequest:
        topics: dict[str, ProduceRequest.Topic] = {}
        for (name, number), batch in share.items():
            topic = topics.setdefault(name, ProduceRequest.Topic(name=name, partition_data=[]))
            topic.partition_data.append(ProduceRequest.Topic.Partition(index=number, records=batch))
        return ProduceRequest(
            transactional_id=self._producer.transactional_id or None,
            acks=_ACKS_ALL,
            timeout_ms=self._cluster.settings.request_timeout_ms,
            topic_data=list(topics.values()),
        )

    def _read(self, answer: ProduceResponse) -> dict[TopicPartition, BrokerError]:
        """Take an answer; which batches were refused, and how."""
        refused = {}
        for topic in answer.responses:
            for row in topic.partition_responses:
                code = ErrorCode(row.error_code)
                place = TopicPartition(topic.name, row.index)
                if code in _DONE:
                    self.offsets[place] = row.base_offset
                else:
                    refused[place] = BrokerError(code, row.error_message or f"writing to {place}")
        return refused

    # After a failure

    def _recover(self, failed: tuple[int, RequestBatches]) -> None:
        """Send again whatever was not answered, in order, and wait for it."""
        waiting = {serial: share for lane in self._lanes.values() for serial, share in lane.waiting}
        waiting.setdefault(*failed)
        self.close()
        self._cluster.forget_leaders()
        for _, share in sorted(waiting.items(), key=lambda entry: entry[0]):
            self._repeat(dict(share))
        self._leaders = {place: self._leader(place) for place in self._leaders}

    def _repeat(self, share: RequestBatches) -> None:
        while share:
            place = next(iter(share))
            self._cluster.attempt(f"write to {place}", lambda: self._repeat_some(share))

    def _repeat_some(self, share: RequestBatches) -> None:
        """Send to one leader what is its own, and take that out of `share`."""
        link = self._cluster.leader_connection(*next(iter(share)))
        mine = {
            place: batch
            for place, batch in share.items()
            if self._cluster.leader_connection(*place) is link
        }
        refused = self._read(link.call(self._request(mine), ProduceResponse, _CLASSIC_VERSION))
        for place in mine.keys() - refused.keys():
            del share[place]
        if refused:
            _raise_lasting(refused)
            place, error = next(iter(refused.items()))
            code = error.code if error.code in RETRIABLE else ErrorCode.REQUEST_TIMED_OUT
            raise BrokerError(code, f"{place}: {error}")


def _raise_lasting(refused: Mapping[TopicPartition, BrokerError]) -> None:
    """Raise what will not pass."""
    for place, error in refused.items():
        if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            raise OptionError(
                f"a batch for {place} is larger than the topic's max.message.bytes: lower"
                " kafka.batch.size, or make rows smaller"
            ) from error
        if error.code not in _AGAIN:
            raise error
