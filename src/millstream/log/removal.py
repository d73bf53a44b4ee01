"""Removing records from a log: truncation at its end, trimming at its start, and compaction.

Each function changes several parts of the log in an order that a crash cannot break.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.log import retention
from millstream.log.segment_files import end_of, number_of
from millstream.model.error import BrokerError, ErrorCode

if TYPE_CHECKING:
    from millstream.log.log import PartitionLog


# Truncating


def truncate_to(log: PartitionLog, offset: int) -> None:
    """Remove everything from `offset` on.

    Lowers the recovery point on disk first. Raises KAFKA_STORAGE_ERROR; where that checkpoint could
    not be written, the log is unchanged.
    """
    if offset >= log.log_end_offset:
        return
    if offset <= log.segments[0].base_offset:
        truncate_fully_and_start_at(log, max(offset, log.log_start_offset))
        return
    _lower_recovery_point(log, offset)
    try:
        log.writable()
        interval = log.config.index_interval_bytes
        _end_at(log, log.segment_files.truncate_to(log.segments, offset, interval))
    except OSError as error:
        raise _truncate_failed(log, error) from error


def truncate_fully_and_start_at(log: PartitionLog, offset: int) -> None:
    """Remove all records. The next one gets `offset`. Raises as `truncate_to` does."""
    log.writable()
    _lower_recovery_point(log, 0)
    segments = log.segments
    try:
        log.segment_files.remove_from(segments, 0)
        log.producers.remove_snapshots()
        log.segment_files.start_over(segments, offset, log.config)
        log.epochs.truncate_from(0)
        log.log_start_offset = offset
        _end_at(log, offset)
    except OSError as error:
        raise _truncate_failed(log, error) from error
    log.recovery_point = offset
    log.storage.are_points_stale = log.storage.are_starts_stale = True


def _lower_recovery_point(log: PartitionLog, offset: int) -> None:
    """Lower the recovery point to at most `offset`, in memory and in the checkpoint."""
    if log.recovery_point <= offset:
        return
    log.recovery_point = offset
    try:
        log.storage.checkpoint_now()
    except OSError as error:
        raise log.storage_error("cannot be truncated", error) from error


def _end_at(log: PartitionLog, offset: int) -> None:
    """Set the log end offset to `offset`, above which no batch is left."""
    segments = log.segments
    log.flushing.truncated()
    log.log_end_offset = offset
    segments[-1].transaction_index.keep_below(offset)
    log.log_start_offset = min(log.log_start_offset, offset)
    log.epochs.truncate_from(offset)
    log.producers.truncate_to(segments, offset)
    log.unsynced.has_data = log.unsynced.has_names = True
    log.storage.flush_due[log] = None
    if log.recovery_point > offset:
        log.recovery_point = offset
        log.storage.checkpoint_now()


def _truncate_failed(log: PartitionLog, error: OSError) -> BrokerError:
    log.fail(f"truncating failed: {error}")
    return log.storage_error("cannot be truncated", error)


# Trimming


def advance_start(log: PartitionLog, offset: int) -> None:
    """Raise the log start offset to `offset`. The next `expire` removes the files.

    Raises OFFSET_OUT_OF_RANGE beyond the log end offset.
    """
    if offset > log.log_end_offset:
        raise BrokerError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is beyond the end of {log.topic_partition}",
        )
    if offset > log.log_start_offset:
        log.log_start_offset = offset
        log.epochs.truncate_before(offset)
        log.next_expiry_ms = 0
        log.storage.are_starts_stale = True


def expire(log: PartitionLog, now_ms: int, high_watermark: int) -> list[Path]:
    """Remove the segments that have expired, and those below the log start offset.

    Returns their files, renamed to `.deleted`, for removal after `file.delete.delay.ms`.
    """
    config = log.config
    facts = retention.describe_segments(
        log.storage.disk, log.segments, log.log_end_offset, config.index_interval_bytes
    )
    count = retention.expired_count(facts, config, now_ms, log.log_start_offset, high_watermark)
    log.next_expiry_ms = retention.next_expiry_ms(facts[count:], config)
    if not count:
        return []
    if count == len(facts):
        log.roll()
    segments = log.segments
    paths = _retire(log, 0, count)
    advance_start(log, max(segments[0].base_offset, log.log_start_offset))
    log.producers.remove_obsolete(segments)
    return paths


def _retire(log: PartitionLog, first: int, count: int) -> list[Path]:
    try:
        paths = log.segment_files.retire(log.segments, first, count)
    except OSError as error:
        raise log.storage_error("cannot drop segments", error) from error
    log.storage.flush_due[log] = None
    return paths


# Compaction


def replace_segments(
    log: PartitionLog, old: Sequence[int], new: Sequence[int | Path]
) -> list[Path]:
    """Replace segments by cleaned ones (`<base>.log.cleaned` with indexes).

    `old` are the base offsets of neighbouring segments below the recovery point; `new` are base
    offsets or paths. Stages the cleaned segments if the caller did not. Returns the old files,
    renamed to `.deleted`, for removal after `file.delete.delay.ms`.
    """
    segments, files = log.segments, log.segment_files
    first, count = number_of(segments, old[0]), len(old)
    if [s.base_offset for s in segments[first : first + count]] != list(old):
        raise ValueError(f"segments {list(old)} of {log.topic_partition} are not neighbours")
    end = end_of(segments, first + count - 1, log.log_end_offset)
    if end > log.recovery_point:
        raise ValueError(f"segments {list(old)} of {log.topic_partition} are not flushed")
    if end > log.checkpointed_point:
        # Recovery treats a gap above the recovery point as damage.
        log.storage.checkpoint_now()
    if not files.is_staged(new):
        files.stage(new)
    paths = _retire(log, first, count)
    files.swap_in(segments, first, new)
    return paths
