"""The transactions of a log that are open, or ended and not yet stable.

A transaction is open from its first batch to its marker. It stays unstable until its marker is
below the high watermark. `read_committed` consumers read up to the first unstable offset.
"""

from __future__ import annotations

from collections import deque


class OpenTransactions:
    """Tracks where unstable transactions begin."""

    __slots__ = ("_ended", "_open")

    def __init__(self) -> None:
        #: First offset -> producer id of the open transactions, ascending.
        self._open: dict[int, int] = {}
        #: (marker offset, first offset) of ended transactions that may be unstable, ascending.
        self._ended: deque[tuple[int, int]] = deque()

    @property
    def has_unstable(self) -> bool:
        """Whether an offset may be unstable."""
        return bool(self._open or self._ended)

    def begin(self, offset: int, producer_id: int) -> None:
        """Record a transaction whose first batch is at `offset`, above all others."""
        self._open[offset] = producer_id

    def end(self, start: int, marker_offset: int) -> int:
        """Record the marker of the transaction that began at `start`.

        Returns the last stable offset once that marker is committed.
        """
        del self._open[start]
        self._ended.append((marker_offset, start))
        return next(iter(self._open), marker_offset + 1)

    def restore(self, starts: dict[int, int]) -> None:
        """Replace the open transactions by those of a snapshot: first offset -> producer id."""
        self._open = dict(sorted(starts.items()))

    def first_unstable_offset(self, high_watermark: int) -> int:
        """Return the first unstable offset, at most `high_watermark`.

        Forgets the transactions that ended below the high watermark.
        """
        ended = self._ended
        while ended and ended[0][0] < high_watermark:
            ended.popleft()
        first = min(next(iter(self._open), high_watermark), high_watermark)
        return min(first, *(start for _, start in ended)) if ended else first

    def keep_ended(self, before: OpenTransactions, offset: int) -> None:
        """Copy the transactions that ended below `offset` from the state before a truncation.

        A replay from a snapshot only sees the transactions that ended after it.
        """
        self._ended = deque(each for each in before._ended if each[0] < offset)
