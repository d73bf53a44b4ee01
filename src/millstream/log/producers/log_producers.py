"""The producer state of one log, with the snapshots that restore it.

Owns when a snapshot is written and which snapshots stay, and the step from an appended batch to
producer state and transaction index. The checks of sequences and epochs are `ProducerState`'s.
"""

from __future__ import annotations

from typing import Final

from millstream.log.directory.log_folder import LogFolder
from millstream.log.flush.unsynced import UnsyncedChanges
from millstream.log.index.transaction_index import AbortedTransaction
from millstream.log.producers.producer_state import ProducerState
from millstream.log.producers.replay import rebuild_transaction_index, replay
from millstream.log.producers.snapshot import ProducerSnapshots
from millstream.log.segment import Segment
from millstream.log.segment_files import end_of, number_of
from millstream.records.batch import CONTROL_FLAG, BatchHeader
from millstream.records.control import read_marker
from millstream.records.crc import Buffer

#: A flush writes a snapshot after this many bytes, beside those at segment starts, so that recovery
#: replays little.
_SNAPSHOT_INTERVAL_BYTES: Final = 1 << 20
#: Snapshots that stay although no segment starts at their offset.
_RECENT_SNAPSHOTS: Final = 2


class LogProducers:
    """Producer state and snapshots of one log. Empty until `restore`; raises OSError."""

    __slots__ = ("_folder", "_snapshot_size", "_snapshots", "_unsynced", "state")

    def __init__(self, folder: LogFolder, unsynced: UnsyncedChanges) -> None:
        self._folder = folder
        self._unsynced = unsynced
        #: None until it is first needed.
        self.state: ProducerState | None = None
        self._snapshots: ProducerSnapshots | None = None
        #: Size of the active segment when its last snapshot was written.
        self._snapshot_size = 0

    @property
    def snapshots(self) -> ProducerSnapshots:
        if self._snapshots is None:
            self._snapshots = ProducerSnapshots(self._folder.storage.disk, self._folder.path, [])
        return self._snapshots

    def restore(self, snapshots: ProducerSnapshots, state: ProducerState | None) -> None:
        """Take over what `recovery` found on disk. `state` None: `load` reads it when needed."""
        self._snapshots = snapshots
        self.state = state

    def clear(self) -> None:
        """Forget everything in memory."""
        self._snapshots = self.state = None

    def load(self, segments: list[Segment], end: int) -> ProducerState:
        """Return the state at the end of a log that is intact.

        A log without snapshots never had producers.
        """
        state = self.state
        if state is None:
            state = ProducerState()
            if self.snapshots.offsets:
                state, start = self.snapshots.newest(end)
                replay(state, segments, start, end)
                state.is_dirty = start != end
            self.state = state
        return state

    def append(
        self, segment: Segment, batch: Buffer, header: BatchHeader, offset: int, timestamp_ms: int
    ) -> None:
        """Record a batch with a producer id that was appended to `segment` at `offset`."""
        state = self.state
        assert state is not None
        if not header.attributes & CONTROL_FLAG:
            state.append(header, offset, timestamp_ms)
            return
        marker = read_marker(batch, header)
        aborted = state.end_transaction(header, offset, timestamp_ms, marker)
        if aborted is not None:
            segment.transaction_index.append(aborted)
            # The next flush creates the file if this is its first entry.
            self._unsynced.has_names = True

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget idle producers if the state is loaded. Returns their number."""
        if self.state is None or not self.state.entries:
            return 0
        return self.state.expire(now_ms, expiration_ms)

    # Snapshots

    def write_snapshot(self, segments: list[Segment], end: int) -> None:
        """Write the state as of `end`, the log end offset, and remove obsolete snapshots."""
        path = self.snapshots.write(end, self.load(segments, end))
        self._unsynced.add_file(path)
        self.remove_obsolete(segments)

    def write_snapshot_if_due(self, segments: list[Segment], active: Segment, end: int) -> None:
        """Write a snapshot if the active segment has grown enough since the last one."""
        if active.size - self._snapshot_size > _SNAPSHOT_INTERVAL_BYTES:
            self.write_snapshot(segments, end)
            self._snapshot_size = active.size

    def write_last_snapshot(self, segments: list[Segment], active: Segment, end: int) -> None:
        """Write a snapshot before the log is closed, if the next load needs it."""
        state, offsets = self.load(segments, end), self.snapshots.offsets
        is_new = end not in offsets
        is_long = active.size > _SNAPSHOT_INTERVAL_BYTES
        if (is_new or state.is_dirty) and (state.entries or offsets or is_long):
            self.write_snapshot(segments, end)

    def start_segment(self, size: int) -> None:
        """Count the bytes until the next snapshot from here: the active segment is another one."""
        self._snapshot_size = size

    def remove_obsolete(self, segments: list[Segment]) -> None:
        """Remove all snapshots but those at segment starts and the most recent ones."""
        bases = {segment.base_offset for segment in segments[1:]}
        offsets = self.snapshots.offsets
        self.snapshots.keep([*bases.intersection(offsets), *offsets[-_RECENT_SNAPSHOTS:]])

    def truncate_to(self, segments: list[Segment], offset: int) -> None:
        """Go back to the state at `offset`, the new log end offset."""
        before = self.load(segments, offset)
        self.snapshots.truncate_to(offset)
        state, start = self.snapshots.newest()
        replay(state, segments, start, offset)
        state.is_dirty = True
        state.transactions.keep_ended(before.transactions, offset)
        self.state = state

    def remove_snapshots(self) -> None:
        """Remove all snapshots: every record of the log was removed."""
        self.snapshots.keep(())

    # Transactions

    def aborted_transactions(
        self, segments: list[Segment], log_end_offset: int, from_offset: int, upper_offset: int
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in [from_offset, upper_offset).

        That range must be stable. Raises CORRUPT_MESSAGE where a damaged index cannot be rebuilt.
        """
        found: list[AbortedTransaction] = []
        for number in range(max(number_of(segments, from_offset), 0), len(segments)):
            segment = segments[number]
            if not segment.transaction_index_checked:
                if not segment.transaction_index.is_sane():
                    end = end_of(segments, number, log_end_offset)
                    rebuild_transaction_index(self.snapshots, segments, number, end)
                segment.transaction_index_checked = True
            index = segment.transaction_index
            if len(index) and not index.overlapping(from_offset, upper_offset, found):
                break
        return found
