"""One segment of a partition: a `.log` file of record batches with its indexes.

Owns the files `<base offset, 20 digits>.log|.index|.timeindex|.txnindex`, appending to them, and
what is known of them in memory. The last of them is there only if a transaction was aborted; the
other two are what "both indexes" means here. Batches lie end to end in the `.log` file exactly as
on the wire. Reading and checking what is stored is `reader`; deciding when to roll is
`PartitionLog`.

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
#: The files that live and die with a segment.
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


#: Where recent batches start, remembered so that a sequential reader pays for no index search.
_POSITIONS_MAX: Final = 64


def segment_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


class Segment:
    """Offsets from `base_offset` up to the next segment's base offset."""

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
        #: False until it passed its sanity check or was rebuilt.
        self.transaction_index_checked = False
        #: Largest timestamp and the last offset of the first batch that holds it. Of a segment
        #: that is not appended to it is the time index's last entry: see `load_max_timestamp`.
        self.max_timestamp: int | None = None
        self.max_timestamp_offset = base_offset
        #: Largest timestamp of the first batch: time-based rolling counts from it. None: unknown.
        self.first_timestamp: int | None = None
        self.created_ms = 0
        self.jitter_ms = 0
        self.bytes_since_index = 0
        #: False until the indexes passed their sanity check or were rebuilt.
        self.indexes_checked = False
        #: Whether an entry was found to be wrong, so that no second rebuild is tried.
        self.index_distrusted = False
        #: The bytes [hot_from, size) were checked by this process, when they were appended or
        #: recovered. What lies before is checked when it is first read.
        self.hot_from = size
        #: Sorted, disjoint ranges below `hot_from` that were checked since: start, end, and the
        #: offset after the last batch.
        self.cold_verified: list[tuple[int, int, int]] = []
        #: Positions of damaged batches that were reported.
        self.damage: set[int] = set()
        #: offset -> position of the batch that starts there, for a few recent ones.
        self.positions: dict[int, int] = {}

    def create(self, created_ms: int, jitter_ms: int) -> None:
        """Make the files of a new segment, to be appended to."""
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
        """Begin both indexes anew, in memory."""
        self.offset_index.start()
        self.time_index.start()
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self.bytes_since_index = 0

    def resume_indexes(self, count: int, offset: int) -> None:
        """Go on, in memory, after the offset index's first `count` entries, the last of which is
        for the batch that ends with `offset`."""
        self.offset_index.open_memory()
        self.offset_index.keep(count)
        self.time_index.open_memory()
        self.time_index.keep(self.time_index.count_below(offset + 1))
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        self.bytes_since_index = 0

    def append(
        self, data: Buffer, base_offset: int, last_offset: int, max_timestamp: int, interval: int
    ) -> None:
        """Write one batch at the end. On OSError nothing is changed but the file's tail."""
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
        """Take a batch that is in the file into the indexes."""
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
        """Cut what a failed `append` left behind the last whole batch."""
        self.log.get().truncate(self.size)

    def truncate(self, size: int) -> None:
        """Cut the file at a batch boundary. Only while open for appends; `reader.resume` must
        follow, to learn again what the last index entry does not cover."""
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
        """Note for the next reader that the batch for `offset` starts at `position`."""
        if len(self.positions) >= _POSITIONS_MAX:
            self.positions.clear()
        self.positions[offset] = position

    def open_for_append(self, created_ms: int, jitter_ms: int) -> None:
        """Get a loaded segment ready for `append`: its indexes move to memory."""
        self.offset_index.open_memory()
        self.time_index.open_memory()
        self.transaction_index.open_memory()
        self.load_max_timestamp()
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms

    def load_max_timestamp(self) -> int:
        if self.max_timestamp is None:
            self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        return self.max_timestamp

    def note_last_timestamp(self) -> None:
        """Let the last time index entry tell the largest timestamp, as it must in a closed one."""
        if self.max_timestamp is not None and self.max_timestamp >= 0:
            self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)

    def write_indexes(self) -> None:
        """Bring both index files up to date in the page cache."""
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
        """End appending: indexes go to their files and out of memory."""
        self.note_last_timestamp()
        self.offset_index.seal()
        self.time_index.seal()
        self.transaction_index.seal()

    def indexes_full(self, index_bytes_max: int) -> bool:
        return (
            len(self.offset_index) * 8 + 8 > index_bytes_max
            or len(self.time_index) * 12 + 24 > index_bytes_max
        )

    def handles(self) -> tuple[FileHandle, ...]:
        """Of all its files; that of the transaction index may stand for none."""
        return (
            self.log,
            self.offset_index.handle,
            self.time_index.handle,
            self.transaction_index.handle,
        )

    def close_files(self) -> None:
        for handle in self.handles():
            handle.close()
