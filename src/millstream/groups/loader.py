"""Replaying a partition of `__consumer_offsets` into a shard, in slices that leave the loop free.

Reads up to the log's end as it is at the start: what a former leader had appended but not yet
committed is this leader's to commit. Nobody else appends meanwhile. Records of kinds that we don't
know are passed over, and so are damaged ones, with a line in the log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millstream.groups import classic_record, record
from millstream.groups.classic import ClassicGroup
from millstream.groups.consumer import ConsumerGroup
from millstream.groups.shard import Shard, ShardState
from millstream.model.error import BrokerError, ErrorCode
from millstream.records.batch import iterate_batches
from millstream.records.record import Record, decode_records
from millstream.replication.partition import Partition

_log = logging.getLogger(__name__)

#: Bytes that the records of one batch may have once decompressed.
_DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Records replayed between two turns of the loop: about a millisecond.
_RECORDS_PER_TURN: Final = 200


async def load(shard: Shard, partition: Partition, read_bytes: int) -> int:
    """Replay everything; how many records. Stops early if the shard is closed meanwhile.

    Raises BrokerError where the log can't be read."""
    replay = Replay(shard)
    log = partition.log
    offset, end_offset = log.log_start_offset, log.log_end_offset
    count = 0
    while offset < end_offset and shard.state is ShardState.LOADING:
        data = log.read(offset, read_bytes, end_offset, True).read()
        if not data:
            break
        for position, header in iterate_batches(data, verify_crc=False):
            offset = header.next_offset
            if header.is_control:
                continue
            records = decode_records(data, _DECOMPRESSED_BYTES_MAX, position)
            for start in range(0, len(records), _RECORDS_PER_TURN):
                for each in records[start : start + _RECORDS_PER_TURN]:
                    replay.take(each)
                await asyncio.sleep(0)
            count += len(records)
        # Compaction may have moved the log's start.
        offset = max(offset, log.log_start_offset)
    replay.finish()
    return count


class Replay:
    """Records in, groups out. A group's records of both kinds are kept apart until the end, as
    they may come in any order where one kind follows the other."""

    __slots__ = ("_classic", "_consumer", "_shard")

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._classic: dict[str, ClassicGroup] = {}
        self._consumer: dict[str, ConsumerGroup] = {}

    def take(self, stored: Record) -> None:
        try:
            self._take(stored)
        except (record.DamagedRecordError, BrokerError) as error:
            _log.error(
                "the record at offset %d of the group partition %d is passed over: %s",
                stored.offset,
                self._shard.index,
                error,
            )

    def _take(self, stored: Record) -> None:
        if stored.key is None:
            raise BrokerError(ErrorCode.INVALID_RECORD, "it has no key")
        key = record.decode_key(stored.key)
        if isinstance(key, record.UnknownKey):
            return
        value = record.decode_value(key, stored.value)
        group_id = key.group_id
        if isinstance(key, record.OffsetCommitKey):
            assert value is None or isinstance(value, record.OffsetCommitValue)
            self._shard.group_offsets(group_id).restore(key, value)
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
