"""When and how a consumer commits, by delivery mode.

    at least once   processed records, at intervals, before partitions are revoked, and when closing
    at most once    records before they are handed out. Before partitions are revoked and when
                    closing, back to the last one handed out: the others are not lost
    exactly once    processed records in the transaction of what was sent for them, at intervals and
                    when closing. An abort rewinds the positions

The caller holds the core's lock, because this calls librdkafka.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer as RdKafkaConsumer

from millstream.client.consumer.assignment import Assignment
from millstream.client.consumer.consumer_handle import commit
from millstream.client.consumer.exactly_once import ExactlyOnce
from millstream.client.consumer.positions import Positions
from millstream.client.consumer.progress import ends_of, stated
from millstream.client.error import CommitFailed, TransactionAborted, UsageError
from millstream.client.record import Partition, Record
from millstream.client.setting import ConsumerSettings

_logger = logging.getLogger(__name__)


class Committer:
    """Commits offsets. `has_group` is False for a consumer that commits nothing."""

    def __init__(
        self,
        handle: RdKafkaConsumer,
        assignment: Assignment,
        positions: Positions,
        settings: ConsumerSettings,
        *,
        has_group: bool,
    ) -> None:
        self._handle = handle
        self._assignment = assignment
        self._positions = positions
        self._delivery = settings.delivery
        self._interval_s = settings.commit_interval if has_group else 0.0
        self._has_group = has_group
        self._exact = None if settings.producer is None else ExactlyOnce(settings.producer)
        self._committed_at = time.monotonic()

    # Before records are handed out

    @property
    def may_hand_out(self) -> bool:
        """Whether pending records may be handed out without a call that waits."""
        if self._exact is not None:
            return self._exact.is_ready
        return self._delivery != "at_most_once" or self._positions.has_precommitted

    @property
    def is_due(self) -> bool:
        """Whether the commit interval has passed."""
        if not self._interval_s or self._delivery == "at_most_once":
            return False
        return time.monotonic() - self._committed_at >= self._interval_s

    def prepare(self) -> None:
        """End a transaction that cannot continue, and count the current batch as processed."""
        if self._exact is not None:
            self._resolve(self._exact)
        self._positions.mark_processed()
        if self.is_due:
            self._commit_quietly()

    def before_hand_out(self, count_max: int) -> None:
        """Begin a transaction or commit, as the delivery mode requires.

        If this fails, the records stay pending.
        """
        if self._exact is not None:
            self._resolve(self._exact)
            self._exact.begin()
        elif self._delivery == "at_most_once" and not self._positions.has_precommitted:
            messages = self._positions.peek(count_max)
            self._commit(ends_of(messages))
            self._positions.mark_precommitted(messages)

    def _resolve(self, exact: ExactlyOnce) -> None:
        """End a transaction in which nothing can be sent any more, if there is one.

        Handed-out records without a transaction come again: what the application made of them could
        not be sent. These are the records after the offsets of a commit whose outcome was unknown,
        and after a commit of part of a batch when no transaction could begin.
        """
        if exact.is_begun and not exact.is_unsettled and not exact.is_ready:
            self._transact(exact, self._positions.offsets())
        if exact.is_unsettled:
            self._transact(exact, {})
        if not exact.is_begun:
            self._positions.rewind()

    # Commits

    def commit(
        self, records: Record | Iterable[Record] | Mapping[Partition, int] | None = None
    ) -> None:
        """Commit the handed-out records, or up to these records, or these next offsets."""
        if not self._has_group:
            raise UsageError("A consumer without a group cannot commit: pass group_id='...'.")
        if self._delivery == "at_most_once":
            if records is None:
                # The handed-out records are committed already.
                return
            # The records handed out next are committed again.
            self._positions.recall()
        offsets = self._positions.offsets() if records is None else stated(records)
        if records is None and offsets and self._exact is not None:
            self._check_covered(self._exact)
        left = self._positions.take_revoked() if records is None else []
        left = sorted({*left, *(offsets.keys() - self._assignment.partitions)})
        kept = {name: offset for name, offset in offsets.items() if name not in left}
        if self._exact is None:
            self._commit(kept)
        else:
            self._commit_exactly(self._exact, kept)
        if left:
            names = ", ".join(f"{topic}-{number}" for topic, number in left)
            raise CommitFailed(
                f"{names} was assigned to another member before its records were committed "
                "here: that member processes them again."
            )

    def _check_covered(self, exact: ExactlyOnce) -> None:
        """Raise if the current batch has no transaction: none could begin after the last commit.

        What the application made of its records could not be sent, so they come again.
        """
        if not exact.is_begun and not exact.is_unsettled:
            self._positions.rewind()
            raise CommitFailed(
                "The current records have no transaction: none could begin after the last commit. "
                "They are read again."
            )

    def _commit(self, offsets: Mapping[Partition, int]) -> None:
        self._committed_at = time.monotonic()
        if offsets:
            commit(self._handle, offsets)
            self._positions.committed(offsets)

    def _commit_exactly(self, exact: ExactlyOnce, offsets: Mapping[Partition, int]) -> None:
        # The next record of an iteration needs a transaction. The next poll begins it.
        self._positions.recall()
        if exact.is_unsettled:
            done = self._transact(exact, {})
            offsets = {name: offsets[name] for name in offsets if done.get(name) != offsets[name]}
        if exact.is_begun or offsets:
            exact.begin()
            self._transact(exact, offsets)
        if self._positions.offsets():
            # The application still has records to send output for.
            exact.begin()

    def _transact(
        self, exact: ExactlyOnce, offsets: Mapping[Partition, int]
    ) -> Mapping[Partition, int]:
        """Commit the transaction with these offsets. Return the offsets that are committed now."""
        self._committed_at = time.monotonic()
        try:
            done = exact.commit(offsets, self._handle.consumer_group_metadata())
        except TransactionAborted:
            self._positions.rewind()
            raise
        mine = self._assignment.partitions
        self._positions.committed({name: done[name] for name in done if name in mine})
        return done

    def _commit_quietly(self, partitions: Iterable[Partition] | None = None) -> None:
        """Commit processed records of these partitions, or of all. A failure is logged.

        Those records are committed the next time, or read again.
        """
        self._committed_at = time.monotonic()
        chosen = set(self._assignment.partitions if partitions is None else partitions)
        offsets = {
            name: offset for name, offset in self._positions.processed().items() if name in chosen
        }
        try:
            if self._exact is None:
                self._commit(offsets)
            elif self._exact.is_begun:
                self._transact(self._exact, offsets)
        except (CommitFailed, TransactionAborted) as error:
            _logger.warning("%s", error)

    # Revoked partitions, and closing

    def before_revoke(self, partitions: list[Partition]) -> None:
        """Commit while this member still has the partitions."""
        if self._exact is not None:
            if self._positions.has_current_batch or not self._interval_s:
                self._exact.doom()
            else:
                self._commit_quietly()
        elif self._delivery == "at_most_once":
            self._commit_back(partitions)
        elif self._interval_s:
            self._commit_quietly(partitions)

    def lost(self) -> None:
        """Abort the transaction: other members may have partitions already."""
        if self._exact is not None:
            self._exact.doom()

    def finish(self, *, is_failing: bool) -> None:
        """Commit processed records, without those that the application failed at."""
        if self._delivery == "at_most_once":
            self._commit_back(self._assignment.partitions)
            return
        if self._exact is not None and is_failing:
            if self._exact.is_begun:
                self._exact.abort()
            return
        if is_failing:
            self._positions.fail()
        self._positions.mark_processed()
        if self._interval_s:
            self._commit_quietly()

    def _commit_back(self, partitions: Iterable[Partition]) -> None:
        """Commit exactly the handed-out records.

        Records that were committed and recalled go to other members.
        """
        chosen = set(partitions)
        self._positions.recall()
        offsets = {
            name: offset for name, offset in self._positions.handed_out().items() if name in chosen
        }
        try:
            self._commit(offsets)
        except CommitFailed as error:
            _logger.warning("%s", error)
