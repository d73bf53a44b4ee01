"""What is known of a log's producers, from its snapshots and its batches.

Owns the way back from files to `ProducerState`: the snapshots (see there for the format), and the
batches since the last of them. Of data the header is enough; a marker is read. What was aborted is
learned on the way, and so a transaction index can be made anew.

Used when a log is loaded, repaired or truncated.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from pathlib import Path

from millstream.env.disk import Disk
from millstream.log import reader
from millstream.log.index.transaction_index import AbortedTransaction, TransactionIndex
from millstream.log.producers.producer_state import ProducerState
from millstream.log.segment import SNAPSHOT_SUFFIX, Segment, segment_name
from millstream.records.batch import BatchHeader, CorruptBatch
from millstream.records.control import read_marker
from millstream.records.crc import Buffer

_logger = logging.getLogger(__name__)


def write_snapshot(disk: Disk, directory: Path, offset: int, state: ProducerState) -> Path:
    """Write the producers' state as of `offset`, not synced: its CRC tells a torn one."""
    path = directory / segment_name(offset, SNAPSHOT_SUFFIX)
    file = disk.open(path, create=True)
    try:
        if file.size():
            file.truncate(0)
        file.write(state.encode(), 0)
    finally:
        file.close()
    state.is_dirty = False
    return path


def newest_snapshot(disk: Disk, directory: Path, offsets: list[int]) -> tuple[ProducerState, int]:
    """The newest intact snapshot among `offsets`, with its offset; (empty, 0) if there is none."""
    for offset in reversed(offsets):
        path = directory / segment_name(offset, SNAPSHOT_SUFFIX)
        try:
            return ProducerState.decode(disk.read(path)), offset
        except (ValueError, FileNotFoundError) as error:
            _logger.warning("%s is not used: %s", path, error)
    return ProducerState(), 0


def replay(
    state: ProducerState,
    segments: list[Segment],
    start: int,
    end: int,
    index: TransactionIndex | None = None,
) -> None:
    """Bring `state`, which is as of `start`, up to `end` by the batches between.

    What was aborted there is added to `index`.
    """
    first = max(bisect_right(segments, start, key=lambda s: s.base_offset) - 1, 0)
    for segment in segments[first:]:
        if start >= end or segment.base_offset >= end:
            return
        position = segment.offset_index.floor(start) if reader.indexes_sane(segment) else 0
        for at, header in reader.walk(segment, position, segment.size):
            if header.producer_id >= 0 and start <= header.base_offset < end:
                # Of data the header is enough, and the walk has read no more.
                data = b""
                if header.is_control:
                    data = reader.read_exactly(segment.log.get(), header.size, at)
                aborted = take_in(state, header, data, 0)
                if aborted is not None and index is not None:
                    index.append(aborted)
            if header.next_offset >= end:
                return  # what follows may be torn, and is not asked for


def take_in(
    state: ProducerState, header: BatchHeader, data: Buffer, position: int
) -> AbortedTransaction | None:
    """Let `state` know of the stored batch at `position` in `data`; what it aborted, if any."""
    if not header.is_control:
        state.append(header, header.base_offset, header.max_timestamp)
        return None
    try:
        marker = read_marker(data, header, position)
    except CorruptBatch as error:
        # The transaction stays open, and so nobody is shown what may have been aborted.
        _logger.error(
            "the marker at offset %d can not be read: %s", header.base_offset, error.message
        )
        return None
    return state.end(header, header.base_offset, header.max_timestamp, marker)


def rebuild_transaction_index(
    disk: Disk,
    directory: Path,
    segments: list[Segment],
    snapshots: list[int],
    number: int,
    end: int,
) -> None:
    """List anew what was aborted in segment `number`, up to `end`, from its markers. Blocks.

    Where its transactions began is told by the snapshot at the segment's start, or by what lies
    between an earlier one and there.
    """
    segment = segments[number]
    index, start = segment.transaction_index, segment.base_offset
    _logger.warning("rebuilding %s", index.handle.path)
    usable = [at for at in snapshots if at <= start]
    state, known = newest_snapshot(disk, directory, usable)
    replay(state, segments, known, start)
    index.start()
    replay(state, segments, start, end, index)
    index.seal()
    if len(index):
        # What it held may be below the recovery point, where nothing is looked at again.
        index.handle.get().sync()


def load_producers(
    disk: Disk, directory: Path, segments: list[Segment], snapshots: list[int], end: int
) -> ProducerState:
    """The producers at the end of a log that is whole. One without snapshots never had any."""
    if not snapshots:
        return ProducerState()
    state, start = newest_snapshot(disk, directory, [at for at in snapshots if at <= end])
    replay(state, segments, start, end)
    state.is_dirty = start != end
    return state
