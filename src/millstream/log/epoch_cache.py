"""Where each leader epoch starts in a log (KIP-101, KIP-279).

Owns the list of (epoch, start offset). Both grow from entry to entry. A flush writes the list to
its checkpoint file before the recovery point moves past an entry. Recovery takes entries above the
recovery point from the batches.
"""

from __future__ import annotations

from bisect import bisect_right

from millstream.model.sentinel import NO_EPOCH


class EpochCache:
    """The leader epochs of one log, ascending."""

    __slots__ = ("entries", "is_dirty")

    def __init__(self, entries: list[tuple[int, int]]) -> None:
        self.entries = entries
        #: Whether the checkpoint file lacks a change.
        self.is_dirty = False

    @property
    def latest(self) -> int:
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Let `epoch` begin at `start_offset`. A known epoch is not moved."""
        if epoch < 0 or epoch <= self.latest:
            return
        # An epoch without records ends when a later one begins at the same offset.
        while self.entries and self.entries[-1][1] >= start_offset:
            self.entries.pop()
        self.entries.append((epoch, start_offset))
        self.is_dirty = True

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch up to `epoch` and its end offset; (-1, -1) if none.

        The latest epoch ends at the log end offset. (-1, -1) for a later epoch.
        """
        if epoch == NO_EPOCH or not self.entries:
            return NO_EPOCH, -1
        if epoch == self.latest:
            return epoch, log_end_offset
        number = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        if number == len(self.entries):
            return NO_EPOCH, -1
        if number == 0:
            # Records older than all known epochs end where the first epoch starts.
            return epoch, self.entries[0][1]
        return self.entries[number - 1][0], self.entries[number][1]

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the record at `offset`, or -1."""
        number = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[number - 1][0] if number else NO_EPOCH

    def truncate_from(self, offset: int) -> None:
        """Remove the epochs that start at `offset` or later."""
        while self.entries and self.entries[-1][1] >= offset:
            self.entries.pop()
            self.is_dirty = True

    def drop_above(self, epoch: int) -> None:
        """Remove the epochs after `epoch`: only damage can have named them."""
        while self.entries and self.entries[-1][0] > epoch:
            self.entries.pop()
            self.is_dirty = True

    def truncate_before(self, offset: int) -> None:
        """Let the log start at `offset`: the epoch that covers it now starts there."""
        number = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        if number and self.entries[number - 1][1] < offset:
            self.entries[:number] = [(self.entries[number - 1][0], offset)]
            self.is_dirty = True
