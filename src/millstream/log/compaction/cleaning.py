"""One cleaning of one log: the part that runs in a thread, over files that no longer change.

Owns reading the sealed segments with its own handles, filling the offset map, and writing cleaned
segments. `batch_compaction` decides about each batch. The cleaner, on the event loop, chooses the
log and the range, and swaps the result in.

Files: `<base offset>.log|.index|.timeindex|.txnindex.cleaned` beside the segments to replace.
When `rewrite` returns they are on stable storage under these names. After a crash, the next load of
the log deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from millstream.env.disk import Buffer, Disk, File
from millstream.log.compaction.batch_compaction import (
    CompactionCounts,
    CompactionRules,
    Compactor,
    index_batch,
)
from millstream.log.compaction.cleaning_thread import CleaningThrottle
from millstream.log.compaction.offset_map import OffsetMap, slots_for
from millstream.log.compaction.replacement import CLEANED_SUFFIX, SWAP_SUFFIX
from millstream.log.files import FileCache
from millstream.log.producers.transaction_trace import TransactionTrace
from millstream.log.segment import Segment
from millstream.model.sentinel import RELATIVE_OFFSET_MAX
from millstream.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    iterate_batches,
    read_header,
)

_FILES_MAX: Final = 4
#: Size of a time index entry, which is larger than an offset index entry.
_INDEX_ENTRY_BYTES_MAX: Final = 12


class SourceSegment(NamedTuple):
    """A sealed segment as it was when the cleaning was planned."""

    base_offset: int
    next_base_offset: int
    size_bytes: int
    path: Path


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """What to clean. Made on the event loop and not changed later.

    `segments` are all sealed segments below `rules.round_end_offset`, in order.
    """

    directory: Path
    segments: Sequence[SourceSegment]
    first_dirty_offset: int
    rules: CompactionRules
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int


@dataclass(frozen=True, slots=True)
class CleaningLimits:
    """Memory that one cleaning may use."""

    dedupe_buffer_bytes: int = 128 * 1024 * 1024
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 * 1024


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """One cleaned segment for all of `sources`. Without `is_changed` it has the same content."""

    sources: Sequence[SourceSegment]
    base_offset: int
    path: Path
    bytes_read: int
    bytes_written: int
    counts: CompactionCounts
    is_changed: bool


class Cleaning:
    """Executes a plan: `build_map` once, then `rewrite` for each of `groups`, in order.

    The caller calls `claimed` or `discard` for each cleaned segment before the next, and `discard`
    at the end.
    """

    __slots__ = (
        "_disk",
        "_limits",
        "_plan",
        "_throttle",
        "_trace",
        "_unclaimed",
        "bytes_mapped",
        "known",
    )

    def __init__(
        self, plan: CleaningPlan, disk: Disk, limits: CleaningLimits, throttle: CleaningThrottle
    ) -> None:
        self._plan = plan
        self._disk = disk
        self._limits = limits
        self._throttle = throttle
        self.known = OffsetMap(3)
        self.bytes_mapped = 0
        #: State of the transactions up to the last rewritten batch.
        self._trace = TransactionTrace(plan.rules.aborted)
        #: The cleaned segment that the log has not taken over yet.
        self._unclaimed: Segment | None = None

    def build_map(self) -> None:
        """Fill `known` from the dirty segments, up to the end offset or until it is full."""
        start, rules = self._plan.first_dirty_offset, self._plan.rules
        slots = slots_for(
            rules.round_end_offset - start,
            self._limits.dedupe_buffer_bytes,
            self._limits.load_factor,
        )
        self.known = known = OffsetMap(slots, self._limits.load_factor)
        trace = TransactionTrace(rules.aborted)
        for segment in self._plan.segments:
            if segment.next_base_offset <= start:
                continue
            for view, batches in self._read(segment):
                self.bytes_mapped += len(view)
                for position, header in batches:
                    if header.next_offset <= start:
                        continue
                    batch = view[position : position + header.size]
                    if not index_batch(batch, header, known, start, rules, trace):
                        return
                    self._throttle.worked(header.count)
            known.end_offset = max(known.end_offset, segment.next_base_offset)

    def groups(self) -> list[list[SourceSegment]]:
        """Return groups of neighbouring segments below the end of the map that fit into one."""
        plan = self._plan
        groups: list[list[SourceSegment]] = []
        for segment in plan.segments:
            if segment.base_offset >= self.known.end_offset:
                break
            if groups and _fits(groups[-1], segment, plan):
                groups[-1].append(segment)
            else:
                groups.append([segment])
        return groups

    def rewrite(self, group: Sequence[SourceSegment]) -> CleanedGroup:
        """Write the compacted content of `group` as one cleaned segment, durably."""
        target = _cleaned_segment(self._disk, self._plan.directory, group[0].base_offset)
        compactor = Compactor(self.known, self._plan.rules, self._trace)
        self._unclaimed = target
        target.create(created_ms=0, jitter_ms=0)
        for segment in group:
            for view, batches in self._read(segment):
                self._copy(view, batches, compactor, target)
        for aborted in self._trace.pop_kept():
            target.transaction_index.append(aborted)
        target.seal()
        for handle in target.handles():
            if self._disk.exists(handle.path):
                handle.get().sync()
        self._disk.sync_dir(self._plan.directory)
        target.close_files()
        counts = compactor.counts
        bytes_read = sum(segment.size_bytes for segment in group)
        is_rewritten = counts.batches_rewritten + counts.batches_emptied > 0
        return CleanedGroup(
            sources=group,
            base_offset=target.base_offset,
            path=target.log.path,
            bytes_read=bytes_read,
            bytes_written=target.size,
            counts=counts,
            is_changed=len(group) > 1 or target.size != bytes_read or is_rewritten,
        )

    def claimed(self) -> None:
        """Note that the log has taken over the last cleaned segment."""
        self._unclaimed = None

    def discard(self) -> None:
        """Delete the last cleaned segment unless the log has taken it over."""
        target, self._unclaimed = self._unclaimed, None
        if target is None:
            return
        target.close_files()
        # The `.log` first: without it, recovery ignores a staged segment.
        for handle in target.handles():
            self._disk.remove(handle.path)
            self._disk.remove(handle.path.with_suffix(SWAP_SUFFIX))

    def _copy(
        self,
        view: memoryview,
        batches: Sequence[tuple[int, BatchHeader]],
        compactor: Compactor,
        target: Segment,
    ) -> None:
        """Append the compacted `batches` to the cleaned segment, in one write."""
        left: list[Buffer] = []
        position = target.size
        for start, header in batches:
            result = compactor.compact(view[start : start + header.size], header)
            self._throttle.worked(header.count)
            if result is None:
                continue
            size = len(result)
            target.index_batch(
                position,
                size,
                header.last_offset,
                read_header(result).latest_timestamp,
                self._plan.index_interval_bytes,
            )
            left.append(result)
            position += size
        if left:
            target.log.get().write(b"".join(left), target.size)
            self._throttle.moved(position - target.size)
            target.size = position

    def _read(
        self, segment: SourceSegment
    ) -> Iterator[tuple[memoryview, list[tuple[int, BatchHeader]]]]:
        """Yield chunks of whole batches. The next chunk overwrites the buffer of the last."""
        file = self._disk.open(segment.path, readonly=True)
        try:
            for view, batches in _chunks(file, segment, self._limits.io_buffer_bytes):
                self._throttle.moved(len(view))
                yield view, batches
        finally:
            file.close()


def _chunks(
    file: File, segment: SourceSegment, buffer_bytes: int
) -> Iterator[tuple[memoryview, list[tuple[int, BatchHeader]]]]:
    buffer = bytearray(max(buffer_bytes, HEADER_BYTES))
    position = 0
    while position < segment.size_bytes:
        view = memoryview(buffer)[: segment.size_bytes - position]
        if file.pread_into(view, position) < len(view) or len(view) < HEADER_BYTES:
            raise CorruptBatch(f"{segment.path} ends in the middle of a batch at byte {position}")
        batches = list(iterate_batches(view, verify_crc=False))
        if not batches:
            size = read_header(view).size
            if size > segment.size_bytes - position:
                raise CorruptBatch(f"{segment.path} ends before its batch at byte {position} does")
            buffer = bytearray(size)
            continue
        last, header = batches[-1]
        yield view[: last + header.size], batches
        position += last + header.size


def _fits(group: Sequence[SourceSegment], segment: SourceSegment, plan: CleaningPlan) -> bool:
    members = (*group, segment)
    return (
        sum(one.size_bytes for one in members) <= plan.segment_bytes
        and sum(_index_bytes_max(one, plan) for one in members) <= plan.segment_index_bytes
        and segment.next_base_offset - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
    )


def _index_bytes_max(segment: SourceSegment, plan: CleaningPlan) -> int:
    """Return an upper bound of the index size. Its files may be missing, so the size decides."""
    interval = max(plan.index_interval_bytes, HEADER_BYTES)
    return _INDEX_ENTRY_BYTES_MAX * (segment.size_bytes // interval + 1)


def _cleaned_segment(disk: Disk, directory: Path, base_offset: int) -> Segment:
    segment = Segment(FileCache(disk, _FILES_MAX), directory, base_offset, 0)
    for handle in segment.handles():
        handle.path = handle.path.with_name(handle.path.name + CLEANED_SUFFIX)
    return segment
