"""From files to segments: loading a log, and repairing one after an unclean stop.

After a clean stop the checkpoints are believed; only the end of the last segment is looked at, to
notice files that were changed since. Otherwise everything above the recovery point is read: whole
intact batches are kept, the rest is cut, and what was learned on the way (index entries, epochs,
producers, aborted transactions) replaces what the files beside the log claim. Where in its segment
the recovery point is comes from the offset index, whose entries below it were synced before it was
moved.

Not here: damage below the recovery point. That is found when it is read (see `reader`).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from millstream.env.disk import Disk
from millstream.log import reader
from millstream.log.compaction import replacement
from millstream.log.epoch_cache import EpochCache
from millstream.log.files import FileCache
from millstream.log.producers import producer_replay
from millstream.log.producers.producer_state import ProducerState
from millstream.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, Segment, segment_name
from millstream.model.sentinel import RELATIVE_OFFSET_MAX
from millstream.records.batch import HEADER_BYTES, BatchHeader, CorruptBatch, iterate_batches
from millstream.records.batch import read_header as _read_header

_logger = logging.getLogger(__name__)

_SCAN_BYTES: Final = 1 << 20


class KnownOffsets(NamedTuple):
    """What the checkpoints say."""

    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    #: Whether the log was closed cleanly, so that the end offset can be believed.
    is_clean: bool


@dataclass(slots=True)
class Loaded:
    segments: list[Segment]
    snapshots: list[int]
    #: None: to be loaded when first needed.
    producers: ProducerState | None
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


def load(
    files: FileCache,
    directory: Path,
    epochs: EpochCache,
    known: KnownOffsets,
    interval: int,
    *,
    has_gaps: bool,
) -> Loaded:
    """The log in `directory`. `has_gaps`: its batches may skip offsets, as after compaction."""
    disk = files.disk
    names = replacement.settle(disk, directory)
    segments = [
        Segment(files, directory, base, disk.size(directory / segment_name(base, ".log")))
        for base in _offsets(names, LOG_SUFFIX)
    ]
    snapshots = _offsets(names, SNAPSHOT_SUFFIX)
    start = known.log_start_offset
    if segments:
        start = max(start, segments[0].base_offset)
    loaded = Loaded(segments, snapshots, None, start, known.log_end_offset, known.recovery_point)
    repair = _Repair(disk, directory, loaded, epochs, interval, has_gaps)
    if known.is_clean:
        if not _ends_at(segments, start, known.log_end_offset, interval):
            _logger.warning("%s does not end at %d: recovering it", directory, known.log_end_offset)
            repair.run(is_point_known=False)
    elif (
        segments
        and reader.indexes_sane(segments[-1])
        and _ends_at(segments, start, known.recovery_point, interval)
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
    """Whether the last batch on disk is the one before offset `end`."""
    if not segments:
        return end == start
    last = segments[-1]
    if last.size == 0:
        return last.base_offset == end
    next_offset = -1
    try:
        reader.ensure_indexes(last, interval)
        for _, header in reader.walk(last, last.offset_index.floor(end), last.size):
            next_offset = header.next_offset
    except (reader.DamagedLogError, OSError):
        return False
    return next_offset == end


class _Repair:
    """The repair of one log: brings `loaded` in line with what is intact on disk, and the disk
    with it."""

    __slots__ = ("_directory", "_disk", "_epochs", "_has_gaps", "_interval", "_loaded", "_state")

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        loaded: Loaded,
        epochs: EpochCache,
        interval: int,
        has_gaps: bool,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._loaded = loaded
        self._epochs = epochs
        self._interval = interval
        self._has_gaps = has_gaps
        self._state = ProducerState()

    def keep(self) -> None:
        """Nothing follows the recovery point: there is nothing to check."""
        loaded = self._loaded
        loaded.log_end_offset = loaded.recovery_point
        # Its last entries may be of markers that a power cut has taken.
        loaded.segments[-1].transaction_index.keep_below(loaded.log_end_offset)
        self._drop_snapshots_above(loaded.log_end_offset)
        loaded.producers = self._state = self._state_at(loaded.log_end_offset)
        if self._state.entries and not loaded.snapshots:
            # A log without any is taken for one that never had producers.
            self._write_snapshot(loaded.log_end_offset)

    def run(self, *, is_point_known: bool) -> None:
        loaded = self._loaded
        segments = loaded.segments
        if not segments:
            self._settle(loaded.log_start_offset)
            return
        point = max(loaded.recovery_point, loaded.log_start_offset)
        first = max(bisect_right(segments, point, key=lambda s: s.base_offset) - 1, 0)
        if not is_point_known:
            first = len(segments) - 1
            point = segments[first].base_offset
        end = self._recover_from(first, point)
        if end < loaded.recovery_point:
            _logger.error(
                "%s ends at %d, below its recovery point %d: durable records are missing",
                self._directory,
                end,
                loaded.recovery_point,
            )
            end = self._recover_from(len(segments) - 1, segments[-1].base_offset)
        self._settle(end)

    def _recover_from(self, first: int, point: int) -> int:
        """Scan from segment number `first` on and drop what follows damage. Returns the end."""
        segments = self._loaded.segments
        next_offset = -1
        for number in range(first, len(segments)):
            segment = segments[number]
            if number == first:
                start, next_offset = self._prepare(segment, point)
                self._state = self._state_at(next_offset)
                self._epochs.truncate_from(next_offset)
            elif segment.base_offset != next_offset:
                _logger.warning("%s does not follow on offset %d", segment.log.path, next_offset)
                self._drop_from(number)
                break
            else:
                start, next_offset = self._prepare(segment, segment.base_offset)
            self._prepare_aborted(number, next_offset)
            next_offset = self._scan(segment, start, next_offset)
            is_whole = self._disk.size(segment.log.path) == segment.size
            self._close_segment(segment, start)
            if not is_whole:
                self._drop_from(number + 1)
                break
        return next_offset

    def _prepare(self, segment: Segment, point: int) -> tuple[int, int]:
        """Where to scan from so as to see all from `point` on, and the offset there.

        Both indexes are left in memory and tell of what lies before.
        """
        if point > segment.base_offset and reader.indexes_sane(segment):
            number = segment.offset_index.number_at(point - 1)
            if number >= 0:
                offset, position = segment.offset_index.lookup(number)
                header = reader.entry_header(segment, offset, position)
                if header is not None:
                    segment.resume_indexes(number + 1, offset)
                    return self._advance(segment, position, header.base_offset, point)
        segment.start_indexes()
        return 0, segment.base_offset

    def _prepare_aborted(self, number: int, offset: int) -> None:
        """Have the aborted transactions below `offset` in memory, for the scan to add to them."""
        loaded = self._loaded
        segment = loaded.segments[number]
        index = segment.transaction_index
        if offset == segment.base_offset:
            index.start()
        elif not index.is_sane():
            producer_replay.rebuild_transaction_index(
                self._disk, self._directory, loaded.segments, loaded.snapshots, number, offset
            )
        index.open_memory()
        index.keep_below(offset)
        segment.transaction_index_checked = True

    def _advance(
        self, segment: Segment, start: int, next_offset: int, point: int
    ) -> tuple[int, int]:
        """From a batch start below `point` to the first batch that is not, by headers alone."""
        try:
            for position, header in reader.walk(segment, start, segment.size):
                if header.base_offset >= point:
                    break
                self._index(segment, position, header)
                start, next_offset = position + header.size, header.next_offset
        except reader.DamagedLogError:
            _logger.warning("%s is damaged below its recovery point", segment.log.path)
        return start, next_offset

    def _index(self, segment: Segment, position: int, header: BatchHeader) -> None:
        segment.note_batch(
            position, header.size, header.last_offset, header.latest_timestamp, self._interval
        )

    def _state_at(self, offset: int) -> ProducerState:
        """The producers as of `offset`."""
        loaded = self._loaded
        usable = [at for at in loaded.snapshots if at <= offset]
        state, start = producer_replay.newest_snapshot(self._disk, self._directory, usable)
        producer_replay.replay(state, loaded.segments, max(start, loaded.log_start_offset), offset)
        return state

    def _scan(self, segment: Segment, position: int, next_offset: int) -> int:
        """Take intact batches from `position` on into the segment; the offset after them."""
        file, size, wanted = segment.log.get(), segment.size, _SCAN_BYTES
        while position < size:
            data = reader.read_exactly(file, min(wanted, size - position), position)
            end, next_offset = self._take(segment, data, position, next_offset)
            if end == position:
                # Damage, or a batch longer than what was read.
                wanted = batch_bytes(data)
                if wanted <= len(data) or wanted > size - position:
                    break
                continue
            position, wanted = end, _SCAN_BYTES
        segment.size = position
        return next_offset

    def _take(self, segment: Segment, data: bytes, start: int, next_offset: int) -> tuple[int, int]:
        end = start
        try:
            for position, header in iterate_batches(data):
                if not self._follows(header, next_offset, segment):
                    break
                end = start + position + header.size
                next_offset = header.next_offset
                self._index(segment, start + position, header)
                self._note(segment, data, position, header)
        except CorruptBatch as error:
            _logger.warning("%s after position %d: %s", segment.log.path, end, error.message)
        return end, next_offset

    def _follows(self, header: BatchHeader, next_offset: int, segment: Segment) -> bool:
        """Whether the batch may stand where `next_offset` is due. No checksum covers its offset."""
        if header.base_offset == next_offset:
            return True
        is_gap = header.base_offset > next_offset and self._has_gaps
        return is_gap and header.last_offset - segment.base_offset <= RELATIVE_OFFSET_MAX

    def _note(self, segment: Segment, data: bytes, position: int, header: BatchHeader) -> None:
        if header.producer_id >= 0:
            aborted = producer_replay.take_in(self._state, header, data, position)
            if aborted is not None:
                segment.transaction_index.append(aborted)
        if header.leader_epoch != self._epochs.latest:
            self._epochs.assign(header.leader_epoch, header.base_offset)

    def _close_segment(self, segment: Segment, start: int) -> None:
        file = segment.log.get()
        excess = file.size() - segment.size
        if excess:
            _logger.warning(
                "%s: cut %d bytes after position %d that are no whole intact batch",
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
            # The scan may have begun below the recovery point.
            segment.transaction_index.handle.get().sync()

    def _drop_from(self, number: int) -> None:
        segments = self._loaded.segments
        for segment in segments[number:]:
            _logger.warning("%s is dropped: it follows damage", segment.log.path)
            segment.close_files()
            for handle in segment.handles():
                self._disk.remove(handle.path)
        del segments[number:]

    def _settle(self, end: int) -> None:
        loaded = self._loaded
        if end < loaded.log_start_offset:
            self._drop_from(0)
            end = loaded.log_start_offset
        loaded.log_end_offset = end
        loaded.recovery_point = min(loaded.recovery_point, end)
        loaded.producers = self._state
        self._drop_snapshots_above(end)
        if self._state.entries or loaded.snapshots:
            self._write_snapshot(end)

    def _drop_snapshots_above(self, end: int) -> None:
        """Those of a tail that was lost would be believed once the log has grown past them."""
        snapshots = self._loaded.snapshots
        for offset in snapshots:
            if offset > end:
                self._disk.remove(self._directory / segment_name(offset, SNAPSHOT_SUFFIX))
        snapshots[:] = [offset for offset in snapshots if offset <= end]

    def _write_snapshot(self, end: int) -> None:
        snapshots = self._loaded.snapshots
        producer_replay.write_snapshot(self._disk, self._directory, end, self._state)
        snapshots[:] = sorted({*snapshots, end})


def batch_bytes(data: bytes) -> int:
    """How long the batch at the start of `data` claims to be; 0 if its header is not whole."""
    return _read_header(data).size if len(data) >= HEADER_BYTES else 0
