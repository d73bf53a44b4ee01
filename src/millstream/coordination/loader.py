"""Replays the log of a partition into its shard, in slices that keep the event loop responsive.

Reads up to the log end offset at the start. All of these records are committed, and nothing is
appended while the shard is LOADING.
"""

from __future__ import annotations

import asyncio
from typing import Final

from millstream.coordination.shard import CoordinatorShard, ShardState
from millstream.model.sentinel import NO_PRODUCER_ID
from millstream.records.batch import iterate_batches
from millstream.records.control import read_marker
from millstream.records.record import decode_records
from millstream.replication.partition import Partition

#: The limit for the decompressed records of one batch.
_DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Records replayed before the event loop runs other tasks: about a millisecond.
_RECORDS_PER_TURN: Final = 200


async def load(shard: CoordinatorShard, partition: Partition, read_bytes: int) -> int:
    """Replay the whole log and return the number of records. Stops early if the shard is closed.

    Raises BrokerError if the log cannot be read."""
    replay = shard.replay()
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
                marker = read_marker(data, header, position)
                if marker is not None:
                    replay.end_transaction(header.producer_id, is_commit=marker.is_commit)
                continue
            records = decode_records(data, _DECOMPRESSED_BYTES_MAX, position)
            producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
            for start in range(0, len(records), _RECORDS_PER_TURN):
                for each in records[start : start + _RECORDS_PER_TURN]:
                    replay.apply(each, producer_id)
                await asyncio.sleep(0)
            count += len(records)
        # Compaction may have raised the log start offset.
        offset = max(offset, log.log_start_offset)
    replay.finish()
    return count
