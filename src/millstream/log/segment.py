"""One segment of a partition: a `.log` file of record batches with its indexes.

Owns the files `<base offset, 20 digits>.log|.index|.timeindex|.txnindex`, appending to them, and
their state in memory. The `.txnindex` exists only if a transaction was aborted; "both indexes" are
the other two. The `.log` file has the batches one after the other, exactly as on the wire.
`log/reading/` reads and checks them; `SegmentFiles` decides when to roll.

Durability: `append` reaches the page cache in one write. Index entries stay in memory until
`write_indexes`. Nothing here syncs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from millstream.env.disk import Buffer
from millstream.log.files import FileCache, FileHandle
from millstream.log.index.offset_index import OffsetIndex
from millstream.log.index.time_index import TimeIndex
from millstream.log.index.transaction_index import TransactionIndex
from millstream.model.sentinel import NO_TIMESTAMP
from millstream.records.batch import BatchHeader

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
#: The files of one segment.
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


#: Most remembered batch starts: a sequential reader needs no index search.
_POSITIONS_MAX: Final = 64


def segment_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file: the base offset in 20 digits, and `suffix`."""
    return f"{base_offset:020d}{suffix}"


class Segment:
    """One segment: the offsets from `base_offset` up to the next segment's base offset."""

    __slots__ = (
        "base_offset",
        "bytes_since_index",
        "cold_verified",
        "created_ms",
        "damage",
        "first_timestamp",
        "hot_from",
        "index_distrusted",
        "indexes_checked",
        "jitter_ms",
        "log",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "positions",
        "size",
        "time_index",
        "transaction_index",
        "transaction_index_checked",
    )

    def __init__(self, files: FileCache, directory: Path, base_offset: int, size: int) -> None:
        name = f"{base_offset:020d}"
        self.base_offset = base_offset
        #: Bytes of whole batches in the `.log` file.
        self.size = size
        self.log: FileHandle = files.handle(directory / f"{name}{LOG_SUFFIX}")
        self.offset_index = OffsetIndex(
            files.handle(directory / f"{name}{INDEX_SUFFIX}"), base_offset
        )
        self.time_index = TimeIndex(
            files.handle(directory / f"{name}{TIME_INDEX_SUFFIX}"), base_offset
        )
        self.transaction_index = TransactionIndex(
            files.handle(directory / f"{name}{TRANSACTION_INDEX_SUFFIX}"), base_offset
        )
        #: False until the transaction index was checked or rebuilt.
        self.transaction_index_checked = False
        #: Largest timestamp, and the last offset of the first batch that holds it. None until
        #: `load_max_timestamp` reads the last entry of the time index.
        self.max_timestamp: int | None = None
        self.max_timestamp_offset = base_offset
        #: Largest timestamp of the first batch, from which rolling by time counts. None: unknown.
        self.first_timestamp: int | None = None
        self.created_ms = 0
        self.jitter_ms = 0
        self.bytes_since_index = 0
        #: False until both indexes were checked or rebuilt.
        self.indexes_checked = False
        #: Whether an index entry was found to be wrong. Prevents a second rebuild.
        self.index_distrusted = False
        #: This process appended or recovered the bytes [hot_from, size). Earlier bytes are
        #: checked when they are first read.
        self.hot_from = size
        #: Sorted, disjoint ranges below `hot_from` that were checked: start, end, and the offset
        #: after the last batch.
        self.cold_verified: list[tuple[int, int, int]] = []
        #: Positions of damaged batches that were logged.
        self.damage: set[int] = set()
        #: Offset -> position of the batch that starts there, for recent batches.
        self.positions: dict[int, int] = {}

    def create(self, created_ms: int, jitter_ms: int) -> None:
        """Create the files of a new segment and open it for appends."""
        file = self.log.create()
        if file.size():
            file.truncate(0)
        self.size = 0
        self.hot_from = 0
        self.start_indexes()
        self.transaction_index.start()
        self.indexes_checked = self.transaction_index_checked = True
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms

    def start_indexes(self) -> None:
        """Start both indexes empty, in memory."""
        self.offset_index.start()
        self.time_index.start()
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self.bytes_since_index = 0

    def resume_indexes(self, count: int, offset: int) -> None:
        """Continue both indexes in memory after the first `count` entries of the offset index.

        The last of these entries is for the batch that ends with `offset`."""
        self.offset_index.open_memory()
        self.offset_index.keep(count)
        self.time_index.open_memory()
        self.time_index.keep(self.time_index.count_below(offset + 1))
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        self.bytes_since_index = 0

    def append(
        self, data: Buffer, base_offset: int, last_offset: int, max_timestamp: int, interval: int
    ) -> None:
        """Write one batch at the end. An OSError changes nothing but the end of the file."""
        position = self.size
        handle = self.log
        handle.used = True
        (handle.file or handle.get()).write(data, position)
        size = len(data)
        self.size = position + size
        self.index_batch(position, size, last_offset, max_timestamp, interval)
        positions = self.positions
        if len(positions) >= _POSITIONS_MAX:
            positions.clear()
        positions[base_offset] = position

    def index_batch(
        self, position: int, size: int, last_offset: int, max_timestamp: int, interval: int
    ) -> None:
        """Add a batch that is in the file to the indexes, if an entry is due."""
        if max_timestamp > self.max_timestamp:  # type: ignore[operator]  # known when appending
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        if self.bytes_since_index > interval:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)  # type: ignore[arg-type]
            self.bytes_since_index = 0
        self.bytes_since_index += size

    def append_many(
        self, data: Buffer, batches: Sequence[tuple[int, BatchHeader]], interval: int
    ) -> None:
        """Write several batches, given with their positions in `data`, at the end."""
        start = self.size
        self.log.get().write(data, start)
        self.size = start + len(data)
        for position, header in batches:
            self.index_batch(
                start + position, header.size, header.last_offset, header.latest_timestamp, interval
            )
            self.remember(header.base_offset, start + position)

    def undo_append(self) -> None:
        """Truncate the bytes that a failed `append` left after the last whole batch."""
        self.log.get().truncate(self.size)

    def truncate(self, size: int) -> None:
        """Truncate the file at a batch boundary. Only while open for appends.

        The caller must then call `reindex_tail` for the batches after the last index entry."""
        self.log.get().truncate(size)
        self.size = size
        self.hot_from = min(self.hot_from, size)
        self.cold_verified.clear()
        self.positions.clear()
        self.offset_index.keep_below_position(size)
        count = len(self.offset_index)
        covered = self.offset_index.lookup(count - 1)[0] if count else self.base_offset - 1
        self.resume_indexes(count, covered)

    def remember(self, offset: int, position: int) -> None:
        """Remember for the next reader that the batch of `offset` starts at `position`."""
        if len(self.positions) >= _POSITIONS_MAX:
            self.positions.clear()
        self.positions[offset] = position

    def open_for_append(self, created_ms: int, jitter_ms: int) -> None:
        """Open a loaded segment for appends: load its indexes into memory."""
        self.offset_index.open_memory()
        self.time_index.open_memory()
        self.transaction_index.open_memory()
        self.load_max_timestamp()
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms

    def load_max_timestamp(self) -> int:
        """Return the largest timestamp, read from the time index if needed."""
        if self.max_timestamp is None:
            self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        return self.max_timestamp

    def note_last_timestamp(self) -> None:
        """Add the largest timestamp to the time index, as the last entry of a sealed segment."""
        if self.max_timestamp is not None and self.max_timestamp >= 0:
            self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)

    def write_indexes(self) -> None:
        """Write both indexes to their files, in the page cache."""
        self.offset_index.write_out()
        self.time_index.write_out()

    @property
    def indexes_written(self) -> bool:
        return (
            self.offset_index.is_written
            and self.time_index.is_written
            and self.transaction_index.is_written
        )

    def seal(self) -> None:
        """End appending: write the indexes to their files and free their memory."""
        self.note_last_timestamp()
        self.offset_index.seal()
        self.time_index.seal()
        self.transaction_index.seal()

    def indexes_full(self, index_bytes_max: int) -> bool:
        """Return whether the next entry of an index may exceed `index_bytes_max`."""
        return (
            len(self.offset_index) * 8 + 8 > index_bytes_max
            or len(self.time_index) * 12 + 24 > index_bytes_max
        )

    def handles(self) -> tuple[FileHandle, ...]:
        """Return the handles of all files. The transaction index may have no file."""
        return (
            self.log,
            self.offset_index.handle,
            self.time_index.handle,
            self.transaction_index.handle,
        )

    def close_files(self) -> None:
        for handle in self.handles():
            handle.close()
