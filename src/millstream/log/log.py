"""One partition's log: records appended at the end, read by offset, dropped from the front.

Owns the rules for what may be appended, reading, finding by time and epoch, truncation, retention.
What is on disk and when it is durable is `LocalLog`, what is decided of transactions is
`TransactionalLog`; this extends both. Bytes inside a segment are `reader`'s; `retention` decides
what expires; `replacement` swaps segments in after compaction.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from millstream.log import reader, retention
from millstream.log.compaction import replacement
from millstream.log.producers.producer_state import ProducedBatch, ProducerEntry
from millstream.log.producers.transactional_log import TransactionalLog
from millstream.log.reader import EMPTY_SLICE, Bounds, LogSlice
from millstream.log.retention import SegmentFacts
from millstream.log.segment import DELETED_SUFFIX, Segment
from millstream.log.timestamp import TimeSearch, TimestampOffset
from millstream.log.validation import check_records
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import RELATIVE_OFFSET_MAX
from millstream.records.batch import (
    CONTROL_FLAG,
    BatchHeader,
    CorruptBatch,
    scan,
    stamp,
    stamp_append_time,
)
from millstream.records.control import read_marker

_logger = logging.getLogger(__name__)


class AppendResult(NamedTuple):
    """Where a batch went."""

    base_offset: int
    last_offset: int
    #: The time the broker gave its records, or -1 where they keep the producer's.
    append_time_ms: int
    log_start_offset: int
    #: Whether this is the answer to a retry: the batch had been appended before.
    duplicate: bool


class PartitionLog(TransactionalLog):
    __slots__ = ()

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self.next_expiry_ms = 0
        if self._is_dirty:
            self._mark_dirty()

    # Appending

    def append_as_leader(
        self, batch: memoryview, header: BatchHeader, leader_epoch: int
    ) -> AppendResult:
        """Append one batch that `check_batch` passed: offsets, epoch and time are set in place.

        Or a marker that `prepare_marker` made. Raises BrokerError, and then the log is as before.
        """
        active = self._active
        if active is None or self.failure:
            active = self._writable()
        config = self.config
        size = len(batch)
        if size > config.max_message_bytes:
            self._refuse_size(size, header)
        base_offset = self.log_end_offset
        # Before any other rule: a retry is answered as the original was.
        if header.producer_id >= 0 and not header.is_control:
            assert self._producers is not None
            earlier = self._producers.check(header, base_offset)
            if earlier is not None:
                return self._repeated(earlier)
        append_time_ms = -1
        max_timestamp = header.max_timestamp
        now_ms = self._storage.clock.wall_ms()
        if not header.attributes & CONTROL_FLAG:
            size_max = self._storage.options.decompressed_bytes_max
            max_timestamp = check_records(
                batch, header, config, self.topic_partition, now_ms, size_max
            )
        if config.message_timestamp_type != "CreateTime":
            append_time_ms = max_timestamp = now_ms
            stamp_append_time(batch, 0, append_time_ms)
        last_offset = base_offset + header.last_offset_delta
        stamp(batch, 0, base_offset, leader_epoch)
        if self._must_roll(active, size, last_offset, max_timestamp):
            active = self.roll()
        try:
            active.append(
                batch, base_offset, last_offset, max_timestamp, config.index_interval_bytes
            )
        except OSError as error:
            raise self._append_failed(active, error) from error
        self.log_end_offset = last_offset + 1
        if header.producer_id >= 0:
            self._note_producer(active, batch, header, base_offset, max_timestamp)
        if self._epochs.latest != leader_epoch:  # type: ignore[union-attr]
            self._epochs.assign(leader_epoch, base_offset)  # type: ignore[union-attr]
        if not self._is_dirty:
            self._mark_dirty()
        return AppendResult(base_offset, last_offset, append_time_ms, self.log_start_offset, False)

    def append_as_follower(self, data: memoryview) -> None:
        """Append whole batches as a leader stored them, offsets and epochs kept.

        Raises BrokerError, and then the log is as before.
        """
        batches = scan(data)
        if not batches:
            return
        end = batches[-1][0] + batches[-1][1].size
        next_offset = self.log_end_offset
        for position, header in batches:
            if header.base_offset < next_offset:
                raise CorruptBatch(
                    f"offset {header.base_offset} from the leader of {self.topic_partition} is"
                    f" below {next_offset}, the next offset here"
                )
            if header.is_control:
                read_marker(data, header, position)
            next_offset = header.next_offset
        active = self._active
        if active is None or self.failure:
            active = self._writable()
        latest_ms = max(header.max_timestamp for _, header in batches)
        if self._must_roll(active, end, next_offset - 1, latest_ms):
            active = self.roll()
        try:
            active.append_many(data[:end], batches, self.config.index_interval_bytes)
        except OSError as error:
            raise self._append_failed(active, error) from error
        self.log_end_offset = next_offset
        epochs = self.epochs
        for position, header in batches:
            if header.producer_id >= 0:
                batch = data[position : position + header.size]
                self._note_producer(active, batch, header, header.base_offset, header.max_timestamp)
            if header.leader_epoch != epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
        if not self._is_dirty:
            self._mark_dirty()

    def _repeated(self, batch: ProducedBatch) -> AppendResult:
        append_time_ms = -1
        if self.config.message_timestamp_type != "CreateTime":
            append_time_ms = batch.timestamp
        return AppendResult(
            batch.first_offset, batch.last_offset, append_time_ms, self.log_start_offset, True
        )

    def _refuse_size(self, size: int, header: BatchHeader) -> None:
        # A marker must get in, or the transaction never ends.
        if not header.is_control:
            raise BrokerError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {size} bytes exceeds max.message.bytes,"
                f" {self.config.max_message_bytes}",
            )

    def _must_roll(self, active: Segment, size: int, last_offset: int, max_timestamp: int) -> bool:
        config = self.config
        if not active.size:
            return False
        if active.size > config.segment_bytes - size:
            return True
        first = active.first_timestamp
        if first is not None and first >= 0 and max_timestamp >= 0:
            waited_ms = max_timestamp - first
        else:
            waited_ms = self._storage.clock.wall_ms() - active.created_ms
        segment_ms = config.segment_ms
        if "compact" in config.cleanup_policy:
            # The active segment is not compacted, so it must not grow older than the lag allows.
            segment_ms = min(segment_ms, config.max_compaction_lag_ms)
        return (
            waited_ms > segment_ms - active.jitter_ms
            or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            or active.indexes_full(config.segment_index_bytes)
        )

    def _append_failed(self, active: Segment, error: OSError) -> BrokerError:
        try:
            active.undo_append()
        except OSError as worse:
            self._fail(f"a failed write stayed ({worse})")
        return self._storage_error("cannot be appended to", error)

    # Reading

    def read(self, offset: int, max_bytes: int, end_offset: int, at_least_one: bool) -> LogSlice:
        """Whole batches of one segment, from the one that holds `offset` on.

        Never past `end_offset`, which must be a batch boundary. With `at_least_one` the first
        batch is there whatever `max_bytes` says. Empty at the end. Raises OFFSET_OUT_OF_RANGE
        outside of the log, CORRUPT_MESSAGE where the first batch is damaged.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside of [{self.log_start_offset}, {self.log_end_offset}]"
                f" of {self.topic_partition}",
            )
        if offset >= end_offset or offset == self.log_end_offset:
            return EMPTY_SLICE
        segments = self.segments
        number = len(segments) - 1
        if offset < segments[number].base_offset:
            number = max(number_of(segments, offset), 0)
        interval = self.config.index_interval_bytes
        try:
            # More than one only where compaction has emptied the end of a segment.
            while number < len(segments):
                bounds = Bounds(self._end_of(number), end_offset)
                found = reader.read_range(
                    segments[number], offset, bounds, max_bytes, at_least_one, interval
                )
                if found is not None:
                    if found is not EMPTY_SLICE:
                        found.log = self
                    return found
                number += 1
        except OSError as error:
            raise self.read_failed(error) from error
        return EMPTY_SLICE

    def _end_of(self, number: int) -> int:
        """The offset after segment `number`."""
        segments = self.segments
        if number + 1 < len(segments):
            return segments[number + 1].base_offset
        return self.log_end_offset

    def find_by_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record not earlier than `timestamp_ms`, in offset order."""
        return self._time_search().first_at(timestamp_ms)

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first of the latest records; None of an empty log."""
        return self._time_search().latest()

    def _time_search(self) -> TimeSearch:
        return TimeSearch(
            self.segments,
            self.log_start_offset,
            self.config.index_interval_bytes,
            self._storage.options.decompressed_bytes_max,
        )

    # Epochs and producers

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest

    def assign_epoch(self, epoch: int) -> None:
        """This broker leads in `epoch` from the log's end on."""
        if self._epochs is None:
            # Nothing is read for it at a start with many idle logs.
            self._assigned_epoch = epoch
        else:
            self._epochs.drop_above(epoch)
            self._epochs.assign(epoch, self.log_end_offset)

    @property
    def last_record_epoch(self) -> int:
        """The epoch of the last record; -1 of a log without records."""
        return self.epochs.epoch_at(self.log_end_offset - 1)

    def drop_unused_epochs(self) -> None:
        """This broker follows: an epoch that it began and wrote nothing in has never been.

        What it gets next may well be of an earlier one."""
        self._assigned_epoch = -1
        if self._epochs is not None:
            self._epochs.truncate_from(self.log_end_offset)

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """The largest known epoch not above `leader_epoch` and where it ends; (-1, -1) if none."""
        return self.epochs.end_offset(leader_epoch, self.log_end_offset)

    def producers(self) -> list[ProducerEntry]:
        return list(self.producer_state.entries.values())

    def expire_producers(self, now_ms: int) -> int:
        """Forget idle producers of a log in use; how many. One that is not loaded waits."""
        if self._producers is None or not self._producers.entries:
            return 0
        return self._producers.expire(now_ms, self._storage.options.producer_id_expiration_ms)

    # Dropping records

    def truncate_to(self, offset: int) -> None:
        """Drop everything from `offset` on: a follower does, where its leader's log differs.

        Before that, the checkpoint on disk no longer vouches for it. Raises KAFKA_STORAGE_ERROR;
        where there was no room for the checkpoint, the log is as before.
        """
        if offset >= self.log_end_offset:
            return
        if offset <= self.segments[0].base_offset:
            self.truncate_fully_and_start_at(max(offset, self.log_start_offset))
            return
        self._vouch_below(offset)
        try:
            self._truncate(offset)
        except OSError as error:
            self._fail(f"truncating failed: {error}")
            raise self._storage_error("cannot be truncated", error) from error

    def _vouch_below(self, offset: int) -> None:
        """Let the checkpoint on disk say nothing of `offset` and what follows."""
        if self.recovery_point <= offset:
            return
        self.recovery_point = offset
        try:
            self._storage.checkpoint_now()
        except OSError as error:
            raise self._storage_error("cannot be truncated", error) from error

    def _truncate(self, offset: int) -> None:
        self._writable()
        segments = self.segments
        number = number_of(segments, offset)
        self._remove_segments(number + 1)
        last = segments[-1]
        last.open_for_append(last.created_ms, last.jitter_ms)
        found = reader.locate(last, offset)
        if found is not None:
            last.truncate(found[0])
            reader.resume(last, self.config.index_interval_bytes)
            offset = min(offset, found[1].base_offset)
        self._active = last
        self._end_at(offset)

    def _remove_segments(self, number: int) -> None:
        for segment in self.segments[number:]:
            segment.close_files()
            for handle in segment.handles():
                self._storage.disk.remove(handle.path)
        del self.segments[number:]

    def _end_at(self, offset: int) -> None:
        """Let the log end at `offset`, above which no batch is left."""
        self._generation += 1
        self.log_end_offset = offset
        self.segments[-1].transaction_index.keep_below(offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.epochs.truncate_from(offset)
        for snapshot in self._snapshots:
            if snapshot > offset:
                self._storage.disk.remove(self._snapshot_path(snapshot))
        self._snapshots = [snapshot for snapshot in self._snapshots if snapshot <= offset]
        before = self.producer_state
        self._producers = self._replayed_state()
        self._producers.keep_ended(before, offset)
        self._is_dirty = self._is_name_unsynced = True
        self._storage.flush_due[self] = None
        if self.recovery_point > offset:
            self.recovery_point = offset
            self._storage.checkpoint_now()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and let the next record get `offset`. Raises as `truncate_to` does."""
        self._writable()
        self._vouch_below(0)
        try:
            self._remove_segments(0)
            for snapshot in self._snapshots:
                self._storage.disk.remove(self._snapshot_path(snapshot))
            self._snapshots = []
            self.segments.append(self._new_segment(offset))
            self._active = self.segments[0]
            self.epochs.truncate_from(0)
            self.log_start_offset = offset
            self._end_at(offset)
        except OSError as error:
            self._fail(f"truncating failed: {error}")
            raise self._storage_error("cannot be truncated", error) from error
        self.recovery_point = offset
        self._storage.are_points_stale = self._storage.are_starts_stale = True

    def advance_start(self, offset: int) -> None:
        """Let readers no longer see what is below `offset` (DeleteRecords). Files go with the next
        `expire`. The caller knows that `offset` is not beyond the high watermark."""
        if offset > self.log_end_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is beyond the end of {self.topic_partition}",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_before(offset)
            self.next_expiry_ms = 0
            self._storage.are_starts_stale = True

    def expire(self, now_ms: int, high_watermark: int) -> list[Path]:
        """Take out segments that retention or `advance_start` has ended.

        Returns their files, renamed to `.deleted`, for the caller to remove after
        `file.delete.delay.ms`.
        """
        facts = self._facts()
        count = retention.expired_count(
            facts, self.config, now_ms, self.log_start_offset, high_watermark
        )
        self.next_expiry_ms = retention.next_expiry_ms(facts[count:], self.config)
        if not count:
            return []
        if count == len(facts):
            self.roll()
        paths = self._retire(0, count)
        self.advance_start(max(self.segments[0].base_offset, self.log_start_offset))
        self._drop_snapshots()
        return paths

    def _facts(self) -> list[SegmentFacts]:
        facts = []
        for number, segment in enumerate(self.segments):
            reader.ensure_indexes(segment, self.config.index_interval_bytes)
            facts.append(SegmentFacts(segment.size, self.latest_ms(segment), self._end_of(number)))
        return facts

    def latest_ms(self, segment: Segment) -> int:
        """From when on its age counts for retention. Its indexes must be in order."""
        latest_ms = segment.load_max_timestamp()
        if latest_ms < 0 and segment.size:
            latest_ms = self._storage.disk.modified_ms(segment.log.path)
        return latest_ms

    def _retire(self, first: int, count: int) -> list[Path]:
        """Rename the files of sealed segments to `.deleted` and forget them."""
        segments = self.segments
        retired = segments[first : first + count]
        paths = []
        try:
            for segment in retired:
                for handle in segment.handles():
                    if self._storage.disk.exists(handle.path):
                        handle.rename(handle.path.with_name(handle.path.name + DELETED_SUFFIX))
                        paths.append(handle.path)
        except OSError as error:
            raise self._storage_error("cannot drop segments", error) from error
        del segments[first : first + count]
        for segment in retired:
            # An open descriptor would keep the space of a file that was removed.
            segment.close_files()
        self._is_name_unsynced = True
        self._storage.flush_due[self] = None
        return paths

    # Compaction

    def stage_replacement(self, new: Sequence[int | Path]) -> None:
        """Decide for cleaned segments, which must be synced. Blocks; may run in a thread."""
        replacement.stage(self._storage.disk, self.directory, replacement.bases_of(new))

    def replace_segments(self, old: Sequence[int], new: Sequence[int | Path]) -> list[Path]:
        """Put cleaned segments (`<base>.log.cleaned` and its indexes) in the place of others.

        `old` are base offsets, `new` are too, or paths. `old` must be neighbours and below the
        recovery point. Does `stage_replacement` if that was not done. Returns the old files,
        renamed to `.deleted`, to be removed after `file.delete.delay.ms`.
        """
        segments, storage = self.segments, self._storage
        first = number_of(segments, old[0])
        count = len(old)
        if [s.base_offset for s in segments[first : first + count]] != list(old):
            raise ValueError(f"segments {list(old)} of {self.topic_partition} are not neighbours")
        if self._end_of(first + count - 1) > self.recovery_point:
            raise ValueError(f"segments {list(old)} of {self.topic_partition} are not flushed")
        if self._end_of(first + count - 1) > self.checkpointed_point:
            # Recovery takes a gap above the recovery point for damage.
            storage.checkpoint_now()
        bases = replacement.bases_of(new)
        if not replacement.is_staged(storage.disk, self.directory, bases):
            self.stage_replacement(new)
        paths = self._retire(first, count)
        storage.disk.sync_dir(self.directory)
        replacement.go_live(storage.disk, self.directory, bases)
        for number, base in enumerate(bases):
            size = storage.disk.size(self.directory / f"{base:020d}.log")
            segment = Segment(storage.files, self.directory, base, size)
            segments.insert(first + number, segment)
        self._is_name_unsynced = True
        return paths


def number_of(segments: Sequence[Segment], offset: int) -> int:
    """The number of the segment that `offset` belongs to; -1 before the first."""
    return bisect_right(segments, offset, key=_base_offset) - 1


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
