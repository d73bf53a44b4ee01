"""Transaction markers for partitions on any broker.

Implements the transaction coordinator's `MarkerSender`: markers of partitions led here are appended
at once, and all others leave by WriteTxnMarkers, one request for each leader.

Only this broker's metadata decide whether a partition exists. They are at least as new as its
coordinator's records, while another broker may not know a new topic yet. This module does not
retry: the coordinator does, and the next attempt goes to the partition's leader at that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millstream.broker.peer_link import PeerApi, PeerLinks, known_code
from millstream.broker.transaction.local_marker import LocalMarkers
from millstream.metadata.catalog import Catalog
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply
from millstream.model.sentinel import NO_LEADER
from millstream.model.topic import TopicPartition
from millstream.transactions.state import Marker
from millstream.wire.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_Row = WriteTxnMarkersRequest.Marker


class MarkerDelivery(NamedTuple):
    """A marker for one partition on another broker."""

    marker: Marker
    coordinator_epoch: int
    partition: TopicPartition
    reply: Reply[None]


class MarkerApi(PeerApi[MarkerDelivery]):
    """WriteTxnMarkers."""

    version = 2
    response = WriteTxnMarkersResponse

    def request(self, items: Sequence[MarkerDelivery]) -> WriteTxnMarkersRequest:
        rows: dict[tuple[Marker, int], _Row] = {}
        for item in items:
            marker = item.marker
            row = rows.get((marker, item.coordinator_epoch))
            if row is None:
                row = rows[marker, item.coordinator_epoch] = _Row(
                    producer_id=marker.producer.producer_id,
                    producer_epoch=marker.producer.epoch,
                    transaction_result=marker.is_commit,
                    coordinator_epoch=item.coordinator_epoch,
                    transaction_version=marker.version,
                )
            _add(row.topics, item.partition)
        return WriteTxnMarkersRequest(markers=list(rows.values()))

    def complete(self, items: Sequence[MarkerDelivery], response: WriteTxnMarkersResponse) -> None:
        codes = {
            (row.producer_id, topic.name, each.partition_index): each.error_code
            for row in response.markers
            for topic in row.topics
            for each in topic.partitions
        }
        for item in items:
            key = (item.marker.producer.producer_id, *item.partition)
            code = known_code(codes.get(key, ErrorCode.UNKNOWN_SERVER_ERROR))
            if code == ErrorCode.NONE:
                item.reply.deliver(None)
            else:
                self.fail(item, code)

    def fail(self, item: MarkerDelivery, code: ErrorCode) -> None:
        # The other broker may not know a new topic yet: the coordinator must retry.
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        item.reply.fail(code)


def _add(topics: list[_Row.Topic], partition: TopicPartition) -> None:
    """Add a partition. Consecutive partitions of one topic share a row."""
    if not topics or topics[-1].name != partition.topic:
        topics.append(_Row.Topic(name=partition.topic))
    topics[-1].partition_indexes.append(partition.partition)


class ClusterMarkers:
    """Sends markers to the leaders of their partitions. Event loop only."""

    __slots__ = ("_catalog", "_links", "_local", "_node_id")

    def __init__(
        self, node_id: int, catalog: Catalog, local: LocalMarkers, links: PeerLinks[MarkerDelivery]
    ) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._local = local
        self._links = links

    def send(
        self, marker: Marker, coordinator_epoch: int, partition: TopicPartition, reply: Reply[None]
    ) -> None:
        """Implement `MarkerSender.send`."""
        record = self._catalog.image.partition(*partition)
        if record is None:
            reply.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif record.leader == self._node_id:
            self._local.send(marker, coordinator_epoch, partition, reply)
        elif record.leader == NO_LEADER:
            reply.fail(ErrorCode.LEADER_NOT_AVAILABLE)
        else:
            delivery = MarkerDelivery(marker, coordinator_epoch, partition, reply)
            self._links.put(record.leader, delivery)
