"""One partition's log: records appended at the end, read by offset, dropped from the front.

A `PartitionLog` has its segment files, its leader epochs, the state of its producers, and its
flushes. It owns the offsets, the rules for what may be appended, the order of steps that involve
more than one of these parts, and what a disk error means.

A log is light until it is used. After a clean shutdown its offsets come from the checkpoints, and
nothing of it is listed or opened before the first append or read. The first append creates its
folder.

Durability:
- an append is in the page cache when it returns, and survives a killed process;
- everything below `recovery_point` is on stable storage, with its index entries, its epochs and a
  producer snapshot: the recovery point moves only after all of these were synced;
- after an unclean shutdown, recovery checks each batch above the recovery point.

All methods run on the event loop's thread unless they say otherwise.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from millstream.log import loading, removal
from millstream.log.directory.log_folder import LogFolder
from millstream.log.epoch_cache import EpochCache
from millstream.log.files import FileCache
from millstream.log.flush.log_flush import LogFlush
from millstream.log.flush.ticket import FlushTicket
from millstream.log.flush.unsynced import UnsyncedChanges
from millstream.log.index.transaction_index import AbortedTransaction
from millstream.log.leader_epochs import LeaderEpochs
from millstream.log.producers.log_producers import LogProducers
from millstream.log.producers.producer_state import ProducedBatch, ProducerState
from millstream.log.reading.reader import ReadLimits, read_range
from millstream.log.reading.slice import EMPTY_SLICE, LogSlice
from millstream.log.reading.time_search import TimeSearch, TimestampOffset
from millstream.log.segment import Segment
from millstream.log.segment_files import SegmentFiles, end_of, number_of
from millstream.log.validation import check_follower_batches, check_records, too_large
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import INT64_MAX, NO_TIMESTAMP
from millstream.records.batch import (
    CONTROL_FLAG,
    BatchHeader,
    read_header,
    scan,
    stamp,
    stamp_append_time,
)
from millstream.records.control import EndMarker, build_marker

_logger = logging.getLogger(__name__)

#: `flush.ms` and `flush.messages` of a topic that leaves flushing to the operating system.
_FLUSH_NEVER: Final = INT64_MAX


class AppendResult(NamedTuple):
    """Where a batch was appended."""

    base_offset: int
    last_offset: int
    #: The append time that the broker gave its records, or -1 if they keep the producer's.
    append_time_ms: int
    log_start_offset: int
    #: Whether the batch is a retry of one that was appended before.
    duplicate: bool


class PartitionLog:
    """The log of one partition on this broker."""

    __slots__ = (
        "checkpointed_point",
        "config",
        "dirty_since_ms",
        "failure",
        "flushing",
        "folder",
        "is_recovered",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "next_expiry_ms",
        "producers",
        "recovery_point",
        "segment_files",
        "storage",
        "topic_id",
        "topic_partition",
        "unsynced",
    )

    def __init__(self, folder: LogFolder, config: TopicConfig, *, is_recovered: bool) -> None:
        self.folder = folder
        self.storage = folder.storage
        self.topic_partition = folder.topic_partition
        self.topic_id = folder.topic_id
        self.config = config
        #: The first offset a reader may ask for. Only `truncate_fully_and_start_at` lowers it.
        self.log_start_offset = 0
        #: The offset of the next record.
        self.log_end_offset = 0
        #: Everything below is on stable storage.
        self.recovery_point = 0
        #: The recovery point in the checkpoint file, or less.
        self.checkpointed_point = 0
        #: False after an unclean shutdown until `load` has repaired the files.
        self.is_recovered = is_recovered
        #: The parts of the log. Only the log's own package changes them.
        self.unsynced = UnsyncedChanges()
        self.segment_files = SegmentFiles(folder, self.unsynced)
        self.producers = LogProducers(folder, self.unsynced)
        self.leader_epochs = LeaderEpochs(folder)
        self.flushing = LogFlush()
        #: When the first append since the last flush was made.
        self.dirty_since_ms = 0
        #: Why the log rejects appends; None while it is healthy.
        self.failure: str | None = None
        #: No segment expires by time before this. 0: unknown.
        self.next_expiry_ms = 0

    @property
    def directory(self) -> Path:
        return self.folder.path

    @property
    def exists(self) -> bool:
        """Whether the folder exists: the first append creates it."""
        return self.folder.exists

    @property
    def is_loaded(self) -> bool:
        return self.segment_files.loaded is not None

    @property
    def segments(self) -> list[Segment]:
        """All segments in order; loads them if needed. Callers must not change the list."""
        segments = self.segment_files.loaded
        return segments if segments is not None else self.load()

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments. Lists the folder if the log is not loaded."""
        return self.segment_files.size_bytes()

    @property
    def epochs(self) -> EpochCache:
        cache = self.leader_epochs.cache
        if cache is None:
            cache = self.leader_epochs.load(self.log_end_offset, is_recovered=self.is_recovered)
        return cache

    @property
    def producer_state(self) -> ProducerState:
        """The state of all producers; loads the log if needed."""
        state = self.producers.state
        if state is None:
            segments = self.segments  # loading them may change the log end offset
            state = self.producers.load(segments, self.log_end_offset)
        return state

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self.next_expiry_ms = 0
        if self.unsynced.has_data:
            self._mark_dirty()

    # Appending

    def append_as_leader(
        self, batch: memoryview, header: BatchHeader, leader_epoch: int
    ) -> AppendResult:
        """Append a batch that passed `check_batch`, or a marker from `prepare_marker`.

        Sets offset, epoch and time in the batch. Raises BrokerError, and leaves the log unchanged.
        """
        active = self.segment_files.active
        if active is None or self.failure:
            active = self.writable()
        config = self.config
        size = len(batch)
        # A marker may be larger: its transaction must end.
        if size > config.max_message_bytes and not header.is_control:
            raise too_large(size, config)
        base_offset = self.log_end_offset
        # Before any other rule: a retry gets the result of the original.
        if header.producer_id >= 0 and not header.is_control:
            earlier = self.producers.state.check(header, base_offset)  # type: ignore[union-attr]
            if earlier is not None:
                return self._duplicate(earlier)
        append_time_ms = NO_TIMESTAMP
        max_timestamp = header.max_timestamp
        now_ms = self.storage.clock.wall_ms()
        if not header.attributes & CONTROL_FLAG:
            size_max = self.storage.options.decompressed_bytes_max
            max_timestamp = check_records(
                batch, header, config, self.topic_partition, now_ms, size_max
            )
        if config.message_timestamp_type != "CreateTime":
            append_time_ms = max_timestamp = now_ms
            stamp_append_time(batch, 0, append_time_ms)
        last_offset = base_offset + header.last_offset_delta
        stamp(batch, 0, base_offset, leader_epoch)
        if self.segment_files.must_roll(config, size, last_offset, max_timestamp):
            active = self.roll()
        try:
            active.append(
                batch, base_offset, last_offset, max_timestamp, config.index_interval_bytes
            )
        except OSError as error:
            raise self._append_failed(active, error) from error
        self.log_end_offset = last_offset + 1
        if header.producer_id >= 0:
            self.producers.append(active, batch, header, base_offset, max_timestamp)
        epochs = self.leader_epochs.cache
        if epochs.latest != leader_epoch:  # type: ignore[union-attr]
            epochs.assign(leader_epoch, base_offset)  # type: ignore[union-attr]
        if not self.unsynced.has_data:
            self._mark_dirty()
        return AppendResult(base_offset, last_offset, append_time_ms, self.log_start_offset, False)

    def append_as_follower(self, data: memoryview) -> None:
        """Append whole batches with the offsets and epochs that the leader gave them.

        Raises BrokerError, and leaves the log unchanged.
        """
        batches = scan(data)
        if not batches:
            return
        end = batches[-1][0] + batches[-1][1].size
        next_offset = check_follower_batches(
            data, batches, self.log_end_offset, self.topic_partition
        )
        active = self.segment_files.active
        if active is None or self.failure:
            active = self.writable()
        config = self.config
        latest_ms = max(header.max_timestamp for _, header in batches)
        if self.segment_files.must_roll(config, end, next_offset - 1, latest_ms):
            active = self.roll()
        try:
            active.append_many(data[:end], batches, config.index_interval_bytes)
        except OSError as error:
            raise self._append_failed(active, error) from error
        self.log_end_offset = next_offset
        epochs, append_producer = self.epochs, self.producers.append
        for position, header in batches:
            if header.producer_id >= 0:
                batch = data[position : position + header.size]
                append_producer(active, batch, header, header.base_offset, header.max_timestamp)
            if header.leader_epoch != epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
        if not self.unsynced.has_data:
            self._mark_dirty()

    def _duplicate(self, batch: ProducedBatch) -> AppendResult:
        append_time_ms = NO_TIMESTAMP
        if self.config.message_timestamp_type != "CreateTime":
            append_time_ms = batch.timestamp
        return AppendResult(
            batch.first_offset, batch.last_offset, append_time_ms, self.log_start_offset, True
        )

    def _append_failed(self, active: Segment, error: OSError) -> BrokerError:
        try:
            active.undo_append()
        except OSError as worse:
            self.fail(f"a failed write could not be undone ({worse})")
        return self.storage_error("cannot be appended to", error)

    def writable(self) -> Segment:
        """Return the active segment, opened if needed. Raises KAFKA_STORAGE_ERROR."""
        if self.failure:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
        active = self.segment_files.active
        if active is not None:
            return active
        try:
            return loading.open_active(self)
        except OSError as error:
            raise self.storage_error("cannot be opened", error) from error

    def roll(self) -> Segment:
        """Seal the active segment and start the next one at the log end offset."""
        old = self.writable()
        if not old.size:
            return old
        segments, end = self.segments, self.log_end_offset
        try:
            self.producers.write_snapshot(segments, end)
            new = self.segment_files.roll(segments, end, self.config)
        except OSError as error:
            raise self.storage_error("cannot start a segment", error) from error
        self.producers.start_segment(0)
        self.next_expiry_ms = 0
        self.unsynced.has_data = True
        self.storage.flush_due[self] = None
        return new

    # Reading

    def read(self, offset: int, max_bytes: int, end_offset: int, at_least_one: bool) -> LogSlice:
        """Return whole batches of one segment, from the one that holds `offset` on.

        Never reads past `end_offset`, which must be a batch boundary. With `at_least_one` the first
        batch may exceed `max_bytes`. Empty at the end. Raises OFFSET_OUT_OF_RANGE outside the log,
        and CORRUPT_MESSAGE where the first batch is damaged.
        """
        log_end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside of [{self.log_start_offset}, {log_end_offset}]"
                f" of {self.topic_partition}",
            )
        if offset >= end_offset or offset == log_end_offset:
            return EMPTY_SLICE
        segments = self.segment_files.loaded
        if segments is None:
            segments = self.load()
            log_end_offset = self.log_end_offset
        number = len(segments) - 1
        if offset < segments[number].base_offset:
            number = max(number_of(segments, offset), 0)
        interval = self.config.index_interval_bytes
        try:
            # More than one segment only where compaction emptied the end of a segment.
            while number < len(segments):
                segment_end = end_of(segments, number, log_end_offset)
                limits = ReadLimits(segment_end, end_offset, max_bytes, at_least_one)
                found = read_range(segments[number], offset, limits, interval)
                if found is not None:
                    if found is not EMPTY_SLICE:
                        found.log = self
                    return found
                number += 1
        except OSError as error:
            raise self.read_failed(error) from error
        return EMPTY_SLICE

    def find_by_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """Return the first record, in offset order, at or after `timestamp_ms`."""
        return self._time_search().first_at(timestamp_ms)

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """Return the first record with the largest timestamp; None for an empty log."""
        return self._time_search().latest()

    def _time_search(self) -> TimeSearch:
        return TimeSearch(
            self.segments,
            self.log_start_offset,
            self.config.index_interval_bytes,
            self.storage.options.decompressed_bytes_max,
        )

    def read_failed(self, error: OSError) -> BrokerError:
        """Record that the files cannot be read. Returns the error to raise.

        After an I/O error of the disk the log is offline until the broker restarts."""
        if error.errno == errno.EIO:
            self.fail(f"reading failed: {error}")
        return self.storage_error("cannot be read", error)

    # Leader epochs

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest

    @property
    def last_record_epoch(self) -> int:
        """The leader epoch of the last record; -1 for a log without records."""
        return self.epochs.epoch_at(self.log_end_offset - 1)

    def assign_epoch(self, epoch: int) -> None:
        """Let `epoch`, in which this broker leads, begin at the log end offset."""
        self.leader_epochs.assign(epoch, self.log_end_offset)

    def drop_unused_epochs(self) -> None:
        """Remove an epoch that this broker began as leader and in which it appended nothing.

        The next batch from the new leader may belong to an earlier epoch."""
        self.leader_epochs.drop_unused(self.log_end_offset)

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """Return the largest known epoch up to `leader_epoch` and its end; (-1, -1) if none."""
        return self.epochs.end_offset(leader_epoch, self.log_end_offset)

    # Producers and transactions

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the first offset that `read_committed` consumers may not read yet.

        Forgets transactions that ended below `high_watermark`, so it must not go back.
        """
        state = self.producers.state
        if state is None:
            state = self.producer_state
        transactions = state.transactions
        if not transactions.has_unstable:
            return high_watermark
        first = transactions.first_unstable_offset(high_watermark)
        # The log may have been trimmed past the beginning of an open transaction.
        return max(first, min(self.log_start_offset, high_watermark))

    def is_past(self, header: BatchHeader) -> bool:
        """Return whether a batch is old: appended before, or of an earlier producer epoch.

        False while the producer state is not loaded."""
        state = self.producers.state
        return state is not None and state.is_past(header)

    def prepare_marker(
        self, marker: EndMarker, producer_id: int, producer_epoch: int, transaction_version: int
    ) -> bytearray | None:
        """Return the batch that ends the producer's transaction; None if it has ended.

        Raises INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        now_ms = self.storage.clock.wall_ms()
        batch = build_marker(marker, producer_id, producer_epoch, now_ms)
        is_due = self.producer_state.check_marker(read_header(batch), marker, transaction_version)
        return batch if is_due else None

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in [from_offset, upper_offset).

        That range must be stable. Raises KAFKA_STORAGE_ERROR or CORRUPT_MESSAGE.
        """
        segments = self.segments
        try:
            return self.producers.aborted_transactions(
                segments, self.log_end_offset, from_offset, upper_offset
            )
        except OSError as error:
            raise self.read_failed(error) from error

    def expire_producers(self, now_ms: int) -> int:
        """Forget idle producers if the log is in use. Returns their number."""
        return self.producers.expire(now_ms, self.storage.options.producer_id_expiration_ms)

    # Loading, flushing and closing

    def recover(self, files: FileCache) -> None:
        """Repair the files after an unclean shutdown, and unload the log.

        May run in a thread beside threads that recover other logs. Each has `files` of its own.
        """
        loading.load(self, files)
        self.unload()

    def load(self) -> list[Segment]:
        """Load the segments, after a repair if the last shutdown was unclean."""
        return loading.load(self, self.storage.files)

    def unload(self) -> bool:
        """Free the memory of a log that is not open for appends. Returns whether that was done."""
        return loading.unload(self)

    def begin_flush(self, *, is_last: bool = False) -> FlushTicket | None:
        """Return a ticket that makes everything appended so far durable; None if it is already.

        Run the ticket in a thread, then pass it to `finish_flush`. `is_last`: before closing.
        """
        return self.flushing.begin(self, is_last=is_last)

    def finish_flush(self, ticket: FlushTicket) -> None:
        """Move the recovery point after a flush. Raises KAFKA_STORAGE_ERROR if the flush failed.

        After a failed sync the log rejects appends until the broker restarts and recovers it. After
        any other failure the next flush covers everything.
        """
        self.flushing.finish(self, ticket)

    def flush(self) -> None:
        """Make everything durable now. Blocks."""
        ticket = self.begin_flush()
        if ticket is not None:
            ticket.run()
            self.finish_flush(ticket)

    def is_flush_due(self, now_ms: int) -> bool:
        """Return whether `flush.ms` or `flush.messages` demands a flush."""
        config = self.config
        return self.unsynced.has_data and (
            now_ms - self.dirty_since_ms >= config.flush_ms
            or self.log_end_offset - self.recovery_point >= config.flush_messages
        )

    def _mark_dirty(self) -> None:
        self.unsynced.has_data = True
        self.dirty_since_ms = self.storage.clock.wall_ms()
        if min(self.config.flush_ms, self.config.flush_messages) < _FLUSH_NEVER:
            self.storage.unflushed[self] = None

    def begin_close(self) -> FlushTicket | None:
        """Return the flush that must run before `close(clean=True)`; None if none is needed."""
        return self.flushing.begin_last(self)

    def close(self, clean: bool) -> None:
        """Close all files. `clean`: flush first, so that the next start needs no recovery."""
        if clean:
            ticket = self.begin_close()
            if ticket is not None:
                ticket.run()
                self.finish_flush(ticket)
        self.segment_files.close()
        self.producers.state = None

    def mark_deleted(self) -> None:
        """Close all files of a log that was deleted, and reject further appends."""
        self.close(clean=False)
        self.folder.exists = False
        self.failure = f"{self.topic_partition} was deleted"

    # Removing and replacing records

    def truncate_to(self, offset: int) -> None:
        """Remove everything from `offset` on, as a follower whose log diverges from the leader's.

        Raises KAFKA_STORAGE_ERROR.
        """
        removal.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records. The next one gets `offset`. Raises KAFKA_STORAGE_ERROR."""
        removal.truncate_fully_and_start_at(self, offset)

    def advance_start(self, offset: int) -> None:
        """Hide the records below `offset` from readers (DeleteRecords).

        The caller knows that `offset` is not beyond the high watermark. Raises OFFSET_OUT_OF_RANGE.
        """
        removal.advance_start(self, offset)

    def expire(self, now_ms: int, high_watermark: int) -> list[Path]:
        """Remove the segments that retention or `advance_start` has ended.

        Returns their files, renamed to `.deleted`, for removal after `file.delete.delay.ms`.
        """
        return removal.expire(self, now_ms, high_watermark)

    def replace_segments(self, old: Sequence[int], new: Sequence[int | Path]) -> list[Path]:
        """Replace segments by cleaned ones: see `removal.replace_segments`."""
        return removal.replace_segments(self, old, new)

    # Failures

    def fail(self, reason: str) -> None:
        """Reject appends from now on, and notify the broker, so that another replica leads."""
        if self.failure is None:
            self.failure = f"{self.topic_partition} is offline, {reason}"
            _logger.error("%s", self.failure)
            self.storage.on_failure(self.topic_partition)

    def storage_error(self, what: str, error: OSError) -> BrokerError:
        """Log a failure of the disk. Returns the error to raise."""
        message = f"the log of {self.topic_partition} {what}: {error}"
        _logger.error("%s", message)
        return BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, message)
