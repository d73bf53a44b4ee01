"""One partition on this broker: who leads it, what is committed, who waits for that.

State, all of it owned by the event loop:

    state             the partition's record in the cluster metadata: replicas, leader, epoch, ISR
    log               its records on this broker's disk
    high_watermark    first offset that is not committed: no consumer sees it or what follows.
                      Never moves back, unless a follower's log is cut below it.
    last_stable_offset
                      first offset that is not decided: as the high watermark, for readers of
                      committed transactions. It moves only when the high watermark does.
    durable_offset    what this replica counts as its own when it computes the high watermark: the
                      log's end, or what was fsynced of it if the broker flushes before it
                      acknowledges
    leadership        what it knows of its followers; None unless it leads several replicas
    readers           the followers' fetch sessions that read here

A leader appends, then moves the high watermark to the smallest offset that every ISR member has.
With an ISR of one that is its own `durable_offset`, by the same rule. A follower appends what its
leader sends and takes over the leader's high watermark as far as its own log reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from millstream.log.log import AppendResult, PartitionLog
from millstream.log.reading.slice import LogSlice
from millstream.metadata import min_isr
from millstream.metadata.cluster_record import PartitionRecord
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures, CallbackKind
from millstream.model.reply import Reply
from millstream.model.sentinel import NO_EPOCH, NO_LEADER
from millstream.model.topic import TopicPartition
from millstream.records.batch import BatchHeader, read_header
from millstream.records.control import EndMarker
from millstream.replication.leader.leadership import Leadership
from millstream.replication.leader.rejected_producer import RejectedProducers
from millstream.replication.waiting import OffsetWaiters


class Watcher(Protocol):
    """A request that waits for more to become readable (a Fetch)."""

    def more_readable(self) -> None: ...

    def failed(self, error: Exception) -> None:
        """Respond with an error: `more_readable` raised. Does not raise."""
        ...


class Reader(Protocol):
    """A follower's fetch session, as one partition sees it."""

    def more_appended(self, size: int) -> None: ...

    def changed(self) -> None:
        """The high watermark, the log's start or the leadership is another one."""
        ...


class Counters(Protocol):
    """Totals of the topic that a partition belongs to; plain numbers to add to."""

    bytes_in: int
    bytes_out: int
    messages_in: int
    messages_out: int
    failed_produces: int
    failed_fetches: int


class Latency(Protocol):
    """Where the time from receiving a batch to acknowledging it is noted."""

    def observe(self, value: float) -> None: ...


class Host(Protocol):
    """What a partition needs of the broker around it."""

    def wake_later(self, partition: Partition) -> None:
        """Call `partition.wake` soon: many appends of one pass wake each reader once."""
        ...

    def flush(self, partition: Partition) -> None:
        """Fsync the log soon and call `partition.flushed`."""
        ...

    def truncated(self, partition: Partition, offset: int) -> None:
        """The log was cut to `offset`, for whoever works on it in the background."""
        ...

    def monotonic(self) -> float: ...

    @property
    def failures(self) -> CallbackFailures:
        """Takes the failures of callbacks."""
        ...

    def counters(self, partition: Partition) -> tuple[Counters, Latency]: ...


