"""Transaction markers for partitions that this broker leads.

Appends the markers that a coordinator requests, on this broker or by WriteTxnMarkers. Markers for
the offsets topic go through the group coordinator, because they commit or drop pending offsets.
"""

from __future__ import annotations

from millstream.coordination.journal import TransactionEnd
from millstream.groups.group_coordinator import GroupCoordinator
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.metadata.catalog import Catalog
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.model.topic import TopicPartition
from millstream.replication.partition import Partition
from millstream.replication.replicas import Replicas
from millstream.transactions.state import Marker


class LocalMarkers:
    """Appends markers to partitions led here. Event loop only."""

    __slots__ = ("_catalog", "_groups", "_replicas")

    def __init__(self, catalog: Catalog, replicas: Replicas, groups: GroupCoordinator) -> None:
        self._catalog = catalog
        self._replicas = replicas
        self._groups = groups

    def send(
        self, marker: Marker, coordinator_epoch: int, partition: TopicPartition, reply: Reply[None]
    ) -> None:
        """Implement `MarkerSender.send`."""
        topic, number = partition
        replica = self._replicas.get(topic, number)
        if replica is None:
            reply.fail(self._absence_code(partition))
        elif topic == OFFSETS_TOPIC:
            end = TransactionEnd(
                marker.producer, marker.is_commit, coordinator_epoch, marker.version
            )
            self._groups.end_transaction(number, end, reply)
        else:
            self._append(replica, marker, coordinator_epoch, reply)

    def _absence_code(self, partition: TopicPartition) -> ErrorCode:
        topic = self._catalog.image.topic(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _append(
        self, replica: Partition, marker: Marker, coordinator_epoch: int, reply: Reply[None]
    ) -> None:
        try:
            appended = replica.append_marker(
                marker.producer.producer_id,
                marker.producer.epoch,
                commit=marker.is_commit,
                coordinator_epoch=coordinator_epoch,
                transaction_version=marker.version,
            )
        except BrokerError as error:
            reply.fail(error.code)
            return
        end_offset = appended.last_offset + 1

        def check() -> None:
            if replica.is_acknowledged(end_offset, acks_all=True):
                reply.deliver(None)
            else:
                reply.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

        if replica.is_acknowledged(end_offset, acks_all=True):
            reply.deliver(None)
        else:
            replica.when_acknowledged(end_offset, check, reply, acks_all=True)
