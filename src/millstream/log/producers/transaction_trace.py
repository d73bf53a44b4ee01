"""The state of transactions while a cleaning reads a log batch by batch.

Pure. It is called for every batch in offset order. It tells which data was aborted, and which
markers belong to transactions without data. It must know all transactions that were aborted in the
range. Every other transaction there was committed, because open transactions are not cleaned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millstream.log.index.transaction_index import AbortedTransaction
from millstream.records.batch import BatchHeader
from millstream.records.control import EndMarker


class TransactionTrace:
    """Tracks the transactions of a log while its batches pass in offset order."""

    __slots__ = ("_aborted", "_coming", "_committed", "_kept", "_with_data")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        #: Aborted transactions that begin later, by first offset.
        self._coming = deque(sorted(aborted, key=_first_offset))
        #: Producer id -> its current or last aborted transaction.
        self._aborted: dict[int, AbortedTransaction] = {}
        #: Producers of these with data batches so far.
        self._with_data: set[int] = set()
        #: Producers with committed data and no marker since.
        self._committed: set[int] = set()
        #: Aborted transactions with data and marker, in the order of the markers.
        self._kept: list[AbortedTransaction] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether the next batch, of data, was aborted."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        producer_id = header.producer_id
        aborted = self._aborted.get(producer_id)
        if aborted is not None and header.base_offset < aborted.last_offset:
            self._with_data.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def is_idle(self, header: BatchHeader, marker: EndMarker | None) -> bool:
        """Return whether the next batch, a control batch, ends a transaction without data.

        `marker` None: compaction has removed its record.
        """
        self._advance(header.last_offset)
        if marker is None:
            return True
        producer_id = header.producer_id
        if marker.is_commit:
            is_idle = producer_id not in self._committed
            self._committed.discard(producer_id)
            return is_idle
        aborted = self._aborted.pop(producer_id, None)
        if aborted is None or producer_id not in self._with_data:
            return True
        self._with_data.discard(producer_id)
        self._kept.append(aborted)
        return False

    def pop_kept(self) -> list[AbortedTransaction]:
        """Return the aborted transactions for the transaction index since the last call.

        A transaction without remaining data needs no entry.
        """
        kept, self._kept = self._kept, []
        return kept

    def _advance(self, offset: int) -> None:
        """Move the aborted transactions that begin at or before `offset` to the current ones."""
        while self._coming and self._coming[0].first_offset <= offset:
            aborted = self._coming.popleft()
            self._aborted[aborted.producer_id] = aborted
            self._with_data.discard(aborted.producer_id)


def _first_offset(aborted: AbortedTransaction) -> int:
    return aborted.first_offset
