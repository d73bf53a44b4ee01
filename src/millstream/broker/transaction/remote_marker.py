"""Transaction markers for partitions wherever they are led.

Is the `MarkerSender` of the transaction coordinator: partitions of this broker are marked at once,
those of others by WriteTxnMarkers, all that goes to one broker at the same time in one request.

Whether a partition exists is told from this broker's metadata alone: they are at least as new as
its coordinator's records, while another broker may not have heard of a topic yet. Nothing is tried
again here: whoever sends a marker does that, and then it goes to whoever leads by that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from millstream.broker.link import Conversation, Links, known_code
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


class Delivery(NamedTuple):
    """A marker on its way to one partition."""

    marker: Marker
    coordinator_epoch: int
    partition: TopicPartition
    reply: Reply[None]


class Deliveries(Conversation[Delivery]):
    """The `Conversation` about markers."""

    version = 2
    response = WriteTxnMarkersResponse

    def request(self, items: Sequence[Delivery]) -> WriteTxnMarkersRequest:
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

    def answer(self, items: Sequence[Delivery], response: Any) -> None:
        codes = {
            (row.producer_id, topic.name, each.partition_index): each.error_code
            for row in response.markers
            for topic in row.topics
            for each in topic.partitions
        }
        for item in items:
            place = (item.marker.producer.producer_id, *item.partition)
            code = known_code(codes.get(place, ErrorCode.UNKNOWN_SERVER_ERROR))
            if code == ErrorCode.NONE:
                item.reply.deliver(None)
            else:
                self.fail(item, code)

    def fail(self, item: Delivery, code: ErrorCode) -> None:
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        item.reply.fail(code)


def _add(topics: list[_Row.Topic], partition: TopicPartition) -> None:
    """Partitions come in the order of their topics."""
    if not topics or topics[-1].name != partition.topic:
        topics.append(_Row.Topic(name=partition.topic))
    topics[-1].partition_indexes.append(partition.partition)


class Markers:
    """See the module's text. Event loop only."""

    __slots__ = ("_catalog", "_links", "_local", "_node_id")

    def __init__(
        self, node_id: int, catalog: Catalog, local: LocalMarkers, links: Links[Delivery]
    ) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._local = local
        self._links = links

    def send(
        self, marker: Marker, coordinator_epoch: int, partition: TopicPartition, reply: Reply[None]
    ) -> None:
        """See `MarkerSender.send`."""
        record = self._catalog.image.partition(*partition)
        if record is None:
            reply.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif record.leader == self._node_id:
            self._local.send(marker, coordinator_epoch, partition, reply)
        elif record.leader == NO_LEADER:
            reply.fail(ErrorCode.LEADER_NOT_AVAILABLE)
        else:
            delivery = Delivery(marker, coordinator_epoch, partition, reply)
            self._links.put(record.leader, delivery)
