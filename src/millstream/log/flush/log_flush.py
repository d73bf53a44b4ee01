"""Flushing one log: which files one flush syncs, and what its result means.

    begin     on the event loop: decides what must be synced, and pins the files
    run       in a thread (`FlushTicket.run`): waits for the disk
    finish    on the event loop: releases the files and moves the recovery point

Several flushes of one log may be in progress, but they run one after the other.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from millstream.log.flush.ticket import FlushTicket
from millstream.log.index.rebuild import ensure_indexes
from millstream.log.segment import Segment

if TYPE_CHECKING:
    from millstream.log.log import PartitionLog

#: A flush leaves fewer index entries than this in memory only. Recovery scans the bytes that they
#: cover. Syncing both indexes at every group commit would triple its cost.
_UNWRITTEN_ENTRIES_MAX: Final = 512


class LogFlush:
    """The flushes of one log that are in progress."""

    __slots__ = ("_generation", "in_progress")

    def __init__(self) -> None:
        #: Flushes that began and did not finish.
        self.in_progress = 0
        #: Number of truncations: a flush that began before one proves nothing about later appends.
        self._generation = 0

    def truncated(self) -> None:
        """Invalidate the flushes in progress: the log was truncated."""
        self._generation += 1

    def begin(self, log: PartitionLog, *, is_last: bool) -> FlushTicket | None:
        """Return a ticket for everything that was written so far; None if all of it is durable.

        `is_last`: the log is about to be closed, so all index entries are written. Raises
        KAFKA_STORAGE_ERROR.
        """
        unsynced, storage = log.unsynced, log.storage
        storage.flush_due.pop(log, None)
        storage.unflushed.pop(log, None)
        if not unsynced.has_data and not unsynced.has_names:
            return None
        if not log.folder.exists:
            unsynced.has_names = False
            return None
        try:
            ticket = self._ticket(log, is_last=is_last)
        except OSError as error:
            storage.flush_due[log] = None
            raise log.storage_error("cannot be flushed", error) from error
        # Nothing below can fail.
        epochs = log.epochs
        if epochs.is_dirty:
            ticket.epochs = list(epochs.entries)
        epochs.is_dirty = False
        unsynced.clear()
        self.in_progress += 1
        return ticket

    def _ticket(self, log: PartitionLog, *, is_last: bool) -> FlushTicket:
        segments, active = log.segments, log.segment_files.active
        interval = log.config.index_interval_bytes
        if active is not None:
            log.producers.write_snapshot_if_due(segments, active, log.log_end_offset)
        ticket = FlushTicket(
            log.storage.disk,
            log.folder.path,
            log.log_end_offset,
            self._generation,
            log.unsynced.has_names,
        )
        for segment, following in pairwise(segments):
            if following.base_offset > log.recovery_point:
                _add_segment(ticket, segment, interval, has_indexes=True)
        if segments:
            last = segments[-1]
            is_due = last.offset_index.unwritten_count >= _UNWRITTEN_ENTRIES_MAX
            has_indexes = is_due or is_last or last is not active
            _add_segment(ticket, last, interval, has_indexes=has_indexes)
        for path in log.unsynced.paths:
            ticket.add_path(path)
        _ = log.epochs  # loaded here, where a failure is still harmless
        ticket.pin()
        return ticket

    def begin_last(self, log: PartitionLog) -> FlushTicket | None:
        """Return the flush that must run before the log is closed; None if none is needed.

        Raises KAFKA_STORAGE_ERROR.
        """
        unsynced, active = log.unsynced, log.segment_files.active
        if log.failure is not None or not log.folder.exists:
            return None
        if not log.is_loaded and not unsynced.has_data:
            return None  # a log that was recovered and unloaded may still need a flush
        try:
            if active is not None:
                active.note_last_timestamp()
                if not active.indexes_written:
                    unsynced.has_data = True
                log.producers.write_last_snapshot(log.segments, active, log.log_end_offset)
        except OSError as error:
            raise log.storage_error("cannot be closed", error) from error
        return self.begin(log, is_last=True)

    def finish(self, log: PartitionLog, ticket: FlushTicket) -> None:
        """Release the ticket's files and move the recovery point.

        Raises KAFKA_STORAGE_ERROR if the flush failed. After a failed sync the log is offline.
        After any other failure the next flush syncs the same files again.
        """
        ticket.release()
        self.in_progress -= 1
        if ticket.error is not None:
            log.fail(f"a flush failed: {ticket.error}")
            raise log.storage_error("cannot be flushed", ticket.error)
        if ticket.unfinished is not None:
            log.unsynced.restore(ticket.paths, has_names=ticket.is_name_unsynced)
            log.epochs.is_dirty = True
            log.storage.flush_due[log] = None
            raise log.storage_error("cannot be flushed", ticket.unfinished)
        if ticket.generation == self._generation and ticket.end_offset > log.recovery_point:
            log.recovery_point = ticket.end_offset
            log.storage.are_points_stale = True


def _add_segment(
    ticket: FlushTicket, segment: Segment, interval: int, *, has_indexes: bool
) -> None:
    ticket.add(segment.log)
    if has_indexes:
        ensure_indexes(segment, interval)
        segment.write_indexes()
        ticket.add(segment.offset_index.handle)
        ticket.add(segment.time_index.handle)
    aborted = segment.transaction_index
    if aborted.unwritten_count or (has_indexes and len(aborted)):
        aborted.write_out()
        ticket.add(aborted.handle)
