"""Replays the records of a partition of `__consumer_offsets` into its shard.

Records of unknown kinds are skipped. Damaged records are skipped and logged. Offsets of a
transaction stay pending until the replay reaches the transaction's marker.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millstream.coordination.shard import ShardReplay
from millstream.coordination.topic_record import DamagedRecordError
from millstream.groups import group_record as record
from millstream.groups.classic import generation_record as classic_record
from millstream.groups.classic.classic_group import ClassicGroup
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.model.error import BrokerError, ErrorCode
from millstream.records.record import Record

if TYPE_CHECKING:
    from millstream.groups.group_shard import GroupShard

_logger = logging.getLogger(__name__)


class GroupReplay(ShardReplay):
    """Builds groups from records. Classic and consumer groups are kept apart until the end: when a
    group changed its kind, compaction may leave records of both in any order."""

    __slots__ = ("_classic", "_consumer", "_shard")

    def __init__(self, shard: GroupShard) -> None:
        self._shard = shard
        self._classic: dict[str, ClassicGroup] = {}
        self._consumer: dict[str, ConsumerGroup] = {}

    def apply(self, stored: Record, producer_id: int) -> None:
        try:
            self._apply(stored, producer_id)
        except (DamagedRecordError, BrokerError) as error:
            _logger.error(
                "skipped the record at offset %d of partition %d of __consumer_offsets: %s",
                stored.offset,
                self._shard.index,
                error,
            )

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        self._shard.complete_pending_offsets(producer_id, is_commit=is_commit)

    def _apply(self, stored: Record, producer_id: int) -> None:
        if stored.key is None:
            raise BrokerError(ErrorCode.INVALID_RECORD, "the record has no key")
        key = record.decode_key(stored.key)
        if isinstance(key, record.UnknownKey):
            return
        value = record.decode_value(key, stored.value)
        group_id = key.group_id
        if isinstance(key, record.OffsetCommitKey):
            assert value is None or isinstance(value, record.OffsetCommitValue)
            self._shard.group_offsets(group_id).restore(key, value, producer_id)
            if producer_id >= 0:
                self._shard.add_to_transaction(producer_id, group_id)
        elif isinstance(key, record.GroupMetadataKey):
            self._classic.pop(group_id, None)
            if value is not None:
                assert isinstance(value, record.GroupMetadataValue)
                group = self._classic[group_id] = self._shard.new_classic(group_id)
                group.restore(classic_record.decode(value))
        else:
            consumer = self._consumer.get(group_id)
            if consumer is None:
                consumer = self._consumer[group_id] = self._shard.new_consumer(group_id)
            consumer.state.replay(key, value)

    def finish(self) -> None:
        shard = self._shard
        shard.groups.update(self._classic)
        shard.groups.update(
            (group_id, group) for group_id, group in self._consumer.items() if not group.is_blank
        )
        for group_id in [group_id for group_id, each in shard.offsets.items() if not each]:
            del shard.offsets[group_id]
