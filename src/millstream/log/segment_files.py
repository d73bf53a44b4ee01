"""The segments of one log, in offset order, with the changes of its set of files.

Owns creating, rolling, truncating, retiring and replacing segments. What a batch means and which
offsets may be removed is decided by `PartitionLog`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from millstream.log.compaction import replacement
from millstream.log.directory.log_folder import LogFolder
from millstream.log.flush.unsynced import UnsyncedChanges
from millstream.log.index.rebuild import ensure_indexes, reindex_tail
from millstream.log.reading.search import locate
from millstream.log.reading.walk import header_at
from millstream.log.segment import DELETED_SUFFIX, LOG_SUFFIX, Segment, segment_name
from millstream.model.config import TopicConfig
from millstream.model.sentinel import RELATIVE_OFFSET_MAX


class SegmentFiles:
    """The segments of one log. Methods raise OSError where the disk fails."""

    __slots__ = ("_folder", "_size_bytes", "_unsynced", "active", "loaded")

    def __init__(self, folder: LogFolder, unsynced: UnsyncedChanges) -> None:
        self._folder = folder
        self._unsynced = unsynced
        #: Ordered by base offset; None until loaded. Empty before the first append.
        self.loaded: list[Segment] | None = None
        #: The last segment once it is open for appends.
        self.active: Segment | None = None
        #: Size of all segments when they were unloaded; -1 if unknown.
        self._size_bytes = -1

    def restore(self, segments: list[Segment]) -> list[Segment]:
        """Take over the segments that were found on disk."""
        self.loaded = segments
        self._size_bytes = -1
        return segments

    def size_bytes(self) -> int:
        """Return the bytes of all `.log` files. Lists the folder if the log is not loaded."""
        if self.loaded is not None:
            return sum(segment.size for segment in self.loaded)
        if self._size_bytes < 0:
            disk, path = self._folder.storage.disk, self._folder.path
            names = disk.listdir(path) if self._folder.exists else []
            self._size_bytes = sum(
                disk.size(path / name) for name in names if name.endswith(LOG_SUFFIX)
            )
        return self._size_bytes

    def unload(self) -> None:
        """Forget the segments, which have no unwritten state, and close their files."""
        self._size_bytes = self.size_bytes()
        self.close()

    def close(self) -> None:
        """Close all files and forget the segments."""
        for segment in self.loaded or ():
            segment.close_files()
        self.loaded = self.active = None

    # Appending

    def open_active(self, segments: list[Segment], end: int, config: TopicConfig) -> Segment:
        """Open the last segment for appends, or create the first one at offset `end`."""
        if not segments:
            segments.append(self.create(end, config))
        else:
            last = segments[-1]
            ensure_indexes(last, config.index_interval_bytes)
            last.open_for_append(self._folder.storage.clock.wall_ms(), self._jitter_ms(config))
            if last.size:
                last.first_timestamp = header_at(last, 0, last.size).max_timestamp
        self.active = segments[-1]
        return segments[-1]

    def create(self, base_offset: int, config: TopicConfig) -> Segment:
        """Create the files of a new segment. Does not add it."""
        storage = self._folder.storage
        segment = Segment(storage.files, self._folder.path, base_offset, 0)
        segment.create(storage.clock.wall_ms(), self._jitter_ms(config))
        self._unsynced.has_names = True
        return segment

    def _jitter_ms(self, config: TopicConfig) -> int:
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        return self._folder.storage.random.randrange(jitter_ms) if jitter_ms > 0 else 0

    def roll(self, segments: list[Segment], end: int, config: TopicConfig) -> Segment:
        """Seal the active segment and start the next one at offset `end`."""
        # In this order the old segment stays fit for appends after a failure.
        new = self.create(end, config)
        segments[-1].seal()
        segments.append(new)
        self.active = new
        return new

    def must_roll(
        self, config: TopicConfig, size: int, last_offset: int, max_timestamp: int
    ) -> bool:
        """Return whether a batch of `size` bytes must go to a new segment."""
        active = self.active
        if active is None or not active.size:
            return False
        if active.size > config.segment_bytes - size:
            return True
        first = active.first_timestamp
        if first is not None and first >= 0 and max_timestamp >= 0:
            waited_ms = max_timestamp - first
        else:
            waited_ms = self._folder.storage.clock.wall_ms() - active.created_ms
        segment_ms = config.segment_ms
        if "compact" in config.cleanup_policy:
            # Compaction skips the active segment, so its age must stay below the lag.
            segment_ms = min(segment_ms, config.max_compaction_lag_ms)
        return (
            waited_ms > segment_ms - active.jitter_ms
            or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            or active.indexes_full(config.segment_index_bytes)
        )

    # Removing

    def truncate_to(self, segments: list[Segment], offset: int, interval: int) -> int:
        """Remove all batches from `offset` on. Returns the new log end offset.

        `offset` must be above the first segment's base offset.
        """
        self.remove_from(segments, number_of(segments, offset) + 1)
        last = segments[-1]
        last.open_for_append(last.created_ms, last.jitter_ms)
        found = locate(last, offset)
        if found is not None:
            position, header = found
            last.truncate(position)
            reindex_tail(last, interval)
            offset = min(offset, header.base_offset)
        self.active = last
        return offset

    def remove_from(self, segments: list[Segment], number: int) -> None:
        """Remove the segments from `number` on, with their files."""
        for segment in segments[number:]:
            segment.close_files()
            for handle in segment.handles():
                self._folder.storage.disk.remove(handle.path)
        del segments[number:]

    def start_over(self, segments: list[Segment], offset: int, config: TopicConfig) -> None:
        """Create an empty active segment at `offset` after all segments were removed."""
        segments.append(self.create(offset, config))
        self.active = segments[0]

    def retire(self, segments: list[Segment], first: int, count: int) -> list[Path]:
        """Rename the files of sealed segments to `.deleted` and forget the segments.

        Returns the renamed files.
        """
        retired = segments[first : first + count]
        paths = []
        for segment in retired:
            for handle in segment.handles():
                if self._folder.storage.disk.exists(handle.path):
                    handle.rename(handle.path.with_name(handle.path.name + DELETED_SUFFIX))
                    paths.append(handle.path)
        del segments[first : first + count]
        for segment in retired:
            # An open descriptor would keep the disk space of a removed file.
            segment.close_files()
        self._unsynced.has_names = True
        return paths

    # Compaction

    def stage(self, new: Sequence[int | Path]) -> None:
        """Rename cleaned segments, which must be synced, to `.swap`. May run in a thread. Blocks.

        From here on, recovery completes the replacement.
        """
        disk = self._folder.storage.disk
        replacement.stage(disk, self._folder.path, replacement.bases_of(new))

    def swap_in(self, segments: list[Segment], first: int, new: Sequence[int | Path]) -> None:
        """Insert staged segments at number `first`, where the old ones were retired."""
        storage, path = self._folder.storage, self._folder.path
        bases = replacement.bases_of(new)
        storage.disk.sync_dir(path)
        replacement.go_live(storage.disk, path, bases)
        for number, base in enumerate(bases):
            size = storage.disk.size(path / segment_name(base, LOG_SUFFIX))
            segments.insert(first + number, Segment(storage.files, path, base, size))
        self._unsynced.has_names = True

    def is_staged(self, new: Sequence[int | Path]) -> bool:
        """Return whether `stage` has run for all of these segments."""
        disk = self._folder.storage.disk
        return replacement.is_staged(disk, self._folder.path, replacement.bases_of(new))


def number_of(segments: Sequence[Segment], offset: int) -> int:
    """Return the number of the segment that `offset` belongs to; -1 before the first."""
    return bisect_right(segments, offset, key=_base_offset) - 1


def end_of(segments: Sequence[Segment], number: int, log_end_offset: int) -> int:
    """Return the offset after segment `number`."""
    following = number + 1
    return segments[following].base_offset if following < len(segments) else log_end_offset


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
