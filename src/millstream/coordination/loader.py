"""Replaying a partition into its shard, in slices that leave the loop free.

Reads up to the log's end as it is at the start, all of which is committed by then. Nobody appends
meanwhile.
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

#: Bytes that the records of one batch may have once decompressed.
_DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Records replayed between two turns of the loop: about a millisecond.
_RECORDS_PER_TURN: Final = 200


async def load(shard: CoordinatorShard, partition: Partition, read_bytes: int) -> int:
    """Replay everything; how many records. Stops early if the shard is closed meanwhile.

    Raises BrokerError where the log can't be read."""
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
        # Compaction may have moved the log's start.
        offset = max(offset, log.log_start_offset)
    replay.finish()
    return count
