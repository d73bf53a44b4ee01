"""The link from a consumer to the producer whose transactions carry its offsets.

A transaction begins with the first records handed out and ends with `commit`. If partitions are
taken away meanwhile, others will process their records: the transaction is doomed, and aborted when
the application comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.client.error import TransactionAborted, UsageError
from millstream.client.record import Partition
from millstream.client.transaction import TIMEOUT_S, State, TransactionDriver


class ExactlyOnce:
    def __init__(self, producer: Any) -> None:
        driver = getattr(producer, "transactions", None)
        if not isinstance(driver, TransactionDriver):
            raise UsageError(
                "delivery='exactly_once' needs a Millstream producer with a transactional_id, got "
                f"{producer!r}."
            )
        self._driver = driver
        self._is_doomed = False

    @property
    def is_open(self) -> bool:
        return self._driver.state in (State.OPEN, State.UNKNOWN)

    @property
    def is_unsettled(self) -> bool:
        """Whether an earlier commit has still to be answered."""
        return self._driver.state is State.UNKNOWN

    @property
    def is_doomed(self) -> bool:
        return self._is_doomed and self.is_open

    def begin(self) -> None:
        if not self.is_open:
            self._is_doomed = False
            self._driver.begin()

    def doom(self) -> None:
        self._is_doomed = True

    def commit(
        self, offsets: Mapping[Partition, int], metadata: Any, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Raises TransactionAborted, with the transaction aborted, where it cannot be done."""
        if self.is_doomed:
            self.abort()
            raise TransactionAborted(
                "Partitions were taken away while their records were processed: others process "
                "them, and this transaction was aborted."
            )
        if self._driver.state is State.OPEN:
            try:
                self._driver.add_offsets(offsets, metadata)
            except TransactionAborted:
                self.abort()
                raise
        self._driver.commit(timeout_s)

    def abort(self) -> None:
        if self.is_open:
            self._driver.abort()
