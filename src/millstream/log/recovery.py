"""Loading a log from its files, and repairing it after an unclean shutdown.

After a clean shutdown the checkpoints are trusted. Only the end of the last segment is read, to
notice files that were changed since. Otherwise everything above the recovery point is read: intact
batches stay, the rest is truncated, and the index entries, epochs, producers and aborted
transactions found in the batches replace those in the files beside the log. The offset index tells
the position of the recovery point, because its entries were synced before the recovery point moved.

Damage below the recovery point is not searched here. Reads find it (see `reading.verification`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from millstream.log.compaction import replacement
from millstream.log.epoch_cache import EpochCache
from millstream.log.files import FileCache
from millstream.log.index.rebuild import ensure_indexes, indexes_sane
from millstream.log.producers.producer_state import ProducerState
from millstream.log.producers.replay import apply_batch, rebuild_transaction_index, replay
from millstream.log.producers.snapshot import ProducerSnapshots
from millstream.log.reading.walk import DamagedLogError, entry_header, read_exactly, walk
from millstream.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, Segment, segment_name
from millstream.log.segment_files import number_of
from millstream.model.sentinel import RELATIVE_OFFSET_MAX
from millstream.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    iterate_batches,
    read_header,
)

_logger = logging.getLogger(__name__)

_SCAN_BYTES: Final = 1 << 20


class KnownOffsets(NamedTuple):
    """The offsets of a log in the checkpoints."""

    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    #: Whether the log was closed cleanly, so that the end offset is right.
    is_clean: bool


class LogSource(NamedTuple):
    """The folder of a log, and the offsets that are known before recovery."""

    files: FileCache
    directory: Path
    epochs: EpochCache
    #: Distance of index entries in bytes, for indexes that are rebuilt.
    interval: int
    #: Whether batches may skip offsets, as after compaction.
    has_gaps: bool


@dataclass(slots=True)
class LoadedLog:
    """A log as it was found on disk, or as it was repaired."""

    segments: list[Segment]
    snapshots: ProducerSnapshots
    #: None: loaded when first needed.
    producers: ProducerState | None
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


def load(source: LogSource, known: KnownOffsets) -> LoadedLog:
    """Load the log, repaired if its last shutdown was unclean. Raises OSError."""
    files, directory = source.files, source.directory
    disk = files.disk
    names = replacement.complete_or_undo(disk, directory)
    segments = [
        Segment(files, directory, base, disk.size(directory / segment_name(base, ".log")))
        for base in _offsets(names, LOG_SUFFIX)
    ]
    snapshots = ProducerSnapshots(disk, directory, _offsets(names, SNAPSHOT_SUFFIX))
    start = known.log_start_offset
    if segments:
        start = max(start, segments[0].base_offset)
    loaded = LoadedLog(segments, snapshots, None, start, known.log_end_offset, known.recovery_point)
    repair = _Repair(source, loaded)
    if known.is_clean:
        if not _ends_at(segments, start, known.log_end_offset, source.interval):
            _logger.warning("%s does not end at %d: recovering it", directory, known.log_end_offset)
            repair.run(is_point_known=False)
    elif (
        segments
        and indexes_sane(segments[-1])
        and _ends_at(segments, start, known.recovery_point, source.interval)
    ):
        repair.keep()
    else:
        repair.run(is_point_known=True)
    return loaded


def _offsets(names: list[str], suffix: str) -> list[int]:
    return sorted(
        int(name[: -len(suffix)])
        for name in names
        if name.endswith(suffix) and name[: -len(suffix)].isdecimal()
    )


def _ends_at(segments: list[Segment], start: int, end: int, interval: int) -> bool:
    """Return whether the last batch on disk is the one before offset `end`."""
    if not segments:
        return end == start
    last = segments[-1]
    if last.size == 0:
        return last.base_offset == end
    next_offset = -1
    try:
        ensure_indexes(last, interval)
        for _, header in walk(last, last.offset_index.floor(end), last.size):
            next_offset = header.next_offset
    except (DamagedLogError, OSError):
        return False
    return next_offset == end


class _Repair:
    """The repair of one log: makes `loaded` and the files agree with the intact batches."""

    __slots__ = ("_disk", "_epochs", "_loaded", "_source", "_state")

    def __init__(self, source: LogSource, loaded: LoadedLog) -> None:
        self._source = source
        self._disk = source.files.disk
        self._epochs = source.epochs
        self._loaded = loaded
        self._state = ProducerState()

    def keep(self) -> None:
        """Load a log that ends at its recovery point: no batch needs a check."""
        loaded = self._loaded
        loaded.log_end_offset = loaded.recovery_point
        # Its last entries may belong to markers that a power failure removed.
        loaded.segments[-1].transaction_index.keep_below(loaded.log_end_offset)
        loaded.snapshots.truncate_to(loaded.log_end_offset)
        loaded.producers = self._state = self._state_at(loaded.log_end_offset)
        if self._state.entries and not loaded.snapshots.offsets:
            # A log without snapshots counts as one that never had producers.
            loaded.snapshots.write(loaded.log_end_offset, self._state)

    def run(self, *, is_point_known: bool) -> None:
        """Check every batch above the recovery point, and truncate the log at the first damage.

        Without `is_point_known` the whole last segment is checked.
        """
        loaded = self._loaded
        segments = loaded.segments
        if not segments:
            self._end_at(loaded.log_start_offset)
            return
        point = max(loaded.recovery_point, loaded.log_start_offset)
        first = max(number_of(segments, point), 0)
        if not is_point_known:
            first = len(segments) - 1
            point = segments[first].base_offset
        end = self._recover_from(first, point)
        if end < loaded.recovery_point:
            _logger.error(
                "%s ends at %d, below its recovery point %d: durable records are missing",
                self._source.directory,
                end,
                loaded.recovery_point,
            )
            end = self._recover_from(len(segments) - 1, segments[-1].base_offset)
        self._end_at(end)

    def _recover_from(self, first: int, point: int) -> int:
        """Scan from segment number `first` on. Remove what follows damage. Returns the end."""
        segments = self._loaded.segments
        next_offset = -1
        for number in range(first, len(segments)):
            segment = segments[number]
            if number == first:
                start, next_offset = self._prepare(segment, point)
                self._state = self._state_at(next_offset)
                self._epochs.truncate_from(next_offset)
            elif segment.base_offset != next_offset:
                _logger.warning(
                    "%s does not start at offset %d, where the log continues",
                    segment.log.path,
                    next_offset,
                )
                self._remove_from(number)
                break
            else:
                start, next_offset = self._prepare(segment, segment.base_offset)
            self._prepare_aborted(number, next_offset)
            next_offset = self._scan(segment, start, next_offset)
            is_whole = self._disk.size(segment.log.path) == segment.size
            self._close_segment(segment, start)
            if not is_whole:
                self._remove_from(number + 1)
                break
        return next_offset

    def _prepare(self, segment: Segment, point: int) -> tuple[int, int]:
        """Return position and offset of the first batch to scan for all offsets from `point` on.

        Leaves both indexes in memory, with entries for the batches before that position.
        """
        if point > segment.base_offset and indexes_sane(segment):
            number = segment.offset_index.number_at(point - 1)
            if number >= 0:
                offset, position = segment.offset_index.lookup(number)
                header = entry_header(segment, offset, position)
                if header is not None:
                    segment.resume_indexes(number + 1, offset)
                    return self._advance(segment, position, header.base_offset, point)
        segment.start_indexes()
        return 0, segment.base_offset

    def _prepare_aborted(self, number: int, offset: int) -> None:
        """Load the transaction index below `offset`. The scan adds to it."""
        loaded = self._loaded
        segment = loaded.segments[number]
        index = segment.transaction_index
        if offset == segment.base_offset:
            index.start()
        elif not index.is_sane():
            rebuild_transaction_index(loaded.snapshots, loaded.segments, number, offset)
        index.open_memory()
        index.keep_below(offset)
        segment.transaction_index_checked = True

    def _advance(
        self, segment: Segment, start: int, next_offset: int, point: int
    ) -> tuple[int, int]:
        """Index the batches from `start` to `point` by their headers. Returns the new start."""
        try:
            for position, header in walk(segment, start, segment.size):
                if header.base_offset >= point:
                    break
                self._index(segment, position, header)
                start, next_offset = position + header.size, header.next_offset
        except DamagedLogError:
            _logger.warning("%s is damaged below its recovery point", segment.log.path)
        return start, next_offset

    def _index(self, segment: Segment, position: int, header: BatchHeader) -> None:
        segment.index_batch(
            position,
            header.size,
            header.last_offset,
            header.latest_timestamp,
            self._source.interval,
        )

    def _state_at(self, offset: int) -> ProducerState:
        """Return the producer state as of `offset`."""
        loaded = self._loaded
        state, start = loaded.snapshots.newest(offset)
        replay(state, loaded.segments, max(start, loaded.log_start_offset), offset)
        return state

    def _scan(self, segment: Segment, position: int, next_offset: int) -> int:
        """Apply the intact batches from `position` on. Returns the offset after them."""
        file, size, wanted = segment.log.get(), segment.size, _SCAN_BYTES
        while position < size:
            data = read_exactly(file, min(wanted, size - position), position)
            end, next_offset = self._apply_batches(segment, data, position, next_offset)
            if end == position:
                # Damage, or a batch longer than `data`.
                wanted = _batch_bytes(data)
                if wanted <= len(data) or wanted > size - position:
                    break
                continue
            position, wanted = end, _SCAN_BYTES
        segment.size = position
        return next_offset

    def _apply_batches(
        self, segment: Segment, data: bytes, start: int, next_offset: int
    ) -> tuple[int, int]:
        """Apply the intact batches of `data`, read at `start`. Returns end and next offset."""
        end = start
        try:
            for position, header in iterate_batches(data):
                if not self._follows(header, next_offset, segment):
                    break
                end = start + position + header.size
                next_offset = header.next_offset
                self._index(segment, start + position, header)
                self._apply(segment, data, position, header)
        except CorruptBatch as error:
            _logger.warning("%s after position %d: %s", segment.log.path, end, error.message)
        return end, next_offset

    def _follows(self, header: BatchHeader, next_offset: int, segment: Segment) -> bool:
        """Return whether the batch may follow at `next_offset`. No checksum covers its offset."""
        if header.base_offset == next_offset:
            return True
        is_gap = header.base_offset > next_offset and self._source.has_gaps
        return is_gap and header.last_offset - segment.base_offset <= RELATIVE_OFFSET_MAX

    def _apply(self, segment: Segment, data: bytes, position: int, header: BatchHeader) -> None:
        if header.producer_id >= 0:
            aborted = apply_batch(self._state, header, data, position)
            if aborted is not None:
                segment.transaction_index.append(aborted)
        if header.leader_epoch != self._epochs.latest:
            self._epochs.assign(header.leader_epoch, header.base_offset)

    def _close_segment(self, segment: Segment, start: int) -> None:
        file = segment.log.get()
        excess = file.size() - segment.size
        if excess:
            _logger.warning(
                "%s: truncated %d bytes after position %d that are no intact batch",
                segment.log.path,
                excess,
                segment.size,
            )
            file.truncate(segment.size)
            segment.offset_index.keep_below_position(segment.size)
        segment.hot_from = min(start, segment.size)
        segment.indexes_checked = True
        segment.seal()
        if len(segment.transaction_index):
            # The scan may have begun below the recovery point, where no flush syncs again.
            segment.transaction_index.handle.get().sync()

    def _remove_from(self, number: int) -> None:
        segments = self._loaded.segments
        for segment in segments[number:]:
            _logger.warning("%s is removed: it follows damage", segment.log.path)
            segment.close_files()
            for handle in segment.handles():
                self._disk.remove(handle.path)
        del segments[number:]

    def _end_at(self, end: int) -> None:
        """Set the log end offset to `end`, and write a snapshot of the producers there."""
        loaded = self._loaded
        if end < loaded.log_start_offset:
            self._remove_from(0)
            end = loaded.log_start_offset
        loaded.log_end_offset = end
        loaded.recovery_point = min(loaded.recovery_point, end)
        loaded.producers = self._state
        loaded.snapshots.truncate_to(end)
        if self._state.entries or loaded.snapshots.offsets:
            loaded.snapshots.write(end, self._state)


def _batch_bytes(data: bytes) -> int:
    """Return the size in the header at the start of `data`; 0 if the header is not whole."""
    return read_header(data).size if len(data) >= HEADER_BYTES else 0