class Partition:
    """See the module's text."""

    __slots__ = (
        "_committed",
        "_counters",
        "_durable",
        "_flushes_before_ack",
        "_host",
        "_led_epoch",
        "_refusals",
        "_trimmed",
        "broker_id",
        "durable_offset",
        "high_watermark",
        "is_wake_scheduled",
        "leadership",
        "log",
        "readers",
        "state",
        "topic_partition",
        "watchers",
    )

    def __init__(
        self,
        broker_id: int,
        log: PartitionLog,
        state: PartitionRecord,
        host: Host,
        *,
        flushes_before_ack: bool,
    ) -> None:
        self.broker_id = broker_id
        self.topic_partition: TopicPartition = log.topic_partition
        self.log = log
        self.state = state
        self._host = host
        self._flushes_before_ack = flushes_before_ack
        self._counters: tuple[Counters, Latency] | None = None
        self.durable_offset = log.log_end_offset
        self.high_watermark = log.log_start_offset
        #: The leader epoch that was begun here, while this broker leads.
        self._led_epoch = NO_EPOCH
        self.leadership: Leadership | None = None
        #: Producers with a rejected batch; made when the first batch is rejected.
        self._refusals: RejectedProducers | None = None
        self.readers: tuple[Reader, ...] = ()
        #: Callbacks for the high watermark and for the durable offset; made when first needed.
        self._committed: OffsetWaiters | None = None
        self._durable: OffsetWaiters | None = None
        #: The same for the low watermark.
        self._trimmed: OffsetWaiters | None = None
        #: Fetches that wait for more; None when there are none.
        self.watchers: dict[Watcher, None] | None = None
        self.is_wake_scheduled = False

    @property
    def counters(self) -> Counters:
        return (self._counters or self._find_counters())[0]

    @property
    def ack_latency(self) -> Latency:
        return (self._counters or self._find_counters())[1]

    def _find_counters(self) -> tuple[Counters, Latency]:
        # On first use: most of 100,000 partitions are never touched.
        self._counters = self._host.counters(self)
        return self._counters

    @property
    def failures(self) -> CallbackFailures:
        """Takes the failures of callbacks."""
        return self._host.failures

    @property
    def is_leader(self) -> bool:
        return self.state.leader == self.broker_id

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    def become(self, state: PartitionRecord, high_watermark: int) -> None:
        """Take on the role that `state` gives; `high_watermark` is what this broker last knew."""
        if self._refusals and state.leader_epoch != self.state.leader_epoch:
            self._refusals.begin_epoch()
        self.state = state
        log = self.log
        self.high_watermark = max(min(high_watermark, log.log_end_offset), log.log_start_offset)
        if self.is_leader:
            self._lead()
            self.advance_high_watermark()
            self.advance_low_watermark()
            if self._committed is not None and self.is_under_min_isr:
                self._committed.fire_all()
        else:
            self._led_epoch = NO_EPOCH
            self.leadership = None
            log.drop_unused_epochs()
            self.release_waiters()
        self._tell_readers()

    def _tell_readers(self) -> None:
        """Tell the followers' sessions that something changed."""
        for reader in self.readers:
            try:
                reader.changed()
            except Exception as error:  # noqa: BLE001  # logged and counted
                self._reader_failed(error)

    def _reader_failed(self, error: Exception) -> None:
        self.failures.note(CallbackKind.FOLLOWER_SESSION, error, self.topic_partition)

    def _lead(self) -> None:
        """Begin a leader epoch, or go on with one."""
        log, state = self.log, self.state
        if self._led_epoch == NO_EPOCH:
            self._count_as_durable()
        if state.leader_epoch != self._led_epoch:
            self._led_epoch = state.leader_epoch
            self.leadership = None
            log.assign_epoch(state.leader_epoch)
        if self.leadership is not None:
            self.leadership.update(state, self._host.monotonic())
        elif len(state.replicas) > 1:
            self.leadership = Leadership(
                self.broker_id, state, log.log_end_offset, self._host.monotonic()
            )

    def _count_as_durable(self) -> None:
        """Find out what of the log, as it is now, this replica may count as its own."""
        log = self.log
        self.durable_offset = log.log_end_offset
        if self._flushes_before_ack and log.recovery_point < log.log_end_offset:
            self.durable_offset = log.recovery_point
            self._host.flush(self)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether there are too few in-sync replicas for anything new to count as committed."""
        return min_isr.is_under_min_isr(self.state, self.log.config)

    @property
    def min_isr(self) -> int:
        """The effective `min.insync.replicas`."""
        return min_isr.min_isr(self.state, self.log.config)

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise unless this broker leads and the client's idea of the epoch is not another one."""
        if not self.is_leader:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._check_epoch(current_leader_epoch)

    def _check_epoch(self, current_leader_epoch: int) -> None:
        if current_leader_epoch != NO_EPOCH:
            if current_leader_epoch < self.state.leader_epoch:
                raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH)
            if current_leader_epoch > self.state.leader_epoch:
                raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def check_readable(self, current_leader_epoch: int, *, from_follower: bool) -> None:
        """`check_leader` for a consumer, who may be allowed to read from a follower."""
        if from_follower and not self.is_leader and self.state.leader != NO_LEADER:
            self._check_epoch(current_leader_epoch)
        else:
            self.check_leader(current_leader_epoch)

    def append(self, batch: memoryview, header: BatchHeader, *, acks_all: bool) -> AppendResult:
        """Append one checked batch as the leader.

        On return it is in this broker's page cache; it is committed once `high_watermark` has
        passed it, which may be so already."""
        state = self.state
        log = self.log
        try:
            if state.leader != self.broker_id:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if acks_all and self.is_under_min_isr:
                raise BrokerError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"{self.topic_partition} has {len(state.isr)} in-sync replicas; "
                    f"min.insync.replicas asks for {self.min_isr}",
                )
            if self._refusals:
                self._check_refusals(header)
            appended = log.append_as_leader(batch, header, state.leader_epoch)
        except BrokerError as error:
            raise self._told(header, error) from error
        if self._refusals:
            self._refusals.appended(header)
        for reader in self.readers:
            try:
                reader.more_appended(header.size)
            except Exception as error:  # noqa: BLE001  # logged and counted; the batch is appended
                self._reader_failed(error)
        if self._flushes_before_ack or (
            log.log_end_offset - log.recovery_point >= log.config.flush_messages
        ):
            self._host.flush(self)
        else:
            self.durable_offset = log.log_end_offset
            if self._durable is not None:
                # Earlier batches may still wait for a flush that no longer counts.
                self._durable.advance(self.durable_offset)
            self.advance_high_watermark()
        return appended

    def _check_refusals(self, header: BatchHeader) -> None:
        assert self._refusals is not None
        is_known = self.log.producer_state.is_known(header.producer_id, header.producer_epoch)
        self._refusals.check(header, is_known=is_known)

    def _told(self, header: BatchHeader, error: BrokerError) -> BrokerError:
        """What to tell the client of a batch that was not appended because of `error`."""
        told = self._refusals.told(header, error) if self._refusals else error
        if told is error:
            self.rejected(header, error.code)
        return told

    def rejected(
        self, header: BatchHeader, code: ErrorCode, *, by_coordinator: bool = False
    ) -> None:
        """Take note of a batch that was not appended, so that no later one overtakes it.

        Except for old ones, which the network may deliver once more: nobody will retry them."""
        if self.log.is_past(header):
            return
        if self._refusals is None:
            self._refusals = RejectedProducers()
        self._refusals.reject(header, code, by_coordinator=by_coordinator)

    def check_first_batch(self, header: BatchHeader) -> None:
        """Raise unless a batch can be the first of its transaction (version 2) here.

        INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, or what an earlier batch that was
        rejected was told."""
        if self._refusals:
            self._check_refusals(header)
        try:
            self.log.producer_state.check_first_batch(header, self.log.log_end_offset)
        except BrokerError as error:
            raise self._told(header, error) from error

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int = 0,
    ) -> AppendResult:
        """End the producer's transaction here, as its coordinator has decided.

        As durable as an `append` with all acks. Where the marker is here already (which can be
        told from transaction version 2 on), the answer is `duplicate` and names the log's end.
        Raises INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED and what `append` raises.
        """
        self.check_leader()
        log = self.log
        batch = log.prepare_marker(
            EndMarker(commit, coordinator_epoch), producer_id, producer_epoch, transaction_version
        )
        if batch is None:
            last_offset = log.log_end_offset - 1
            return AppendResult(last_offset, last_offset, -1, log.log_start_offset, True)
        appended = self.append(memoryview(batch), read_header(batch), acks_all=True)
        if self._refusals:
            self._refusals.ended(producer_id)
        # What is stable now need not be remembered until somebody reads.
        log.last_stable_offset(self.high_watermark)
        return appended

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def flushed(self, offset: int) -> None:
        """Everything below `offset` is on stable storage."""
        if offset > self.durable_offset:
            self.durable_offset = offset
            if self._durable is not None:
                self._durable.advance(offset)
            if self.is_leader:
                self.advance_high_watermark()

    def advance_high_watermark(self) -> None:
        """Move the high watermark to what every in-sync replica has; wake who waited for it."""
        offset = self.durable_offset
        if self.leadership is not None:
            if self.is_under_min_isr or self.state.elr:
                # The eligible leader replicas have what is committed, and get nothing more.
                return
            offset = self.leadership.committed_offset(offset)
        self._raise_high_watermark(offset)

    def _raise_high_watermark(self, offset: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        if self.readers:
            self._tell_readers()
        if self._committed is not None:
            self._committed.advance(offset)
        if self.watchers and not self.is_wake_scheduled:
            self.is_wake_scheduled = True
            self._host.wake_later(self)

    @property
    def is_end_uncertain(self) -> bool:
        """Whether this leader's high watermark may be older than what the one before had shown.

        It can't be once everything that was there when the epoch began is committed."""
        leadership = self.leadership
        return leadership is not None and self.high_watermark < leadership.epoch_start_offset

    def append_as_follower(
        self, batches: memoryview, high_watermark: int, log_start_offset: int
    ) -> None:
        """Append what the leader sent, and take over what it said of its own log.

        Raises BrokerError, and then the log is as before."""
        log = self.log
        if batches:
            log.append_as_follower(batches)
            self.durable_offset = log.log_end_offset
        self._raise_high_watermark(min(high_watermark, log.log_end_offset))
        log.advance_start(min(log_start_offset, self.high_watermark))

    def truncate(self, offset: int) -> None:
        """Drop everything from `offset` on, where the leader's log differs from this one."""
        log = self.log
        if offset < log.log_start_offset:
            log.truncate_fully_and_start_at(offset)
        else:
            log.truncate_to(offset)
        self._cut()

    def start_over_at(self, offset: int) -> None:
        """Drop everything: the leader's log begins at `offset`, after the end of this one."""
        self.log.truncate_fully_and_start_at(offset)
        self._cut()

    def _cut(self) -> None:
        log = self.log
        self.durable_offset = min(self.durable_offset, log.log_end_offset)
        self.high_watermark = max(
            min(self.high_watermark, log.log_end_offset), log.log_start_offset
        )
        self._host.truncated(self, log.log_end_offset)

    def read_for_follower(self, offset: int, max_bytes: int, *, at_least_one: bool) -> LogSlice:
        """Batches from `offset` on, committed or not."""
        log = self.log
        return log.read(offset, max_bytes, log.log_end_offset, at_least_one=at_least_one)

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool, read_committed: bool = False
    ) -> LogSlice:
        """Committed batches from the one that holds `offset`, as a range of a file.

        `read_committed`: nothing of transactions that are not decided. Of those that were aborted
        `log.aborted_transactions` tells.
        """
        log = self.log
        end_offset = self.last_stable_offset if read_committed else self.high_watermark
        if offset > end_offset and offset <= log.log_end_offset:
            # Appended but not committed: nothing to see yet, and no error either.
            return log.read(end_offset, 0, end_offset, at_least_one=False)
        return log.read(offset, max_bytes, end_offset, at_least_one=at_least_one)

    def is_acknowledged(self, offset: int, *, acks_all: bool) -> bool:
        """Whether a producer may be told that all before `offset` is kept."""
        return (self.high_watermark if acks_all else self.durable_offset) >= offset

    def when_acknowledged(
        self,
        offset: int,
        callback: Callable[[], None],
        reply: Reply[Any] | None,
        *,
        acks_all: bool,
    ) -> None:
        """Call `callback` once all before `offset` is acknowledged, or once this broker can no
        longer tell (it lost leadership, or the ISR fell below the minimum).

        `reply` is that of the request that waits, or None if no single request does."""
        if acks_all:
            if self._committed is None:
                self._committed = OffsetWaiters(self.failures, self.topic_partition)
            self._committed.add(offset, callback, reply)
        else:
            if self._durable is None:
                self._durable = OffsetWaiters(self.failures, self.topic_partition)
            self._durable.add(offset, callback, reply)

    def watch(self, watcher: Watcher) -> None:
        if self.watchers is None:
            self.watchers = {}
        self.watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        if self.watchers is not None:
            self.watchers.pop(watcher, None)
            if not self.watchers:
                self.watchers = None

    def wake(self) -> None:
        """Tell the watchers; called once for each `Host.wake_later`."""
        self.is_wake_scheduled = False
        for watcher in list(self.watchers or ()):
            try:
                watcher.more_readable()
            except Exception as error:  # noqa: BLE001  # the watcher's own request gets it
                watcher.failed(error)

    def retire(self) -> None:
        """Serve nobody any more: the partition is gone from this broker, or can't take its role."""
        self.state = msgspec.structs.replace(self.state, leader=NO_LEADER)
        self._led_epoch = NO_EPOCH
        self.leadership = None
        self.release_waiters()
        self._tell_readers()

    def release_waiters(self) -> None:
        """Call back everybody who waits here: this broker can't serve them any more."""
        for waiters in (self._committed, self._durable, self._trimmed):
            if waiters is not None:
                waiters.fire_all()
        self.wake()

    def delete_records(self, offset: int) -> int:
        """Move the log's start to `offset` (-1: the high watermark); returns where it is now."""
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} can be cut at an offset of up to {self.high_watermark}",
            )
        self.log.advance_start(offset)
        self._tell_readers()
        return self.log.log_start_offset

    @property
    def low_watermark(self) -> int:
        """The smallest log start of the in-sync replicas, as far as their leader knows."""
        start = self.log.log_start_offset
        return start if self.leadership is None else self.leadership.low_watermark(start)

    def advance_low_watermark(self) -> None:
        """Call back who waited for the low watermark to be where it is now."""
        if self._trimmed is not None:
            self._trimmed.advance(self.low_watermark)

    def when_trimmed(self, offset: int, callback: Callable[[], None]) -> None:
        """Call `callback` once all in-sync replicas begin at `offset` or later, or once this broker
        has lost leadership."""
        if self._trimmed is None:
            self._trimmed = OffsetWaiters(self.failures, self.topic_partition)
        self._trimmed.add(offset, callback, None)
