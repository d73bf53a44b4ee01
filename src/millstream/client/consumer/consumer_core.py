"""What the consumers, sync and asyncio, share: one librdkafka consumer and what came of it.

    fetched (librdkafka) -> pending -> in hand -> processed -> committed

Records in hand count as processed when the application comes back for more, or commits. `Reading`
owns all positions, `Committer` the rules of the delivery modes, `Assignment` the partitions. This
module connects them with librdkafka. Only one thread at a time may use librdkafka's consumer:
`_lock` is held for whole calls, never per record, and never waited for on an event loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Message

from millstream.client.consumer.assignment import Assignment
from millstream.client.consumer.committer import Committer
from millstream.client.consumer.consumer_handle import (
    SLICE_S,
    committed,
    offsets_at,
    open_handle,
    partitions_of,
    seek,
    sorted_out,
)
from millstream.client.consumer.idle_poller import Keeper
from millstream.client.consumer.positions import Reading
from millstream.client.consumer.progress import only_of
from millstream.client.error import BrokerError, ClosedError, TimedOut, UsageError, from_kafka
from millstream.client.producer.producer_handle import LOGGER
from millstream.client.record import Partition, Record, Records, record_type
from millstream.client.setting import ConsumerSettings

Position = int | Literal["earliest", "latest"]
_ENDS: Final = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}
_MOVE_S_MAX: Final = 30.0
_MOVE_SLICE_S: Final = 0.01


class ConsumerCore:
    def __init__(
        self,
        servers: str | None,
        group: str | None,
        topics: Sequence[str],
        settings: ConsumerSettings,
    ) -> None:
        if group is None and settings.delivery != "at_least_once":
            raise UsageError(f"delivery={settings.delivery!r} needs a group, which commits.")
        self._settings = settings
        self._group = group
        self._topics = topics
        #: What the application's callbacks are called with; set before `start`.
        self.owner: Any = None
        self._lock = threading.RLock()
        #: Held for a moment while closing begins, and by calls that must not find librdkafka's
        #: consumer closed but cannot wait for `_lock`.
        self._closing_lock = threading.Lock()
        self.is_closing = self.is_closed = False
        self._kept_error: BaseException | None = None
        self._polled_at = time.monotonic()
        self._make = record_type(
            None if settings.key_serializer is None else settings.key_serializer.decode,
            None if settings.value_serializer is None else settings.value_serializer.decode,
        )
        self._reading = Reading(settings.delivery, only_of(topics))
        self._handle = open_handle(settings.properties(servers, group))
        self.assignment = Assignment(self._handle, self, is_cooperative=settings.is_cooperative)
        self._committer = Committer(
            self._handle, self.assignment, self._reading, settings, has_group=group is not None
        )
        self._keeper: Keeper | None = None

    def start(self) -> None:
        """Join the group, or ask for the partitions of the topics. The latter waits."""
        with self._lock:
            if self.is_closing:
                return
            if self._group is None:
                found = partitions_of(self._handle, self._topics)
                self.assignment.take(found, _ENDS[self._settings.start])
            else:
                self.assignment.subscribe(self._topics)
                self._keeper = Keeper(self._idle_s, self._keep)

    # Reading

    def take(self, count_max: int, timeout_s: float) -> Records:
        """The next records, waited for; those before count as processed."""
        with self._lock:
            self.make_ready(count_max, timeout_s)
            return self._hand_out(count_max)

    def make_ready(
        self,
        count_max: int,
        timeout_s: float,
        ahead: int = 0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Have records pending that may be handed out; wait for them until `is_over`. Hands out
        nothing: whoever gives up waiting loses nothing. Fetches up to `ahead` records more."""
        with self._lock:
            self._prepare()
            if not self._reading.has_pending:
                self._fetch(count_max + ahead, timeout_s, is_over)
            if self._reading.has_pending:
                self._committer.clear(count_max)
                # What that found may have sent the reading back.
                self._move()
            self._polled_at = time.monotonic()
            return self._reading.has_pending

    def take_ready(self, count_max: int) -> Records | None:
        """As `take`, of what is pending; None if that needs a call that may wait."""
        if not self._reading.has_pending or not self._lock.acquire(blocking=False):
            return None
        try:
            if self.is_closing or self._is_something_due():
                return None
            records = self._hand_out(count_max)
            return records if records else None
        finally:
            self._lock.release()

    def no_records(self) -> Records:
        return Records([], self._make)

    def walk(self, count_max: int) -> Iterator[Record]:
        """Records one by one, until the consumer is closed."""
        while not self.is_closing:
            try:
                batch = self.take(count_max, SLICE_S)
            except ClosedError:
                return
            yield from self.step(batch)

    def step(self, records: Records) -> Iterator[Record]:
        """The records just taken, one by one: those not reached yet count as not handed out."""
        return map(self._make, self._reading.walk(records))

    def _hand_out(self, count_max: int) -> Records:
        self._polled_at = time.monotonic()
        return Records(self._reading.hand_out(count_max), self._make)

    def _is_something_due(self) -> bool:
        """Whether more than records is to be dealt with before the next are handed out."""
        return (
            self._kept_error is not None
            or self.assignment.is_resting
            or self._committer.is_due
            or not self._committer.is_clear
            or self._reading.move() is not None
        )

    def _prepare(self) -> None:
        self.check_open()
        self._raise_kept()
        self._committer.prepare()
        self.assignment.wake()
        self._move()

    def _fetch(self, count_max: int, timeout_s: float, is_over: Callable[[], bool]) -> None:
        """Take in what is there, or else the first records to come."""
        self._receive(self._handle.consume(count_max, 0))
        deadline = time.monotonic() + timeout_s
        while not self._reading.has_pending and not self.is_closing and not is_over():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            first = self._handle.poll(min(left, SLICE_S))
            if first is None:
                self._after_poll()
                continue
            self._receive([first])
            if count_max > 1:
                self._receive(self._handle.consume(count_max - 1, 0))

    def _receive(self, messages: list[Message]) -> None:
        """Take in what a call of librdkafka returned, then raise what it found."""
        self._accept(messages)
        self._after_poll()

    def _accept(self, messages: list[Message]) -> None:
        if any(map(Message.error, messages)):
            messages, error = sorted_out(messages)
            if error is not None:
                self.failed(from_kafka(error, "Reading", BrokerError))
        self._reading.accept(messages)

    def _after_poll(self) -> None:
        self._raise_kept()
        self._move()

    def _move(self) -> None:
        """Send librdkafka to where partitions are to be read on."""
        deadline = time.monotonic() + _MOVE_S_MAX
        while (move := self._reading.move()) is not None and not self.is_closing:
            if self.assignment.is_rebalancing:
                # Inside a callback librdkafka cannot be polled: the next call does it.
                return
            if seek(self._handle, *move):
                self._reading.moved(*move)
                continue
            if time.monotonic() > deadline:
                raise TimedOut(f"Seeking in {move[0].topic}: it was not possible in time.")
            stray = self._handle.poll(_MOVE_SLICE_S)
            self._accept([] if stray is None else [stray])
            self._raise_kept()

    def _raise_kept(self) -> None:
        if self._kept_error is not None and not self.assignment.is_rebalancing:
            error, self._kept_error = self._kept_error, None
            raise error

    # Committing

    def commit(
        self, records: Record | Iterable[Record] | Mapping[Partition, int] | None = None
    ) -> None:
        """Commit what was handed out, or up to these records, or these next offsets."""
        with self._lock:
            self.check_open()
            self._committer.commit(records)

    def offsets(self) -> dict[Partition, int]:
        """The next offsets after what was handed out and is not committed. Never waits."""
        return self._reading.offsets()

    def group_metadata(self) -> Any:
        """What a transaction needs to know of this member. Never waits."""
        with self._closing_lock:
            self.check_open()
            return self._handle.consumer_group_metadata()

    def settled_group_metadata(self) -> Any:
        """The same, once calls in progress have ended, and rebalances with them."""
        with self._lock:
            return self.group_metadata()

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
            for partition, target in targets.items():
                if not self.assignment.start_at(partition, target):
                    self._reading.seek(partition, target)
            self._move()

    def pause(self, topic: str, number: int | None) -> None:
        with self._lock:
            self.check_open()
            chosen = self.assignment.chosen(topic, number)
            self.assignment.pause(chosen)
            self._reading.hold(chosen)

    def resume(self, topic: str, number: int | None) -> None:
        with self._lock:
            self.check_open()
            chosen = self.assignment.chosen(topic, number)
            self.assignment.resume(chosen)
            self._reading.release(chosen)

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
            self._settings.on_assign(self.owner, partitions)

    def revoked(self, partitions: list[Partition]) -> None:
        # From here on the application is given no more of them, wherever it is in its batch.
        self._reading.recall()
        try:
            self._committer.before_revoke(partitions)
        finally:
            self._leave(partitions, self._settings.on_revoke)

    def lost(self, partitions: list[Partition]) -> None:
        self._reading.recall()
        self._committer.lost()
        self._leave(partitions, self._settings.on_lost or self._settings.on_revoke)

    def _leave(
        self, partitions: list[Partition], callback: Callable[[Any, list[Any]], object] | None
    ) -> None:
        try:
            if callback is not None:
                callback(self.owner, partitions)
        finally:
            self._reading.leave(partitions)

    def failed(self, error: BaseException) -> None:
        """Keep an error for the application's next call that can raise it."""
        if self._kept_error is None:
            self._kept_error = error
        else:
            LOGGER.warning("another error before the application has seen the first: %s", error)

    def _keep(self) -> None:
        """Stay in the group while the application is busy; see the keeper."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self.is_closing:
                return
            self.assignment.rest()
            message = self._handle.poll(0)
            self._accept([] if message is None else [message])
        except Exception as error:  # noqa: BLE001 -- raised by the application's next poll
            self.failed(error)
        finally:
            self._lock.release()

    # The end

    def close(self, *, is_failing: bool) -> None:
        """Leave the group. What was processed is committed; what failed in hand is not."""
        if self.begin_closing():
            self.finish_closing(is_failing=is_failing)

    def begin_closing(self) -> bool:
        """Have calls in progress end soon, and refuse others; whether this was the first time."""
        with self._closing_lock:
            was_closing, self.is_closing = self.is_closing, True
            return not was_closing

    def finish_closing(self, *, is_failing: bool) -> None:
        """Commit and leave. Waits for calls in progress, and for the group's coordinator."""
        if self._keeper is not None:
            self._keeper.stop()
        with self._lock:
            if self._kept_error is not None:
                LOGGER.warning("closing a consumer after an error: %s", self._kept_error)
                self._kept_error = None
            try:
                self._committer.finish(is_failing=is_failing)
            finally:
                self._handle.close()
                self.is_closed = True
            if not is_failing:
                self._raise_kept()

    def _idle_s(self) -> float:
        return time.monotonic() - self._polled_at

    def check_open(self) -> None:
        if self.is_closing:
            raise ClosedError("The consumer is closed: make another one to read or commit.")
