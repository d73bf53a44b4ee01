"""Bringing a log into memory, opening it for appends, and freeing its memory again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.log import recovery
from millstream.log.files import FileCache
from millstream.log.segment import Segment

if TYPE_CHECKING:
    from millstream.log.log import PartitionLog


def load(log: PartitionLog, files: FileCache) -> list[Segment]:
    """Load the segments of `log`, after a repair if the last shutdown was unclean.

    Raises KAFKA_STORAGE_ERROR.
    """
    if not log.folder.exists:
        log.is_recovered = True
        return log.segment_files.restore([])
    known = recovery.KnownOffsets(
        log.log_start_offset, log.log_end_offset, log.recovery_point, log.is_recovered
    )
    source = recovery.LogSource(
        files,
        log.folder.path,
        log.epochs,
        log.config.index_interval_bytes,
        has_gaps="compact" in log.config.cleanup_policy,
    )
    try:
        loaded = recovery.load(source, known)
    except OSError as error:
        raise log.read_failed(error) from error
    segments = log.segment_files.restore(loaded.segments)
    log.producers.restore(loaded.snapshots, loaded.producers)
    log.is_recovered = True
    log.log_start_offset = loaded.log_start_offset
    log.log_end_offset = loaded.log_end_offset
    if not known.is_clean:
        log.leader_epochs.apply_assigned(log.log_end_offset)
    if log.recovery_point != loaded.recovery_point:
        log.recovery_point = loaded.recovery_point
        log.storage.are_points_stale = True
    if log.recovery_point < log.log_end_offset:
        log.unsynced.has_data = log.unsynced.has_names = True
        log.storage.flush_due[log] = None
    return segments


def open_active(log: PartitionLog) -> Segment:
    """Open the last segment for appends. Creates the folder and the first segment if needed.

    Raises OSError.
    """
    segments = log.segments
    if not log.folder.exists:
        log.folder.create(log.unsynced)
    # An append expects both to be loaded.
    _ = log.epochs, log.producer_state
    active = log.segment_files.open_active(segments, log.log_end_offset, log.config)
    log.producers.start_segment(active.size)
    return active


def unload(log: PartitionLog) -> bool:
    """Free the memory of a log that is not open for appends. Returns whether that was done."""
    files = log.segment_files
    is_used = files.active is not None or log.flushing.in_progress or log.failure
    if is_used or files.loaded is None:
        return False
    files.unload()
    log.leader_epochs.unload()
    log.producers.clear()
    return True
