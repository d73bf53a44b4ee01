"""When and how a consumer commits, by delivery mode.

    at least once   processed records, at intervals, before partitions leave, and at the end
    at most once    records before they are handed out. Before partitions leave and at the end, back
                    to those that were: records that nobody was given are not lost
    exactly once    processed records with the transaction of what was sent for them, at intervals
                    and at the end. A transaction that is aborted sends the reading back

Called with the core's lock held, because it calls librdkafka.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer as Handle

from millstream.client.consumer.assignment import Assignment
from millstream.client.consumer.consumer_handle import commit
from millstream.client.consumer.exactly_once import ExactlyOnce
from millstream.client.consumer.positions import Reading
from millstream.client.consumer.progress import ends_of, stated
from millstream.client.error import CommitFailed, TransactionAborted, UsageError
from millstream.client.producer.producer_handle import LOGGER
from millstream.client.record import Partition, Record
from millstream.client.setting import ConsumerSettings


class Committer:
    """`has_group` is False for a consumer that commits nothing."""

    def __init__(
        self,
        handle: Handle,
        assignment: Assignment,
        reading: Reading,
        settings: ConsumerSettings,
        *,
        has_group: bool,
    ) -> None:
        self._handle = handle
        self._assignment = assignment
        self._reading = reading
        self._delivery = settings.delivery
        self._interval_s = settings.commit_interval_s if has_group else 0.0
        self._has_group = has_group
        self._exact = None if settings.producer is None else ExactlyOnce(settings.producer)
        self._committed_at = time.monotonic()

    # Before records are handed out

    @property
    def is_clear(self) -> bool:
        """Whether pending records may be handed out without a call that waits."""
        if self._exact is not None:
            return self._exact.is_ready
        return self._delivery != "at_most_once" or self._reading.has_cleared

    @property
    def is_due(self) -> bool:
        """Whether it is time for the commit at intervals."""
        if not self._interval_s or self._delivery == "at_most_once":
            return False
        return time.monotonic() - self._committed_at >= self._interval_s

    def prepare(self) -> None:
        """Settle what the application left to us, and count what it was given as processed."""
        if self._exact is not None:
            self._resolve(self._exact)
        self._reading.settle()
        if self.is_due:
            self._commit_quietly()

    def clear(self, count_max: int) -> None:
        """Do what comes before the next records are handed out. If this fails they stay pending."""
        if self._exact is not None:
            self._resolve(self._exact)
            self._exact.begin()
        elif self._delivery == "at_most_once" and not self._reading.has_cleared:
            messages = self._reading.peek(count_max)
            self._commit(ends_of(messages))
            self._reading.clear(messages)

    def _resolve(self, exact: ExactlyOnce) -> None:
        """End a transaction in which nothing can be sent any more, if there is one.

        Records that were handed out and have no transaction come again: what the application made
        of them could not be sent. This is so behind the offsets of a commit whose outcome was
        unknown, and after a commit of a part of a batch behind which no transaction could begin.
        """
        if exact.is_begun and not exact.is_unsettled and not exact.is_ready:
            self._transact(exact, self._reading.offsets())
        if exact.is_unsettled:
            self._transact(exact, {})
        if not exact.is_begun:
            self._reading.rewind()

    # Commits

    def commit(
        self, records: Record | Iterable[Record] | Mapping[Partition, int] | None = None
    ) -> None:
        """Commit what was handed out, or up to these records, or these next offsets."""
        if not self._has_group:
            raise UsageError("A consumer without a group cannot commit: give group='...'.")
        if self._delivery == "at_most_once":
            if records is None:
                # What was handed out was committed before.
                return
            # What is handed out next is committed anew.
            self._reading.recall()
        offsets = self._reading.offsets() if records is None else stated(records)
        if records is None and offsets and self._exact is not None:
            self._check_covered(self._exact)
        left = self._reading.take_left() if records is None else []
        left = sorted({*left, *(offsets.keys() - self._assignment.partitions)})
        kept = {name: offset for name, offset in offsets.items() if name not in left}
        if self._exact is None:
            self._commit(kept)
        else:
            self._commit_exactly(self._exact, kept)
        if left:
            names = ", ".join(f"{topic}-{number}" for topic, number in left)
            raise CommitFailed(
                f"{names} was given to another member before its records were committed here: "
                "it will process them again."
            )

    def _check_covered(self, exact: ExactlyOnce) -> None:
        """Raise if the records in hand have no transaction: none could begin behind the last one.

        What the application made of them could not be sent, so they come again."""
        if not exact.is_begun and not exact.is_unsettled:
            self._reading.rewind()
            raise CommitFailed(
                "The records in hand have no transaction: none could begin after the last commit. "
                "They will be read again."
            )

    def _commit(self, offsets: Mapping[Partition, int]) -> None:
        self._committed_at = time.monotonic()
        if offsets:
            commit(self._handle, offsets)
            self._reading.committed(offsets)

    def _commit_exactly(self, exact: ExactlyOnce, offsets: Mapping[Partition, int]) -> None:
        # The next record of a walk needs a transaction, which the next take begins.
        self._reading.recall()
        if exact.is_unsettled:
            done = self._transact(exact, {})
            offsets = {name: offsets[name] for name in offsets if done.get(name) != offsets[name]}
        if exact.is_begun or offsets:
            exact.begin()
            self._transact(exact, offsets)
        if self._reading.offsets():
            # The application still has records to send something for.
            exact.begin()

    def _transact(
        self, exact: ExactlyOnce, offsets: Mapping[Partition, int]
    ) -> Mapping[Partition, int]:
        """Commit the transaction with these offsets; return the offsets that are committed now."""
        self._committed_at = time.monotonic()
        try:
            done = exact.commit(offsets, self._handle.consumer_group_metadata())
        except TransactionAborted:
            self._reading.rewind()
            raise
        mine = self._assignment.partitions
        self._reading.committed({name: done[name] for name in done if name in mine})
        return done

    def _commit_quietly(self, partitions: Iterable[Partition] | None = None) -> None:
        """Commit what was processed, of these partitions or of all. What fails is logged: it is
        committed the next time, or read again."""
        self._committed_at = time.monotonic()
        chosen = set(self._assignment.partitions if partitions is None else partitions)
        offsets = {
            name: offset for name, offset in self._reading.processed().items() if name in chosen
        }
        try:
            if self._exact is None:
                self._commit(offsets)
            elif self._exact.is_begun:
                self._transact(self._exact, offsets)
        except (CommitFailed, TransactionAborted) as error:
            LOGGER.warning("%s", error)

    # Partitions that go, and the end

    def before_revoke(self, partitions: list[Partition]) -> None:
        """Commit while the partitions are still ours."""
        if self._exact is not None:
            if self._reading.is_in_hand or not self._interval_s:
                self._exact.doom()
            else:
                self._commit_quietly()
        elif self._delivery == "at_most_once":
            self._commit_back(partitions)
        elif self._interval_s:
            self._commit_quietly(partitions)

    def lost(self) -> None:
        """Partitions belong to other members already."""
        if self._exact is not None:
            self._exact.doom()

    def finish(self, *, is_failing: bool) -> None:
        """Commit what was processed; what the application failed at is not."""
        if self._delivery == "at_most_once":
            self._commit_back(self._assignment.partitions)
            return
        if self._exact is not None and is_failing:
            if self._exact.is_begun:
                self._exact.abort()
            return
        if is_failing:
            self._reading.fail()
        self._reading.settle()
        if self._interval_s:
            self._commit_quietly()

    def _commit_back(self, partitions: Iterable[Partition]) -> None:
        """Commit exactly what was handed out: what was committed and recalled goes to others."""
        chosen = set(partitions)
        self._reading.recall()
        offsets = {
            name: offset for name, offset in self._reading.handed_out().items() if name in chosen
        }
        try:
            self._commit(offsets)
        except CommitFailed as error:
            LOGGER.warning("%s", error)
