"""Following transactions through a log, batch by batch, as a cleaning does.

Pure: told of every batch in offset order, it says which data was aborted, and which markers have
outlived their transactions. It must be given all transactions aborted in the range that it is
shown; every other transaction in there was committed, as nothing undecided is cleaned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millstream.log.index.transaction_index import AbortedTransaction
from millstream.records.batch import BatchHeader
from millstream.records.control import EndMarker


class TransactionTrace:
    __slots__ = ("_aborted", "_coming", "_committed", "_kept", "_with_data")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        #: Aborted transactions that begin further on, by first offset.
        self._coming = deque(sorted(aborted, key=_first_offset))
        #: The aborted transaction that each producer is in, or was in last.
        self._aborted: dict[int, AbortedTransaction] = {}
        #: Of those, the producers of which data was seen.
        self._with_data: set[int] = set()
        #: Producers of which committed data was seen, and no marker since.
        self._committed: set[int] = set()
        #: Aborted transactions of which data and marker were seen, in the order of the markers.
        self._kept: list[AbortedTransaction] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether this batch of data, which comes next, was aborted."""
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
        """Whether this control batch, which comes next, ends a transaction without any data.

        `marker` None: it has lost its own record already.
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

    def take_kept(self) -> list[AbortedTransaction]:
        """What the transaction index must list of the markers since the last call.

        A transaction of which no data was left is not worth an entry any more.
        """
        kept, self._kept = self._kept, []
        return kept

    def _advance(self, offset: int) -> None:
        """Let the aborted transactions that begin at or before `offset` begin."""
        while self._coming and self._coming[0].first_offset <= offset:
            aborted = self._coming.popleft()
            self._aborted[aborted.producer_id] = aborted
            self._with_data.discard(aborted.producer_id)


def _first_offset(aborted: AbortedTransaction) -> int:
    return aborted.first_offset
