"""One partition on this broker: its leader, its committed records, and the requests that wait.

State, all of it owned by the event loop:

    state             the partition's record in the cluster metadata: replicas, leader, epoch, ISR
    log               the replica's log on this broker's disk
    high_watermark    offset below which every record is committed. Consumers read up to here. It
                      moves back only if a follower truncates its log below it.
    last_stable_offset
                      offset below which no transaction is open. `read_committed` consumers read up
                      to here. It moves only when the high watermark does.
    durable_offset    this replica's own share in the high watermark: the log end, or the flushed
                      part of the log if the broker flushes before it acknowledges
    leadership        the state of the followers; None unless this broker leads several replicas
    readers           the fetch sessions of followers that read this partition

A leader appends, then advances the high watermark to the smallest offset that every ISR member
has. With an ISR of one that is its own `durable_offset`. A follower appends the batches that its
leader sends, and adopts the leader's high watermark up to its own log end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from millstream.replication.partition_port import Counters, Host, Latency, Reader, Watcher
from millstream.replication.waiting import OffsetWaiters


class Partition:
    """One replica on this broker, as leader or follower. Event loop only."""

    __slots__ = (
        "_committed",
        "_counters",
        "_durable",
        "_flushes_before_ack",
        "_host",
        "_led_epoch",
        "_rejected",
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
        #: The leader epoch in which this broker leads, else NO_EPOCH.
        self._led_epoch = NO_EPOCH
        self.leadership: Leadership | None = None
        #: Producers with a rejected batch; created when the first batch is rejected.
        self._rejected: RejectedProducers | None = None
        self.readers: tuple[Reader, ...] = ()
        #: Callbacks for the high watermark and for the durable offset; created on first use.
        self._committed: OffsetWaiters | None = None
        self._durable: OffsetWaiters | None = None
        #: Callbacks for the low watermark.
        self._trimmed: OffsetWaiters | None = None
        #: Fetches that wait for more records; None if there are none.
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
        """Records the failures of callbacks."""
        return self._host.failures

    @property
    def is_leader(self) -> bool:
        return self.state.leader == self.broker_id

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    def apply_state(self, state: PartitionRecord, high_watermark: int) -> None:
        """Apply the role that `state` gives; `high_watermark` is the last one known here."""
        if self._rejected and state.leader_epoch != self.state.leader_epoch:
            self._rejected.begin_epoch()
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
        self._notify_readers()

    def _notify_readers(self) -> None:
        """Notify the followers' sessions of a change."""
        for reader in self.readers:
            try:
                reader.changed()
            except Exception as error:  # noqa: BLE001  # logged and counted
                self._reader_failed(error)

    def _reader_failed(self, error: Exception) -> None:
        self.failures.note(CallbackKind.FOLLOWER_SESSION, error, self.topic_partition)

    def _lead(self) -> None:
        """Start a leader epoch, or continue the present one."""
        log, state = self.log, self.state
        if self._led_epoch == NO_EPOCH:
            self._reset_durable_offset()
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

    def _reset_durable_offset(self) -> None:
        """Set the durable offset from the log's present state."""
        log = self.log
        self.durable_offset = log.log_end_offset
        if self._flushes_before_ack and log.recovery_point < log.log_end_offset:
            self.durable_offset = log.recovery_point
            self._host.flush(self)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether too few replicas are in sync for new records to be committed."""
        return min_isr.is_under_min_isr(self.state, self.log.config)

    @property
    def min_isr(self) -> int:
        """The effective `min.insync.replicas`."""
        return min_isr.min_isr(self.state, self.log.config)

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise unless this broker leads, in the client's leader epoch if it sent one."""
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
        """`check_leader` for a consumer, which may be allowed to read from a follower."""
        if from_follower and not self.is_leader and self.state.leader != NO_LEADER:
            self._check_epoch(current_leader_epoch)
        else:
            self.check_leader(current_leader_epoch)

    def append(self, batch: memoryview, header: BatchHeader, *, acks_all: bool) -> AppendResult:
        """Append one validated batch as the leader.

        On return the batch is in this broker's page cache. It is committed once `high_watermark`
        has passed it, which may already be the case."""
        state = self.state
        log = self.log
        try:
            if state.leader != self.broker_id:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if acks_all and self.is_under_min_isr:
                raise BrokerError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"{self.topic_partition} has {len(state.isr)} in-sync replicas; "
                    f"min.insync.replicas requires {self.min_isr}",
                )
            if self._rejected:
                self._check_rejected(header)
            appended = log.append_as_leader(batch, header, state.leader_epoch)
        except BrokerError as error:
            raise self._client_error(header, error) from error
        if self._rejected:
            self._rejected.appended(header)
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
                # Earlier batches may still wait for a flush that is no longer needed.
                self._durable.advance(self.durable_offset)
            self.advance_high_watermark()
        return appended

    def _check_rejected(self, header: BatchHeader) -> None:
        assert self._rejected is not None
        is_known = self.log.producer_state.is_known(header.producer_id, header.producer_epoch)
        self._rejected.check(header, is_known=is_known)

    def _client_error(self, header: BatchHeader, error: BrokerError) -> BrokerError:
        """Return the error that the client gets for a batch that `error` kept out of the log."""
        sent = self._rejected.client_error(header, error) if self._rejected else error
        if sent is error:
            self.rejected(header, error.code)
        return sent

    def rejected(
        self, header: BatchHeader, code: ErrorCode, *, by_coordinator: bool = False
    ) -> None:
        """Record a rejected batch, so that no later batch of the producer is appended first.

        Old batches that the network delivered again do not count: no client retries them."""
        if self.log.is_past(header):
            return
        if self._rejected is None:
            self._rejected = RejectedProducers()
        self._rejected.reject(header, code, by_coordinator=by_coordinator)

    def check_first_batch(self, header: BatchHeader) -> None:
        """Raise unless a batch can be the first one of its transaction (version 2) here.

        INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, or the code of an earlier batch that
        was rejected."""
        if self._rejected:
            self._check_rejected(header)
        try:
            self.log.producer_state.check_first_batch(header, self.log.log_end_offset)
        except BrokerError as error:
            raise self._client_error(header, error) from error

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int = 0,
    ) -> AppendResult:
        """Append the marker that ends the producer's transaction in this partition.

        The marker is as durable as an `append` with acks=all. If the log already has the marker,
        the result is a `duplicate` at the log end; from transaction version 2 on the log can tell.
        Raises INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, and as `append` does.
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
        if self._rejected:
            self._rejected.ended(producer_id)
        # Let the log forget stable transactions now, not at the next read.
        log.last_stable_offset(self.high_watermark)
        return appended

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def flushed(self, offset: int) -> None:
        """Advance the durable offset: everything below `offset` is on stable storage."""
        if offset > self.durable_offset:
            self.durable_offset = offset
            if self._durable is not None:
                self._durable.advance(offset)
            if self.is_leader:
                self.advance_high_watermark()

    def advance_high_watermark(self) -> None:
        """Advance the high watermark to the offset that every in-sync replica has."""
        offset = self.durable_offset
        if self.leadership is not None:
            if self.is_under_min_isr or self.state.elr:
                # Eligible leader replicas have every committed record only if no more is committed.
                return
            offset = self.leadership.committed_offset(offset)
        self._raise_high_watermark(offset)

    def _raise_high_watermark(self, offset: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        if self.readers:
            self._notify_readers()
        if self._committed is not None:
            self._committed.advance(offset)
        if self.watchers and not self.is_wake_scheduled:
            self.is_wake_scheduled = True
            self._host.wake_later(self)

    @property
    def is_end_uncertain(self) -> bool:
        """Whether this leader's high watermark may be below the one of the previous leader.

        It is not once every record below the start of this leader epoch is committed."""
        leadership = self.leadership
        return leadership is not None and self.high_watermark < leadership.epoch_start_offset

    def append_as_follower(
        self, batches: memoryview, high_watermark: int, log_start_offset: int
    ) -> None:
        """Append batches from the leader, and adopt its high watermark and log start.

        If this raises BrokerError, the log is unchanged."""
        log = self.log
        if batches:
            log.append_as_follower(batches)
            self.durable_offset = log.log_end_offset
        self._raise_high_watermark(min(high_watermark, log.log_end_offset))
        log.advance_start(min(log_start_offset, self.high_watermark))

    def truncate(self, offset: int) -> None:
        """Truncate the log to `offset`, where it diverges from the leader's log."""
        log = self.log
        if offset < log.log_start_offset:
            log.truncate_fully_and_start_at(offset)
        else:
            log.truncate_to(offset)
        self._truncated()

    def restart_at(self, offset: int) -> None:
        """Drop all records: the leader's log starts at `offset`, after the end of this log."""
        self.log.truncate_fully_and_start_at(offset)
        self._truncated()

    def _truncated(self) -> None:
        log = self.log
        self.durable_offset = min(self.durable_offset, log.log_end_offset)
        self.high_watermark = max(
            min(self.high_watermark, log.log_end_offset), log.log_start_offset
        )
        self._host.truncated(self, log.log_end_offset)

    def read_for_follower(self, offset: int, max_bytes: int, *, at_least_one: bool) -> LogSlice:
        """Return batches from `offset` on, committed or not."""
        log = self.log
        return log.read(offset, max_bytes, log.log_end_offset, at_least_one=at_least_one)

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool, read_committed: bool = False
    ) -> LogSlice:
        """Return committed batches from the one that has `offset`, as a range of a file.

        With `read_committed` the range ends before the first open transaction. Aborted transactions
        are in `log.aborted_transactions`.
        """
        log = self.log
        end_offset = self.last_stable_offset if read_committed else self.high_watermark
        if offset > end_offset and offset <= log.log_end_offset:
            # Appended but not committed: an empty result, not an error.
            return log.read(end_offset, 0, end_offset, at_least_one=False)
        return log.read(offset, max_bytes, end_offset, at_least_one=at_least_one)

    def is_acknowledged(self, offset: int, *, acks_all: bool) -> bool:
        """Whether every batch below `offset` may be acknowledged."""
        return (self.high_watermark if acks_all else self.durable_offset) >= offset

    def when_acknowledged(
        self,
        offset: int,
        callback: Callable[[], None],
        reply: Reply[Any] | None,
        *,
        acks_all: bool,
    ) -> None:
        """Call `callback` once every batch below `offset` may be acknowledged, or once this broker
        can no longer tell (it lost leadership, or the ISR fell below the minimum).

        `reply` belongs to the request that waits; None if no single request does."""
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
        """Notify the watchers. Called once for each `Host.wake_later`."""
        self.is_wake_scheduled = False
        for watcher in list(self.watchers or ()):
            try:
                watcher.more_readable()
            except Exception as error:  # noqa: BLE001  # the watcher's own request gets it
                watcher.failed(error)

    def retire(self) -> None:
        """Stop leading and release every waiter: the replica is removed, or applying its role
        failed."""
        self.state = msgspec.structs.replace(self.state, leader=NO_LEADER)
        self._led_epoch = NO_EPOCH
        self.leadership = None
        self.release_waiters()
        self._notify_readers()

    def release_waiters(self) -> None:
        """Call every waiting callback: this broker can no longer serve them."""
        for waiters in (self._committed, self._durable, self._trimmed):
            if waiters is not None:
                waiters.fire_all()
        self.wake()

    def delete_records(self, offset: int) -> int:
        """Trim the log to `offset` (-1: the high watermark); return the new log start."""
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} can be trimmed up to offset {self.high_watermark}",
            )
        self.log.advance_start(offset)
        self._notify_readers()
        return self.log.log_start_offset

    @property
    def low_watermark(self) -> int:
        """Smallest log start of the in-sync replicas, as far as the leader knows."""
        start = self.log.log_start_offset
        return start if self.leadership is None else self.leadership.low_watermark(start)

    def advance_low_watermark(self) -> None:
        """Call the callbacks that wait for the present low watermark."""
        if self._trimmed is not None:
            self._trimmed.advance(self.low_watermark)

    def when_trimmed(self, offset: int, callback: Callable[[], None]) -> None:
        """Call `callback` once all in-sync replicas start at `offset` or later, or once this broker
        loses leadership."""
        if self._trimmed is None:
            self._trimmed = OffsetWaiters(self.failures, self.topic_partition)
        self._trimmed.add(offset, callback, None)
