"""Connects a consumer to the producer whose transactions commit its offsets.

    begin      before records are handed out
    commit     the offsets and the records sent for them become visible together
    doom       partitions were revoked while their records were processed: other members process
               them, so the transaction is aborted at the application's next call

The consumer owns a transaction from `begin` until `commit` or `abort` ends it. Records are handed
out only while it is open (`is_ready`): what the application sends for them always has a
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.client.error import ProducerFenced, TransactionAborted, UsageError
from millstream.client.producer.transaction import TIMEOUT_S, State, TransactionDriver
from millstream.client.record import Partition


class ExactlyOnce:
    """The transactions of an exactly-once consumer."""

    def __init__(self, producer: Any) -> None:
        driver = getattr(producer, "transactions", None)
        if not isinstance(driver, TransactionDriver):
            raise UsageError(
                "delivery='exactly_once' needs a Millstream producer with a transactional_id, got "
                f"{producer!r}."
            )
        self._driver = driver
        #: Whether a transaction has begun that was not ended here.
        self.is_begun = False
        self._is_doomed = False
        #: The offsets of the commit whose outcome is unknown.
        self._in_doubt: Mapping[Partition, int] = {}

    @property
    def is_ready(self) -> bool:
        """Whether a transaction is open for what is sent next."""
        return self.is_begun and not self._is_doomed and self._driver.state is State.OPEN

    @property
    def is_unsettled(self) -> bool:
        """Whether the outcome of an earlier commit is unknown."""
        return self.is_begun and self._driver.state is State.UNKNOWN

    def begin(self) -> None:
        """Begin a transaction if there is none."""
        if self.is_begun:
            return
        if self._driver.state is not State.OPEN:
            self._driver.begin()
        self.is_begun = True
        self._is_doomed = False

    def doom(self) -> None:
        """Abort the transaction at the next commit."""
        self._is_doomed = True

    def commit(
        self, offsets: Mapping[Partition, int], metadata: Any, timeout_s: float = TIMEOUT_S
    ) -> Mapping[Partition, int]:
        """Commit, and return the offsets that are committed now.

        If the outcome of an earlier commit is unknown, ask for that outcome and return the offsets
        of that commit. Raises TransactionAborted once the transaction is aborted.
        """
        try:
            if self._driver.state is not State.UNKNOWN:
                self._check()
                self._driver.add_offsets(offsets, metadata)
                self._in_doubt = dict(offsets)
            self._driver.commit(timeout_s)
        except TransactionAborted:
            self.abort()
            raise
        self.is_begun = False
        return self._in_doubt

    def abort(self) -> None:
        """Abort the transaction, if it was not ended elsewhere."""
        if self._driver.state in (State.OPEN, State.UNKNOWN):
            self._driver.abort()
        self.is_begun = False

    def _check(self) -> None:
        state = self._driver.state
        if state is State.BROKEN:
            raise ProducerFenced(
                "The producer failed, and its transaction with it: close both clients."
            )
        if state is not State.OPEN:
            raise TransactionAborted(
                f"The producer's transaction is {state}, and its consumer did not commit it: its "
                "records are read again."
            )
        if self._is_doomed:
            raise TransactionAborted(
                "Partitions were revoked while their records were processed: other members "
                "process them, and this transaction was aborted."
            )
