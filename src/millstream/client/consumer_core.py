"""What the consumers, sync and asyncio, share: one librdkafka consumer and what came of it.

    fetched (librdkafka) -> pending -> in hand -> processed -> committed

Records in hand count as processed when the application comes back for more, or commits. Only one
thread at a time may use librdkafka's consumer; `_lock` is held for whole calls, never per record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Message

from millstream.client.assignment import Assignment
from millstream.client.buffer import Buffer
from millstream.client.consumer_handle import (
    SLICE_S,
    commit,
    committed,
    fetch,
    offsets_at,
    open_handle,
    partitions_of,
    seek,
    sorted_out,
)
from millstream.client.error import (
    BrokerError,
    ClosedError,
    CommitFailed,
    TransactionAborted,
    UsageError,
    from_kafka,
)
from millstream.client.exactly_once import ExactlyOnce
from millstream.client.keeper import Keeper
from millstream.client.lane import LOGGER
from millstream.client.progress import Progress, ends_of, only_of, stated
from millstream.client.record import Partition, Record, Records, record_type
from millstream.client.setting import ConsumerSettings

Position = int | Literal["earliest", "latest"]
_ENDS: Final = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}


class ConsumerCore:
    def __init__(
        self,
        servers: str | None,
        group: str | None,
        topics: Sequence[str],
        settings: ConsumerSettings,
        owner: Any,
    ) -> None:
        self._settings = settings
        self._group = group
        self._owner = owner
        self._lock = threading.RLock()
        self.is_closing = self.is_closed = False
        self._buffer = Buffer()
        self._progress = Progress(only_of(topics))
        self._kept_error: Exception | None = None
        self._polled_at = self._committed_at = time.monotonic()
        self._make = record_type(
            None if settings.key_serializer is None else settings.key_serializer.decode,
            None if settings.value_serializer is None else settings.value_serializer.decode,
        )
        self._exact = ExactlyOnce(settings.producer) if settings.producer is not None else None
        if group is None and settings.delivery != "at_least_once":
            raise UsageError(f"delivery={settings.delivery!r} needs a group, which commits.")
        self._handle = open_handle(settings.properties(servers, group))
        self.assignment = Assignment(self._handle, self, is_cooperative=settings.is_cooperative)
        if group is None:
            self.assignment.take(partitions_of(self._handle, topics), _ENDS[settings.start])
        else:
            self.assignment.subscribe(topics)
        self._keeper = None if group is None else Keeper(self._idle_s, self._keep)

    # Reading

    def take(
        self,
        count_max: int,
        timeout_s: float,
        ahead: int = 0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Records:
        """The next records, waited for until `is_over`; those before count as processed. So many
        more as `ahead` says are taken in, for `take_ready`."""
        with self._lock:
            self._prepare()
            if not self._buffer.pending:
                fetched = self._fetch(count_max + ahead, timeout_s, is_over)
                self._buffer.pending += fetched
            messages = self._buffer.take(count_max)
            self._before_handing_out(messages)
            return self._hand_out(messages)

    def take_ready(self, count_max: int) -> Records | None:
        """As `take`, of what was taken in; None if that needs a call that may wait."""
        if not self._buffer.pending or not self._lock.acquire(blocking=False):
            return None
        try:
            if self.is_closing or not self._buffer.pending or self._is_something_due():
                return None
            self._settle()
            return self._hand_out(self._buffer.take(count_max))
        finally:
            self._lock.release()

    def _hand_out(self, messages: list[Message]) -> Records:
        self._buffer.hand_out(messages)
        self._polled_at = time.monotonic()
        return Records(messages, self._make)

    def _is_something_due(self) -> bool:
        """Whether more than records is to be dealt with before the next are handed out."""
        return (
            self._kept_error is not None
            or self._settings.delivery != "at_least_once"
            or self.assignment.is_resting
            or self._is_commit_due()
        )

    def walk(self, count_max: int) -> Iterator[Record]:
        """Records one by one, until the consumer is closed."""
        while not self.is_closing:
            yield from self.step(self.take(count_max, SLICE_S))

    def step(self, records: Records) -> Iterator[Record]:
        """The records just taken, one by one: those not reached yet count as not handed out."""
        buffer = self._buffer
        batch = buffer.in_hand
        if not records.is_of(batch):
            return
        buffer.step()
        for number, record in enumerate(records, 1):
            buffer.reached = number
            yield record
            if buffer.in_hand is not batch:
                return

    def hand_back(self) -> None:
        """The records taken last did not reach the application: they come again."""
        with self._lock:
            self._buffer.reached = 0

    def _prepare(self) -> None:
        self.check_open()
        if self._kept_error is not None:
            error, self._kept_error = self._kept_error, None
            raise error
        self._settle()
        self._commit_now_and_then()
        self.assignment.wake()

    def _fetch(
        self, count_max: int, timeout_s: float, is_over: Callable[[], bool]
    ) -> list[Message]:
        messages = fetch(self._handle, count_max, timeout_s, lambda: self.is_closing or is_over())
        return self._without_errors(messages) if any(map(Message.error, messages)) else messages

    def _without_errors(self, messages: list[Message]) -> list[Message]:
        good, error = sorted_out(messages)
        if error is not None:
            self._buffer.pending += good
            raise from_kafka(error, "Reading", BrokerError)
        return good

    def _before_handing_out(self, messages: list[Message]) -> None:
        if not messages:
            return
        if self._exact is not None:
            self._exact.begin()
            self._progress.hand_out(messages)
        elif self._settings.delivery == "at_most_once":
            self._commit(ends_of(messages))

    def _settle(self) -> None:
        """What the application was given, it is done with."""
        if self._buffer.in_hand:
            self._progress.add(self._buffer.settle())

    # Committing

    def commit(
        self, records: Record | Iterable[Record] | Mapping[Partition, int] | None = None
    ) -> None:
        """Commit what was processed, or up to these records, or these next offsets."""
        with self._lock:
            self.check_open()
            if self._group is None:
                raise UsageError("A consumer without a group cannot commit: give group='...'.")
            offsets = self.offsets() if records is None else stated(records)
            gone = offsets.keys() - self.assignment.partitions
            kept = {name: offset for name, offset in offsets.items() if name not in gone}
            if self._exact is not None:
                self._commit_exactly(kept)
            else:
                self._commit(kept)
            if gone:
                names = ", ".join(f"{topic}-{number}" for topic, number in sorted(gone))
                self._progress.forget(gone)
                raise CommitFailed(
                    f"{names} was given to another member before its records were committed here: "
                    "it will process them again."
                )

    def offsets(self) -> dict[Partition, int]:
        """The next offsets after what was processed and is not committed."""
        with self._lock:
            return self._progress.uncommitted(self._buffer.given())

    def group_metadata(self) -> Any:
        with self._lock:
            self.check_open()
            return self._handle.consumer_group_metadata()

    def _commit(self, offsets: Mapping[Partition, int]) -> None:
        self._committed_at = time.monotonic()
        if not offsets:
            return
        commit(self._handle, offsets)
        self._progress.committed(offsets)

    def _commit_exactly(self, offsets: Mapping[Partition, int]) -> None:
        assert self._exact is not None
        self._committed_at = time.monotonic()
        if not self._exact.is_open:
            return
        try:
            self._exact.commit(offsets, self._handle.consumer_group_metadata())
        except TransactionAborted:
            self._rewind()
            raise
        self._progress.committed(offsets)

    def _commit_now_and_then(self) -> None:
        """What the application leaves to us: settled transactions, and commits at intervals."""
        if self._exact is not None and (self._exact.is_doomed or self._exact.is_unsettled):
            self._commit_exactly(self.offsets())
        if self._is_commit_due():
            self._commit_quietly(self.assignment.partitions)

    def _is_commit_due(self) -> bool:
        interval_s = self._settings.commit_interval_s
        if not interval_s or self._group is None:
            return False
        return time.monotonic() - self._committed_at >= interval_s

    def _commit_quietly(self, partitions: Iterable[Partition]) -> None:
        """Of these partitions; what fails is committed the next time, or read again."""
        chosen = set(partitions)
        offsets = {
            name: offset for name, offset in self._progress.uncommitted().items() if name in chosen
        }
        try:
            if self._exact is not None:
                self._commit_exactly(offsets)
            else:
                self._commit(offsets)
        except (CommitFailed, TransactionAborted) as error:
            LOGGER.warning("%s", error)

    def _rewind(self) -> None:
        """Back to the last commit."""
        self._buffer.clear()
        for partition, offset in self._progress.rewind().items():
            if partition in self.assignment.partitions:
                self._buffer.pending += seek(self._handle, partition, offset)

    # Elsewhere

    def seek(
        self, topic: str, number: int | None, offset: Position | None, time_ms: int | None
    ) -> None:
        with self._lock:
            self.check_open()
            if (offset is None) == (time_ms is None):
                raise UsageError("Seek to an offset or to a time: give one of the two.")
            chosen = self.assignment.chosen(topic, number)
            if time_ms is not None:
                targets = offsets_at(self._handle, chosen, time_ms)
            else:
                target = _ENDS[offset] if isinstance(offset, str) else offset
                targets = dict.fromkeys(chosen, target or 0)
            self._settle()
            self._drop(chosen)
            for partition, target in targets.items():
                if not self.assignment.start_at(partition, target):
                    self._buffer.pending += seek(self._handle, partition, target)

    def pause(self, topic: str, number: int | None) -> None:
        with self._lock:
            self.check_open()
            chosen = self.assignment.chosen(topic, number)
            self._settle()
            self.assignment.pause(chosen)
            self._buffer.hold(chosen)

    def resume(self, topic: str, number: int | None) -> None:
        with self._lock:
            self.check_open()
            chosen = self.assignment.chosen(topic, number)
            self._settle()
            self.assignment.resume(chosen)
            self._buffer.release(chosen)

    def committed(self) -> dict[Partition, int]:
        """What the group has committed in the partitions of this consumer."""
        with self._lock:
            self.check_open()
            if self._group is None:
                return {}
            return committed(self._handle, self.assignment.partitions)

    # Rebalances: called inside librdkafka's poll, with the lock held

    def assigned(self, partitions: list[Partition]) -> None:
        if self._settings.on_assign is not None:
            self._settings.on_assign(self._owner, partitions)

    def revoked(self, partitions: list[Partition]) -> None:
        if self._exact is not None and (
            self._buffer.in_hand or not self._settings.commit_interval_s
        ):
            self._exact.doom()
        elif self._settings.commit_interval_s:
            self._commit_quietly(partitions if self._exact is None else self.assignment.partitions)
        if self._settings.on_revoke is not None:
            self._settings.on_revoke(self._owner, partitions)
        self._drop(partitions)

    def lost(self, partitions: list[Partition]) -> None:
        if self._exact is not None:
            self._exact.doom()
        callback = self._settings.on_lost or self._settings.on_revoke
        if callback is not None:
            callback(self._owner, partitions)
        self._drop(partitions)

    def _keep(self) -> None:
        """Stay in the group while the application is busy; see the keeper."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self.is_closing:
                return
            self.assignment.rest()
            message = self._handle.poll(0)
            if message is not None:
                self._buffer.pending += self._without_errors([message])
        except Exception as error:  # noqa: BLE001 -- raised by the application's next poll
            self._kept_error = error
        finally:
            self._lock.release()

    # The end

    def close(self, *, is_failing: bool) -> None:
        """Leave the group. What was processed is committed; what failed in hand is not."""
        if self.is_closing:
            return
        self.is_closing = True
        if self._keeper is not None:
            self._keeper.stop()
        with self._lock:
            if is_failing:
                self._buffer.fail()
            self._settle()
            try:
                self._commit_last(is_failing=is_failing)
            finally:
                self._handle.close()
                self.is_closed = True

    def _commit_last(self, *, is_failing: bool) -> None:
        if self._exact is not None and is_failing:
            self._exact.abort()
        elif self._group is not None and self._settings.commit_interval_s:
            self._commit_quietly(self.assignment.partitions)

    def _drop(self, partitions: list[Partition]) -> None:
        """Forget what was fetched of them and where they were."""
        self._buffer.drop(partitions)
        self._progress.forget(partitions)

    def _idle_s(self) -> float:
        return time.monotonic() - self._polled_at

    def check_open(self) -> None:
        if self.is_closing:
            raise ClosedError("The consumer is closed: make another one to read or commit.")
