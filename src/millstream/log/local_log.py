"""A partition's segments as files: loading, rolling, flushing, closing.

Owns the list of segments, the snapshots and the epoch checkpoint that lie beside them, and the
recovery point. `PartitionLog` builds on it what the records mean.

A log is light until it is touched. After a clean stop its offsets come from the checkpoints and
nothing of it is listed or opened before the first append or read; its directory is made by the
first append.

What is on disk, at any instant:
- an append is in the page cache when it returns, and survives a killed process;
- everything below `recovery_point` is on stable storage, with the index entries, the epochs and
  the producer snapshot that go with it: the recovery point moves only after all of that was synced;
- what is above the recovery point is checked batch by batch after an unclean stop.

All methods run on the event loop's thread, except `FlushTicket.run`.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Final

from millstream.log import reader, recovery
from millstream.log.directory import checkpoint
from millstream.log.directory.partition_metadata import PARTITION_METADATA, encode_topic_id
from millstream.log.epoch_cache import EpochCache
from millstream.log.files import FileCache
from millstream.log.flush import FlushTicket
from millstream.log.producers import producer_replay
from millstream.log.producers.producer_state import ProducerState
from millstream.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, Segment, segment_name
from millstream.log.storage import Storage
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import INT64_MAX
from millstream.model.topic import TopicId, TopicPartition

_logger = logging.getLogger(__name__)

#: Beside those at segment starts, a snapshot is taken by a flush after this many bytes, so that
#: recovery need not look far behind the recovery point for producers.
_SNAPSHOT_INTERVAL_BYTES: Final = 1 << 20
#: A flush leaves fewer index entries than this in memory alone. Recovery would have to scan the
#: bytes they cover, and syncing both indexes with every group commit would cost three times.
_UNWRITTEN_ENTRIES_MAX: Final = 512
#: `flush.ms` and `flush.messages` of a topic that leaves flushing to the system.
FLUSH_NEVER: Final = INT64_MAX


class LocalLog:
    __slots__ = (
        "_active",
        "_assigned_epoch",
        "_epochs",
        "_exists",
        "_generation",
        "_is_dirty",
        "_is_name_unsynced",
        "_producers",
        "_segments",
        "_size_hint",
        "_snapshot_size",
        "_snapshots",
        "_storage",
        "_tickets",
        "_unsynced_paths",
        "checkpointed_point",
        "config",
        "dirty_since_ms",
        "failure",
        "is_recovered",
        "log_end_offset",
        "log_start_offset",
        "next_expiry_ms",
        "recovery_point",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        storage: Storage,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        *,
        exists: bool,
        is_recovered: bool,
    ) -> None:
        self._storage = storage
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        #: The first offset a reader may ask for. Only grows, but for `truncate_fully_and_start_at`.
        self.log_start_offset = 0
        #: The offset of the next record.
        self.log_end_offset = 0
        #: Everything below is on stable storage.
        self.recovery_point = 0
        #: The recovery point that the checkpoint file holds, or less.
        self.checkpointed_point = 0
        #: Whether what is on disk is known to be whole: False after an unclean stop until `load`.
        self.is_recovered = is_recovered
        #: Whether the directory is there.
        self._exists = exists
        #: Ordered by base offset; None while nothing was loaded. Empty before the first append.
        self._segments: list[Segment] | None = None
        #: The last segment once it is ready for appends, with epochs and producers loaded.
        self._active: Segment | None = None
        self._epochs: EpochCache | None = None
        #: An epoch assigned while `_epochs` was not loaded, or -1.
        self._assigned_epoch = -1
        self._producers: ProducerState | None = None
        #: Offsets of the snapshot files, ascending. Valid while loaded.
        self._snapshots: list[int] = []
        #: Size of the active segment when its last snapshot was taken.
        self._snapshot_size = 0
        #: Small files that were written and not synced.
        self._unsynced_paths: list[Path] = []
        #: Whether appends were made since the last `begin_flush`.
        self._is_dirty = False
        self.dirty_since_ms = 0
        #: Whether files were made or renamed since the directory was last synced.
        self._is_name_unsynced = False
        #: Flushes begun and not finished.
        self._tickets = 0
        #: Counts truncations: a flush begun before one says nothing about what came after.
        self._generation = 0
        self._size_hint = -1
        #: Why the log takes no more appends; None while it is healthy.
        self.failure: str | None = None
        #: No segment can expire before this time. 0: not known.
        self.next_expiry_ms = 0

    @property
    def directory(self) -> Path:
        return self._storage.path / str(self.topic_partition)

    @property
    def exists(self) -> bool:
        """Whether the folder is there: the first append makes it."""
        return self._exists

    @property
    def is_loaded(self) -> bool:
        return self._segments is not None

    @property
    def segments(self) -> list[Segment]:
        """All segments in order; loads them if need be. Not to be changed by callers."""
        segments = self._segments
        return segments if segments is not None else self.load()

    @property
    def epochs(self) -> EpochCache:
        if self._epochs is None:
            self._epochs = EpochCache(self._read_epochs() if self._exists else [])
            if self.is_recovered:
                self._apply_assigned_epoch(self._epochs)
        return self._epochs

    def _read_epochs(self) -> list[tuple[int, int]]:
        path = self.directory / checkpoint.LEADER_EPOCHS
        try:
            return checkpoint.read_epochs(self._storage.disk, path)
        except ValueError as error:
            # The records themselves are intact; where older epochs began is no longer known.
            _logger.error("%s; going on without the epochs that it held", error)
            return []

    def _apply_assigned_epoch(self, epochs: EpochCache) -> None:
        """Take in an epoch that was assigned before the cache and the log's end were known."""
        if self._assigned_epoch >= 0:
            epochs.drop_above(self._assigned_epoch)
            epochs.assign(self._assigned_epoch, self.log_end_offset)

    @property
    def producer_state(self) -> ProducerState:
        if self._producers is None:
            self._producers = self._state_at_end()
        return self._producers

    def _replayed_state(self) -> ProducerState:
        """The producers at the log's end, where snapshots may have been cut off."""
        state, start = producer_replay.newest_snapshot(
            self._storage.disk, self.directory, self._snapshots
        )
        producer_replay.replay(state, self.segments, start, self.log_end_offset)
        state.is_dirty = True
        return state

    def _state_at_end(self) -> ProducerState:
        segments = self.segments
        return producer_replay.load_producers(
            self._storage.disk, self.directory, segments, self._snapshots, self.log_end_offset
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments. Looks at the directory if the log is not loaded."""
        if self._segments is not None:
            return sum(segment.size for segment in self._segments)
        if self._size_hint < 0:
            disk, directory = self._storage.disk, self.directory
            names = disk.listdir(directory) if self._exists else []
            self._size_hint = sum(
                disk.size(directory / name) for name in names if name.endswith(LOG_SUFFIX)
            )
        return self._size_hint

    # Loading

    def recover(self, files: FileCache) -> None:
        """Repair the files after an unclean stop, and leave nothing in memory.

        Safe in a thread beside others that recover other logs: each thread has `files` of its own.
        """
        self._load(files)
        self.unload()

    def load(self) -> list[Segment]:
        """Bring the segments into memory, recovering them first if the last stop was unclean."""
        return self._load(self._storage.files)

    def _load(self, files: FileCache) -> list[Segment]:
        if not self._exists:
            self._segments, self.is_recovered = [], True
            return self._segments
        known = recovery.KnownOffsets(
            self.log_start_offset, self.log_end_offset, self.recovery_point, self.is_recovered
        )
        try:
            loaded = recovery.load(
                files,
                self.directory,
                self.epochs,
                known,
                self.config.index_interval_bytes,
                has_gaps="compact" in self.config.cleanup_policy,
            )
        except OSError as error:
            raise self.read_failed(error) from error
        self._segments = loaded.segments
        self._snapshots = loaded.snapshots
        self._producers = loaded.producers
        self._size_hint = -1
        self.is_recovered = True
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        if not known.is_clean:
            self._apply_assigned_epoch(self.epochs)
        if self.recovery_point != loaded.recovery_point:
            self.recovery_point = loaded.recovery_point
            self._storage.are_points_stale = True
        if self.recovery_point < self.log_end_offset:
            self._is_dirty = self._is_name_unsynced = True
            self._storage.flush_due[self] = None
        return self._segments

    def unload(self) -> bool:
        """Forget what is in memory if the files say it all; whether that was so."""
        if self._active is not None or self._tickets or self.failure or self._segments is None:
            return False
        self._size_hint = self.size_bytes
        for segment in self._segments:
            segment.close_files()
        if self._epochs is not None and not self._epochs.is_dirty:
            self._epochs = None
        self._segments = self._producers = None
        self._snapshots = []
        return True

    def _writable(self) -> Segment:
        """The segment to append to. Raises KAFKA_STORAGE_ERROR if there can be none."""
        if self.failure:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
        if self._active is not None:
            return self._active
        try:
            return self._open_active()
        except OSError as error:
            raise self._storage_error("cannot be opened", error) from error

    def _open_active(self) -> Segment:
        segments = self.segments
        if not self._exists:
            self._create_directory()
        # An append counts on both being there.
        _ = self.epochs, self.producer_state
        if not segments:
            segments.append(self._new_segment(self.log_end_offset))
        else:
            last = segments[-1]
            reader.ensure_indexes(last, self.config.index_interval_bytes)
            last.open_for_append(self._storage.clock.wall_ms(), self._jitter_ms())
            if last.size:
                last.first_timestamp = reader.header_at(last, 0, last.size).max_timestamp
        self._active = segments[-1]
        self._snapshot_size = self._active.size
        return self._active

    def _create_directory(self) -> None:
        disk, directory = self._storage.disk, self.directory
        # From the first record on, a folder that is missing is a log that is lost.
        self._storage.ledger.made(directory.name, self.topic_id)
        disk.mkdir(directory)
        self._unsynced_paths.append(self._storage.ledger.path)
        self._write_file(directory / PARTITION_METADATA, encode_topic_id(self.topic_id))
        self._exists = True

    def _write_file(self, path: Path, data: bytes) -> None:
        """Write a small file whose damage by a crash would be noticed; the next flush syncs it."""
        file = self._storage.disk.open(path, create=True)
        try:
            if file.size():
                file.truncate(0)
            file.write(data, 0)
        finally:
            file.close()
        self._unsynced_paths.append(path)
        self._is_name_unsynced = True

    def _jitter_ms(self) -> int:
        jitter_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._storage.random.randrange(jitter_ms) if jitter_ms > 0 else 0

    def _new_segment(self, base_offset: int) -> Segment:
        storage = self._storage
        segment = Segment(storage.files, self.directory, base_offset, 0)
        segment.create(storage.clock.wall_ms(), self._jitter_ms())
        self._is_name_unsynced = True
        return segment

    # Rolling and snapshots

    def roll(self) -> Segment:
        """Close the active segment and start the next one at the log's end."""
        old = self._writable()
        if not old.size:
            return old
        try:
            # In this order a failure on the way leaves the old segment fit for appends.
            self._write_snapshot()
            new = self._new_segment(self.log_end_offset)
            old.seal()
        except OSError as error:
            raise self._storage_error("cannot start a segment", error) from error
        self.segments.append(new)
        self._active = new
        self._snapshot_size = 0
        self.next_expiry_ms = 0
        self._is_dirty = True
        self._storage.flush_due[self] = None
        return new

    def _write_snapshot(self) -> None:
        """Keep the producers' state as of the log's end beside the segments."""
        offset, state = self.log_end_offset, self.producer_state
        path = producer_replay.write_snapshot(self._storage.disk, self.directory, offset, state)
        self._unsynced_paths.append(path)
        self._is_name_unsynced = True
        if offset not in self._snapshots:
            self._snapshots.append(offset)
        self._drop_snapshots()

    def _drop_snapshots(self) -> None:
        """Keep the snapshots at the starts of segments and the newest two."""
        bases = {segment.base_offset for segment in self.segments}
        kept = [
            offset
            for number, offset in enumerate(self._snapshots)
            if number >= len(self._snapshots) - 2
            or (offset in bases and offset > self.segments[0].base_offset)
        ]
        for offset in set(self._snapshots) - set(kept):
            self._storage.disk.remove(self._snapshot_path(offset))
        self._snapshots = kept

    def _snapshot_path(self, offset: int) -> Path:
        return self.directory / segment_name(offset, SNAPSHOT_SUFFIX)

    # Flushing

    def begin_flush(self, *, is_last: bool = False) -> FlushTicket | None:
        """What a thread must do so that all appended so far is durable; None if it is already.

        Pass the ticket to `finish_flush` after `ticket.run()`. `is_last`: before closing.
        """
        self._storage.flush_due.pop(self, None)
        self._storage.unflushed.pop(self, None)
        if not self._is_dirty and not self._is_name_unsynced:
            return None
        if not self._exists:
            self._is_name_unsynced = False
            return None
        try:
            return self._make_ticket(is_last)
        except OSError as error:
            self._storage.flush_due[self] = None
            raise self._storage_error("cannot be flushed", error) from error

    def _make_ticket(self, is_last_flush: bool) -> FlushTicket:
        segments, active = self.segments, self._active
        if active is not None and active.size - self._snapshot_size > _SNAPSHOT_INTERVAL_BYTES:
            self._write_snapshot()
            self._snapshot_size = active.size
        ticket = FlushTicket(
            self._storage.disk,
            self.directory,
            self.log_end_offset,
            self._generation,
            self._is_name_unsynced,
        )
        for number, segment in enumerate(segments):
            if segment is not segments[-1]:
                if segments[number + 1].base_offset > self.recovery_point:
                    self._add_segment(ticket, segment, has_indexes=True)
            else:
                unwritten = segment.offset_index.unwritten_count
                is_due = is_last_flush or segment is not active
                is_due = is_due or unwritten >= _UNWRITTEN_ENTRIES_MAX
                self._add_segment(ticket, segment, has_indexes=is_due)
        for path in self._unsynced_paths:
            ticket.add_path(path)
        epochs = self.epochs
        ticket.pin()
        # Nothing fails from here on.
        if epochs.is_dirty:
            ticket.epochs = list(epochs.entries)
        epochs.is_dirty = False
        self._unsynced_paths = []
        self._is_dirty = self._is_name_unsynced = False
        self._tickets += 1
        return ticket

    def _add_segment(self, ticket: FlushTicket, segment: Segment, *, has_indexes: bool) -> None:
        ticket.add(segment.log)
        if has_indexes:
            reader.ensure_indexes(segment, self.config.index_interval_bytes)
            segment.write_indexes()
            ticket.add(segment.offset_index.handle)
            ticket.add(segment.time_index.handle)
        aborted = segment.transaction_index
        if aborted.unwritten_count or (has_indexes and len(aborted)):
            aborted.write_out()
            ticket.add(aborted.handle)

    def finish_flush(self, ticket: FlushTicket) -> None:
        """Take note of a flush that ran. Raises KAFKA_STORAGE_ERROR if the disk failed it.

        Where a sync failed the log takes no more appends until the broker has restarted and
        recovered it. Where the flush could not be finished for another reason, the next one does
        all of it.
        """
        ticket.release()
        self._tickets -= 1
        if ticket.error is not None:
            self._fail(f"a flush failed: {ticket.error}")
            raise self._storage_error("cannot be flushed", ticket.error)
        if ticket.unfinished is not None:
            self._is_dirty = self.epochs.is_dirty = True
            self._is_name_unsynced |= ticket.is_name_unsynced
            self._unsynced_paths = ticket.paths + self._unsynced_paths
            self._storage.flush_due[self] = None
            raise self._storage_error("cannot be flushed", ticket.unfinished)
        if ticket.generation == self._generation and ticket.end_offset > self.recovery_point:
            self.recovery_point = ticket.end_offset
            self._storage.are_points_stale = True

    def flush(self) -> None:
        """Make everything durable now. Blocks."""
        ticket = self.begin_flush()
        if ticket is not None:
            ticket.run()
            self.finish_flush(ticket)

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether `flush.ms` or `flush.messages` asks for a flush."""
        config = self.config
        return self._is_dirty and (
            now_ms - self.dirty_since_ms >= config.flush_ms
            or self.log_end_offset - self.recovery_point >= config.flush_messages
        )

    def _mark_dirty(self) -> None:
        self._is_dirty = True
        self.dirty_since_ms = self._storage.clock.wall_ms()
        if min(self.config.flush_ms, self.config.flush_messages) < FLUSH_NEVER:
            self._storage.unflushed[self] = None

    # Closing

    def begin_close(self) -> FlushTicket | None:
        """What a thread must do so that `close(clean=True)` has nothing left to wait for."""
        if self.failure is not None or not self._exists:
            return None
        if self._segments is None and not self._is_dirty:
            return None  # a recovered log that was unloaded again may still be dirty
        try:
            if self._active is not None:
                self._active.note_last_timestamp()
                self._is_dirty = self._is_dirty or not self._active.indexes_written
                state = self.producer_state
                is_new = self.log_end_offset not in self._snapshots
                is_long = self._active.size > _SNAPSHOT_INTERVAL_BYTES
                if (is_new or state.is_dirty) and (state.entries or self._snapshots or is_long):
                    self._write_snapshot()
        except OSError as error:
            raise self._storage_error("cannot be closed", error) from error
        return self.begin_flush(is_last=True)

    def close(self, clean: bool) -> None:
        """Let go of all files. `clean`: first make all durable, so that nothing needs recovery."""
        if clean:
            ticket = self.begin_close()
            if ticket is not None:
                ticket.run()
                self.finish_flush(ticket)
        for segment in self._segments or ():
            segment.close_files()
        self._segments = self._active = self._producers = None

    def retire(self) -> None:
        """The log was deleted: let go of all files, and let nothing be appended any more."""
        self.close(clean=False)
        self._exists = False
        self.failure = f"{self.topic_partition} was deleted"

    def read_failed(self, error: OSError) -> BrokerError:
        """Take note that the files can't be read; returns what to raise.

        After an error of the disk itself the log is offline on this broker until it restarts."""
        if error.errno == errno.EIO:
            self._fail(f"reading failed: {error}")
        return self._storage_error("cannot be read", error)

    def _fail(self, reason: str) -> None:
        """Take no more appends, and have another replica lead."""
        if self.failure is None:
            self.failure = f"{self.topic_partition} is offline, {reason}"
            _logger.error("%s", self.failure)
            self._storage.on_failure(self.topic_partition)

    def _storage_error(self, what: str, error: OSError) -> BrokerError:
        message = f"the log of {self.topic_partition} {what}: {error}"
        _logger.error("%s", message)
        return BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, message)
