"""Rebuilding producer state and transaction indexes from stored batches.

A snapshot gives the state at its offset; the batches after it bring the state up to date. The
header of a data batch is enough; a marker is read. Used when a log is loaded, repaired or
truncated.
"""

from __future__ import annotations

import logging
from bisect import bisect_right

from millstream.log.index.rebuild import indexes_sane
from millstream.log.index.transaction_index import AbortedTransaction, TransactionIndex
from millstream.log.producers.producer_state import ProducerState
from millstream.log.producers.snapshot import ProducerSnapshots
from millstream.log.reading.walk import read_exactly, walk
from millstream.log.segment import Segment
from millstream.records.batch import BatchHeader, CorruptBatch
from millstream.records.control import read_marker
from millstream.records.crc import Buffer

_logger = logging.getLogger(__name__)


def replay(
    state: ProducerState,
    segments: list[Segment],
    start: int,
    end: int,
    index: TransactionIndex | None = None,
) -> None:
    """Apply the batches in [start, end) to `state`, which is as of `start`.

    Adds the transactions aborted there to `index`.
    """
    first = max(bisect_right(segments, start, key=lambda s: s.base_offset) - 1, 0)
    for segment in segments[first:]:
        if start >= end or segment.base_offset >= end:
            return
        position = segment.offset_index.floor(start) if indexes_sane(segment) else 0
        for at, header in walk(segment, position, segment.size):
            if header.producer_id >= 0 and start <= header.base_offset < end:
                # The walk has read only the header, which is enough for data.
                data = b""
                if header.is_control:
                    data = read_exactly(segment.log.get(), header.size, at)
                aborted = apply_batch(state, header, data, 0)
                if aborted is not None and index is not None:
                    index.append(aborted)
            if header.next_offset >= end:
                return  # bytes after `end` may be torn


def apply_batch(
    state: ProducerState, header: BatchHeader, data: Buffer, position: int
) -> AbortedTransaction | None:
    """Apply the stored batch at `position` in `data` to `state`.

    Returns the transaction that the batch aborts, if it is such a marker.
    """
    if not header.is_control:
        state.append(header, header.base_offset, header.max_timestamp)
        return None
    try:
        marker = read_marker(data, header, position)
    except CorruptBatch as error:
        # The transaction stays open, so that no reader sees records that may be aborted.
        _logger.error(
            "the marker at offset %d cannot be read: %s", header.base_offset, error.message
        )
        return None
    return state.end_transaction(header, header.base_offset, header.max_timestamp, marker)


def rebuild_transaction_index(
    snapshots: ProducerSnapshots, segments: list[Segment], number: int, end: int
) -> None:
    """Rebuild the transaction index of segment `number`, up to offset `end`, from its markers.

    Where its transactions began comes from the last snapshot at or before the segment's start and
    the batches between the two. Blocks.
    """
    segment = segments[number]
    index, start = segment.transaction_index, segment.base_offset
    _logger.warning("rebuilding %s", index.handle.path)
    state, known = snapshots.newest(start)
    replay(state, segments, known, start)
    index.start()
    replay(state, segments, start, end, index)
    index.seal()
    if len(index):
        # The entries may be below the recovery point, where no later flush syncs them.
        index.handle.get().sync()
