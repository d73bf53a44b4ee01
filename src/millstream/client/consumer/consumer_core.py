"""What `Consumer` and `AsyncConsumer` share: one librdkafka consumer and the state around it.

    fetched (librdkafka) -> pending -> current batch -> processed -> committed

The current batch counts as processed when the application polls again, or commits. `Positions` owns
all positions, `Committer` the rules of the delivery modes, `Assignment` the partitions, `Fetcher`
the fetches and their errors. This module connects them. Only one thread at a time may use
librdkafka's consumer: `_lock` is held for whole calls, never per record, and the event loop never
waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID

from millstream.client.connection import servers_of
from millstream.client.connection_error import ConnectionErrors, with_errors
from millstream.client.consumer.assignment import Assignment
from millstream.client.consumer.committer import Committer
from millstream.client.consumer.consumer_handle import (
    SLICE_S,
    committed,
    end_of,
    offsets_at,
    open_handle,
)
from millstream.client.consumer.context_record import loader_for, record_type_for
from millstream.client.consumer.fetcher import Fetcher
from millstream.client.consumer.idle_poller import IdlePoller
from millstream.client.consumer.positions import Positions
from millstream.client.consumer.subscriber import Subscriber
from millstream.client.consumer.subscription import HIDES_INTERNAL, Subscription
from millstream.client.error import ClosedError, UsageError
from millstream.client.record import Partition, Record, Records
from millstream.client.setting import ConsumerSettings
from millstream.client.tracing.consumer_tracing import poll_tracing

_logger = logging.getLogger(__name__)

SeekOffset = int | Literal["earliest", "latest"]
_ENDS: Final = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}


class ConsumerCore:
    """One consumer, without the differences between threads and asyncio."""

    def __init__(
        self,
        servers: str | Sequence[str] | None,
        group: str | None,
        subscription: Subscription | None,
        settings: ConsumerSettings,
    ) -> None:
        if group == "":
            raise UsageError(
                "group_id='' is empty: pass the name of a group, or None to read without one."
            )
        if group is None and settings.delivery != "at_least_once":
            raise UsageError(f"delivery={settings.delivery!r} needs a group: pass group_id='...'.")
        self._settings = settings
        self._group = group
        self._subscription = subscription
        #: The first argument of the application's callbacks; set before `start`.
        self.owner: Any = None
        self._lock = threading.RLock()
        #: Held briefly when closing begins, and by calls that must not find the consumer closed but
        #: cannot wait for `_lock`.
        self._closing_lock = threading.Lock()
        self.is_closing = self.is_closed = False
        self._polled_at = time.monotonic()
        self._make = record_type_for(settings.key_deserializer, settings.value_deserializer)
        only = None if subscription is None else subscription.only_topic
        self._positions = Positions(settings.delivery, only)
        self._sees_internal = subscription is not None and subscription.has_internal
        hidden = {} if self._sees_internal else {"topic.blacklist": HIDES_INTERNAL}
        self._errors = ConnectionErrors()
        properties = hidden | settings.properties(servers, group)
        self._handle = open_handle(with_errors(properties, self._errors))
        self.assignment = Assignment(self._handle, self, is_cooperative=settings.is_cooperative)
        self._fetcher = Fetcher(
            self._handle,
            self._positions,
            is_closing=lambda: self.is_closing,
            is_rebalancing=lambda: self.assignment.is_rebalancing,
        )
        self._errors.on_rejected = self._fetcher.keep_first_error
        self._errors.serve = self._fetcher.serve
        self._committer = Committer(
            self._handle, self.assignment, self._positions, settings, has_group=group is not None
        )
        self._subscriber = Subscriber(
            self._handle,
            self.assignment,
            self._fetcher,
            self._errors,
            offset=None if group is not None else _ENDS[settings.auto_offset_reset],
        )
        self._idle_poller: IdlePoller | None = None
        self._traced = poll_tracing(
            settings.tracing, servers_of(servers), settings.client_name, group
        )
        #: When the wait for the next batch began, in ns since 1970; 0 if it did not, or untraced.
        self._poll_began_ns = 0

    def load_ahead(self) -> None:
        """Let deserializers load what new records need while the records are fetched.

        For records that are read on an event loop, where a deserializer cannot wait.
        """
        settings = self._settings
        self._fetcher.before_accept = loader_for(
            settings.key_deserializer, settings.value_deserializer
        )

    def start(self) -> None:
        """Join the group, or fetch the partitions of the topics. The latter waits."""
        with self._lock:
            if not self.is_closing and self._subscription is not None:
                self._begin(self._subscription)

    # Subscriptions

    def subscribe(self, subscription: Subscription) -> None:
        """Replace the subscription. Partitions that are in both stay assigned."""
        with self._lock:
            self.check_open()
            self._subscriber.check()
            if subscription.has_internal and not self._sees_internal:
                raise UsageError(
                    "Names that start with __ are internal topics: pass them to the constructor, "
                    "Consumer(topics=[...])."
                )
            # Records of the last subscription may still be pending.
            self._positions.mix_topics()
            self._begin(subscription)
            self._subscription = subscription

    def unsubscribe(self) -> None:
        """Give up all partitions. Waits until they are revoked."""
        with self._lock:
            self.check_open()
            self._subscriber.check()
            self._subscription = None
            self._subscriber.unsubscribe()

    def _begin(self, subscription: Subscription) -> None:
        self._subscriber.subscribe(subscription)
        if self._group is not None and self._idle_poller is None:
            self._idle_poller = IdlePoller(self._idle_s, self._poll_while_idle)

    # Reading records

    def poll(self, count_max: int, timeout_s: float) -> Records:
        """Wait for the next records. Those handed out before count as processed."""
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
        """Wait until records are pending that may be handed out, or until `is_over()`.

        Hands out nothing: a caller that stops waiting loses no records. Fetches up to `ahead` more
        records.
        """
        with self._lock:
            if self._traced is not None:
                self._poll_began_ns = self._poll_began_ns or time.time_ns()
            self._prepare()
            if not self._positions.has_pending:
                self._fetcher.fetch(count_max + ahead, timeout_s, is_over)
            if self._positions.has_pending:
                self._committer.before_hand_out(count_max)
                # An abort may have rewound the positions.
                self._fetcher.run_pending_seeks()
            self._polled_at = time.monotonic()
            return self._positions.has_pending

    def poll_ready(self, count_max: int) -> Records | None:
        """As `poll`, of pending records only. None if that needs a call that may wait."""
        if not self._positions.has_pending or not self._lock.acquire(blocking=False):
            return None
        try:
            if self.is_closing or self._is_something_due():
                return None
            records = self._hand_out(count_max)
            return records if records else None
        finally:
            self._lock.release()

    def no_records(self) -> Records:
        """Return an empty batch."""
        return Records([], self._make)

    def iterate(self, count_max: int) -> Iterator[Record]:
        """Yield records one by one until the consumer is closed."""
        while not self.is_closing:
            try:
                batch = self.poll(count_max, SLICE_S)
            except ClosedError:
                return
            yield from self.iterate_batch(batch)

    def iterate_batch(self, records: Records) -> Iterator[Record]:
        """Iterate over the batch just polled: records not reached yet are not handed out."""
        return map(self._make, self._positions.iterate(records))

    def _hand_out(self, count_max: int) -> Records:
        self._polled_at = time.monotonic()
        messages = self._positions.hand_out(count_max)
        if self._traced is not None and messages:
            self._traced(messages, self._poll_began_ns or time.time_ns())
            self._poll_began_ns = 0
        return Records(messages, self._make)

    def _is_something_due(self) -> bool:
        """Whether anything but records has to be handled before the next hand-out."""
        return (
            self._fetcher.pending_error is not None
            or self.assignment.is_suspended
            or self._committer.is_due
            or not self._committer.may_hand_out
            or self._positions.next_seek() is not None
        )

    def _prepare(self) -> None:
        self.check_open()
        if self._subscription is None:
            raise UsageError(
                "The consumer is not subscribed: pass topics=[...] or pattern='...', or call "
                "subscribe()."
            )
        self._fetcher.raise_pending_error()
        self._committer.prepare()
        self.assignment.unsuspend()
        self._fetcher.run_pending_seeks()

    @property
    def ended(self) -> frozenset[Partition]:
        """The partitions that were read to their end. Never waits."""
        if self._positions.has_pending:
            return frozenset()
        return frozenset(self._fetcher.ended & self.assignment.partitions)

    # Committing

    def commit(
        self, records: Record | Iterable[Record] | Mapping[Partition, int] | None = None
    ) -> None:
        """Commit the handed-out records, or up to these records, or these next offsets."""
        with self._lock:
            self.check_open()
            self._committer.commit(records)

    def offsets(self) -> dict[Partition, int]:
        """Return the next offsets after handed-out records that are not committed. Never waits."""
        return self._positions.offsets()

    def group_metadata(self) -> Any:
        """Return what a transaction needs to identify this member. Never waits."""
        with self._closing_lock:
            self.check_open()
            return self._handle.consumer_group_metadata()

    def settled_group_metadata(self) -> Any:
        """As `group_metadata`, after calls and rebalances in progress have ended."""
        with self._lock:
            return self.group_metadata()

    # Seeks and pauses

    def seek(
        self, topic: str, number: int | None, offset: SeekOffset | None, time_ms: int | None
    ) -> None:
        """Continue at an offset or a time, in one partition or in all of a topic."""
        with self._lock:
            self.check_open()
            if (offset is None) == (time_ms is None):
                raise UsageError("Seek to an offset or to a time: pass one of the two.")
            chosen = self.assignment.chosen(topic, number)
            if time_ms is not None:
                targets = offsets_at(self._handle, chosen, time_ms)
            else:
                targets = dict.fromkeys(chosen, _seek_target(offset))
            self._fetcher.ended.difference_update(targets)
            for partition, target in targets.items():
                if not self.assignment.start_at(partition, target):
                    self._positions.seek(partition, target)
            self._fetcher.run_pending_seeks()

    def position(self, topic: str, number: int) -> int:
        """Return the offset of the next record to be handed out of a partition."""
        with self._lock:
            self.check_open()
            (partition,) = self.assignment.chosen(topic, number)
            offset = self._fetcher.position(partition)
            if offset == OFFSET_INVALID:
                offset = self._start_of(partition)
            if offset >= 0:
                return offset
            return end_of(self._handle, partition, is_start=offset == OFFSET_BEGINNING)

    def _start_of(self, partition: Partition) -> int:
        """Return where a partition starts of which no record was fetched."""
        offset = self.assignment.first_offset(partition)
        if offset == OFFSET_INVALID and self._group is not None:
            offset = committed(self._handle, [partition]).get(partition, offset)
        return _ENDS[self._settings.auto_offset_reset] if offset == OFFSET_INVALID else offset

    def pause(self, topic: str, number: int | None) -> None:
        """Hand out no records of a topic or partition."""
        with self._lock:
            self.check_open()
            chosen = self.assignment.chosen(topic, number)
            self.assignment.pause(chosen)
            self._positions.pause(chosen)

    def resume(self, topic: str, number: int | None) -> None:
        """Hand out records of a topic or partition again."""
        with self._lock:
            self.check_open()
            chosen = self.assignment.chosen(topic, number)
            self.assignment.resume(chosen)
            self._positions.resume(chosen)

    def committed(self) -> dict[Partition, int]:
        """Return the group's committed offsets of this consumer's partitions."""
        with self._lock:
            self.check_open()
            if self._group is None:
                return {}
            return committed(self._handle, self.assignment.partitions)

    # Rebalances: called inside librdkafka's poll, with the lock held

    def assigned(self, partitions: list[Partition]) -> None:
        """Call the application's `on_assign`."""
        if self._settings.on_assign is not None:
            self._settings.on_assign(self.owner, partitions)

    def revoked(self, partitions: list[Partition]) -> None:
        """Commit, call the application's `on_revoke`, and forget the partitions."""
        # From here on the application gets no more records of them, also from an iteration.
        self._positions.recall()
        try:
            self._committer.before_revoke(partitions)
        finally:
            self._leave(partitions, self._settings.on_revoke)

    def lost(self, partitions: list[Partition]) -> None:
        """Call the application's `on_lost`, and forget the partitions."""
        self._positions.recall()
        self._committer.lost()
        self._leave(partitions, self._settings.on_lost or self._settings.on_revoke)

    def _leave(
        self, partitions: list[Partition], callback: Callable[[Any, list[Any]], object] | None
    ) -> None:
        try:
            if callback is not None:
                callback(self.owner, partitions)
        finally:
            self._positions.revoke(partitions)
            self._fetcher.ended.difference_update(partitions)

    def failed(self, error: BaseException) -> None:
        """Keep an error of a callback for the application's next call."""
        self._fetcher.keep_error(error)

    def _poll_while_idle(self) -> None:
        """Stay in the group while the application is busy; see `idle_poller.py`."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self.is_closing:
                return
            self.assignment.suspend()
            self._fetcher.serve()
        except Exception as error:  # noqa: BLE001 -- raised by the application's next poll
            self._fetcher.keep_error(error)
        finally:
            self._lock.release()

    # Closing

    def close(self, *, is_failing: bool) -> None:
        """Commit processed records, and leave the group.

        With `is_failing` the current batch does not count as processed.
        """
        if self.begin_closing():
            self.finish_closing(is_failing=is_failing)

    def begin_closing(self) -> bool:
        """Make calls in progress end soon, and reject others. False if closing had begun."""
        with self._closing_lock:
            was_closing, self.is_closing = self.is_closing, True
            return not was_closing

    def finish_closing(self, *, is_failing: bool) -> None:
        """Commit and leave. Waits for calls in progress, and for the group's coordinator."""
        if self._idle_poller is not None:
            self._idle_poller.stop()
        with self._lock:
            if self._fetcher.pending_error is not None:
                _logger.warning(
                    "Closing a consumer after an error: %s", self._fetcher.pending_error
                )
                self._fetcher.pending_error = None
            try:
                self._committer.finish(is_failing=is_failing)
            finally:
                self._handle.close()
                self.is_closed = True
            if not is_failing:
                self._fetcher.raise_pending_error()

    def _idle_s(self) -> float:
        return time.monotonic() - self._polled_at

    def check_open(self) -> None:
        """Raise if the consumer is closed."""
        if self.is_closing:
            raise ClosedError("The consumer is closed: create another one to read or commit.")


def _seek_target(offset: object) -> int:
    """Return the offset, or librdkafka's number for an end. Raises UsageError."""
    if isinstance(offset, str) and offset in _ENDS:
        return _ENDS[offset]
    if isinstance(offset, int) and (offset >= 0 or offset in _ENDS.values()):
        return offset
    raise UsageError(f"offset={offset!r}: pass a number of at least 0, 'earliest' or 'latest'.")
