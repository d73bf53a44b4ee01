"""Fetches many partitions from one leader: a task with one connection and one fetch session.

Sends requests and applies each row of the responses. `fetcher_pool` decides which partitions are
fetched from which leader, `leader_session` has the session's state, `truncation` decides where a
log is truncated.

One request is in progress, and a second one if partitions were added or removed meanwhile: a new
leader's first acknowledgements must not wait for the end of an earlier long poll. Each row is
applied in one synchronous step. The loop gets a turn after `_BYTES_PER_TURN`, so every row is
checked against the metadata as they are by then.

A row is applied by these rules:

    diverging epoch         truncate the log by epochs, then name the new log end
    records                 append them unchanged
    OFFSET_OUT_OF_RANGE     the leader's log starts after the end of this log: drop all records and
                            start there
    any other error         do not fetch the partition for a while, or until its metadata change

A leader that closed its connection counts as lost for a moment (`is_lost`): clients are not sent to
it before the metadata name the new leader. A leader that hangs is detected by its lease.

Pauses grow from `_PAUSE_S_MIN` to `backoff_ms`: most failures end at once, when the metadata reach
the other broker, or when a broker that has just registered accepts connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from millstream.env.clock import Clock
from millstream.env.disk import Buffer
from millstream.env.network import Network
from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.metadata.cluster_record import Endpoint
from millstream.model.error import BrokerError, ErrorCode
from millstream.replication.follower.leader_session import (
    FetchLimits,
    FollowedPartition,
    Key,
    LeaderSession,
)
from millstream.replication.follower.truncation import EpochEnd, truncation_offset
from millstream.replication.partition import Partition
from millstream.replication.peer import Peer, PeerError
from millstream.replication.replicas import Replicas
from millstream.replication.stats import ReplicationStats
from millstream.replication.throttle import ReplicaLimit
from millstream.wire.messages.fetch import FetchResponse

_logger = logging.getLogger(__name__)

#: All brokers of a cluster have the same version, which uses this Fetch version.
FETCH_VERSION: Final = 18
#: Bytes that are appended in one turn of the loop.
_BYTES_PER_TURN: Final = 1024 * 1024
_REQUESTS_MAX: Final = 2
_PAUSE_S_MIN: Final = 0.02
#: By then the cluster has elected another leader, or the lost one is alive.
_LOST_S_MAX: Final = 1.0
_SESSION_LOST: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)
#: Errors that end when the metadata have reached both brokers.
_EXPECTED: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)

_Row = FetchResponse.Topic.Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherOptions:
    """Settings of all fetchers."""

    limits: FetchLimits = field(default_factory=FetchLimits)
    backoff_ms: int = 1000
    #: Time for a connection, and for a response beyond `limits.wait_ms_max`.
    timeout_ms: int = 30_000
    #: Whether a follower flushes records before its next request acknowledges them.
    flushes_before_ack: bool = False


@dataclass(slots=True)
class FetcherContext:
    """The parts of the broker that its fetchers share."""

    broker_id: int
    network: Network
    clock: Clock
    replicas: Replicas
    options: FetcherOptions
    stats: ReplicationStats
    limit: ReplicaLimit
    supervisor: Supervisor
    #: The broker's present registration.
    broker_epoch: int = -1


class _PendingFetch(NamedTuple):
    """A request in progress."""

    number: int
    response: asyncio.Future[FetchResponse]
    #: Monotonic time.
    deadline: float


class ReplicaFetcher:
    """Runs from `start` to `cancel`."""

    __slots__ = (
        "_alarm",
        "_alarm_at",
        "_appended",
        "_context",
        "_endpoint",
        "_is_restarting",
        "_leader_id",
        "_lost_at",
        "_name",
        "_peer",
        "_session",
        "_task",
        "_woken",
    )

    def __init__(
        self, context: FetcherContext, leader_id: int, number: int, endpoint: Endpoint
    ) -> None:
        """`number` distinguishes the fetchers for one leader."""
        self._context = context
        self._leader_id = leader_id
        #: The client id, by which the leader identifies the session.
        self._name = f"broker-{context.broker_id}-fetcher-{number}"
        self._endpoint = endpoint
        self._session = LeaderSession(context.options.limits)
        self._peer: Peer | None = None
        self._task: SupervisedTask | None = None
        #: Wakes the task: a response arrived, partitions changed, or a deadline passed.
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._alarm: asyncio.TimerHandle | None = None
        #: Monotonic time of `_alarm`.
        self._alarm_at = 0.0
        #: Whether this fetcher closed the connection, to open a new session at once.
        self._is_restarting = False
        #: When the leader last closed an open session; None after its next response.
        self._lost_at: float | None = None
        #: Partitions to flush before the next request.
        self._appended: dict[Partition, None] = {}

    def __len__(self) -> int:
        return len(self._session)

    def start(self) -> None:
        self._task = self._context.supervisor.start(
            "replica-fetcher", self._run, about=f"{self._name} from broker {self._leader_id}"
        )

    def cancel(self) -> None:
        """Stop fetching. The task ends soon."""
        if self._task is not None:
            self._task.cancel()
        self._close()
        if self._alarm is not None:
            self._alarm.cancel()

    @property
    def is_ended(self) -> bool:
        return self._task is None or self._task.is_done

    async def ended(self) -> None:
        if self._task is not None:
            await self._task.ended()

    def add(self, partition: Partition) -> None:
        """Fetch a partition, or apply its changed metadata."""
        self._session.add(partition)
        self._wake()

    def remove(self, key: Key) -> None:
        self._session.remove(key)
        self._wake()

    def restart(self) -> None:
        """Open a new session at once: this broker has registered anew."""
        self._is_restarting = True
        self._close()

    @property
    def is_lost(self) -> bool:
        """Whether the leader has just closed its connection, without a response since."""
        peer = self._peer
        if peer is not None and peer.closed and not (self._is_restarting or peer.is_replaced):
            return self._session.is_open
        now = self._context.clock.monotonic()
        return self._lost_at is not None and now - self._lost_at < _LOST_S_MAX

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    def _close(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()

    # Requests

    async def _run(self) -> None:
        # A run that failed may have left a connection, a session, and unflushed records, which the
        # next request would acknowledge.
        self._close()
        self._session.reset()
        if self._appended:
            await self._make_durable()
        failures = 0
        while True:
            requests = self._session.requests
            try:
                await self._fetch_until_failure()
            except PeerError as error:
                if self._peer is not None and self._peer.is_replaced:
                    self._is_restarting = True
                if not self._is_restarting:
                    self._context.stats.connection_failures += 1
                    if self._session.is_open:
                        self._lost_at = self._context.clock.monotonic()
                    _logger.warning("fetching from broker %d: %s", self._leader_id, error)
            self._close()
            self._session.reset()
            failures = failures + 1 if self._session.requests <= requests + 1 else 1
            if not self._is_restarting:
                await asyncio.sleep(self._pause_s(failures))
            self._is_restarting = False

    def _pause_s(self, failures: int) -> float:
        """Return the pause after this many failures in a row."""
        longest_s = self._context.options.backoff_ms / 1000
        return min(_PAUSE_S_MIN * 2.0 ** min(failures, 16), longest_s)

    async def _fetch_until_failure(self) -> None:
        """Send requests and apply responses until one fails. Raises PeerError."""
        options, endpoint = self._context.options, self._endpoint
        self._peer = peer = await Peer.connect(
            self._context.network,
            endpoint.host,
            endpoint.port,
            self._name,
            options.timeout_ms / 1000,
        )
        peer.on_progress = self._wake
        calls: deque[_PendingFetch] = deque()
        while True:
            self._session.wake_delayed(self._context.clock.monotonic())
            if not calls or self._may_send_another(len(calls)):
                calls.append(self._send(peer))
            call = calls[0]
            if not call.response.done():
                await self._wait(call)
            if call.response.done():
                calls.popleft()
                await self._apply(call.number, call.response.result())

    def _may_send_another(self, under_way: int) -> bool:
        session = self._session
        return session.has_news and session.is_open and under_way < _REQUESTS_MAX

    def _send(self, peer: Peer) -> _PendingFetch:
        context, options = self._context, self._context.options
        request = self._session.request(context.broker_id, context.broker_epoch)
        timeout_s = (options.limits.wait_ms_max + options.timeout_ms) / 1000
        return _PendingFetch(
            self._session.requests,
            peer.send(request, FETCH_VERSION, FetchResponse),
            context.clock.monotonic() + timeout_s,
        )

    async def _wait(self, call: _PendingFetch) -> None:
        """Wait for the response, or for more to request. Raises PeerError at the deadline."""
        now = self._context.clock.monotonic()
        if now >= call.deadline:
            raise PeerError("no response in time")
        wake_at = call.deadline
        if self._session.is_open:
            wake_at = min(wake_at, now + self._session.delay_left_s(now))
        self._set_alarm(wake_at, now)
        if self._woken.done():
            self._woken = asyncio.get_running_loop().create_future()
        await self._woken

    def _set_alarm(self, wake_at: float, now: float) -> None:
        """Wake the task at `wake_at`. An earlier alarm is kept, because deadlines move on with
        every request. It may wake the task too early, which is harmless."""
        if self._alarm is not None:
            if self._alarm_at <= wake_at:
                return
            self._alarm.cancel()
        self._alarm_at = wake_at
        self._alarm = asyncio.get_running_loop().call_later(wake_at - now, self._alarmed)

    def _alarmed(self) -> None:
        self._alarm = None
        self._wake()

    # Responses

    async def _apply(self, number: int, response: FetchResponse) -> None:
        if response.error_code:
            code = ErrorCode(response.error_code)
            if code not in _SESSION_LOST:
                raise PeerError(f"the leader responded with {code.name}")
            self._session.reset()
            return
        self._session.opened(response.session_id)
        self._lost_at = None
        size = 0
        for topic in response.responses:
            for row in topic.partitions:
                followed = self._session.find((topic.topic_id, row.partition_index), number)
                if followed is None:
                    continue
                size += self._apply_row(followed, row)
                if size >= _BYTES_PER_TURN:
                    size = 0
                    await asyncio.sleep(0)
        if self._appended:
            await self._make_durable()

    def _apply_row(self, followed: FollowedPartition, row: _Row) -> int:
        """Apply one row; return the number of bytes appended."""
        log = followed.partition.log
        end_before, start_before = log.log_end_offset, log.log_start_offset
        size = 0
        try:
            if row.error_code:
                self._apply_error(followed, row)
            elif row.diverging_epoch is not None:
                self._truncate(followed.partition, row.diverging_epoch)
            else:
                size = self._append(followed.partition, row)
        except Exception as error:  # noqa: BLE001  # recorded; other partitions continue
            self._record_failure(followed, error)
            return size
        followed.failures = 0
        if log.log_end_offset != end_before:
            self._session.moved(followed)
            self._throttle(followed, size)
        elif log.log_start_offset != start_before:
            self._session.moved(followed)
        return size

    def _record_failure(self, followed: FollowedPartition, error: Exception) -> None:
        """Record a failure and delay the partition."""
        self._context.stats.partition_failures += 1
        name = followed.partition.topic_partition
        if isinstance(error, BrokerError):
            level = logging.DEBUG if error.code in _EXPECTED else logging.ERROR
            _logger.log(level, "%s not fetched from broker %d: %s", name, self._leader_id, error)
        else:
            about = f"{name} from broker {self._leader_id}"
            self._context.supervisor.report("replica-fetcher", error, about)
        followed.failures += 1
        self._delay(followed, self._pause_s(followed.failures))

    def _append(self, partition: Partition, row: _Row) -> int:
        batches = memoryview(cast("Buffer", row.records or b""))
        partition.append_as_follower(batches, row.high_watermark, row.log_start_offset)
        if batches and self._context.options.flushes_before_ack:
            self._appended[partition] = None
        self._context.stats.bytes_in += len(batches)
        return len(batches)

    def _apply_error(self, followed: FollowedPartition, row: _Row) -> None:
        partition = followed.partition
        if (
            row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            and row.log_start_offset > partition.log.log_end_offset
        ):
            _logger.warning(
                "%s restarts at %d: the log of its leader, broker %d, starts after the log end, %d",
                partition.topic_partition,
                row.log_start_offset,
                self._leader_id,
                partition.log.log_end_offset,
            )
            partition.restart_at(row.log_start_offset)
            return
        raise BrokerError(ErrorCode(row.error_code), "the leader returned this error")

    def _truncate(self, partition: Partition, diverging: _Row.EpochEndOffset) -> None:
        log = partition.log
        leader = EpochEnd(diverging.epoch, diverging.end_offset)
        offset = truncation_offset(log.epochs, log.log_end_offset, leader)
        _logger.info(
            "%s is truncated from %d to %d: its leader, broker %d, ends epoch %d at %d",
            partition.topic_partition,
            log.log_end_offset,
            offset,
            self._leader_id,
            leader.epoch,
            leader.end_offset,
        )
        if offset >= log.log_end_offset:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "no offset to truncate to is known")
        self._context.stats.truncations += 1
        partition.truncate(offset)

    def _throttle(self, followed: FollowedPartition, size: int) -> None:
        """Delay a throttled replica."""
        context, partition = self._context, followed.partition
        throttles = context.limit.of(
            partition.state,
            partition.log.config.follower_replication_throttled_replicas,
            partition.topic_partition.partition,
            context.broker_id,
            context.broker_id,
        )
        if not throttles:
            return
        now = context.clock.monotonic()
        for throttle in throttles:
            throttle.add(size, now)
        wait_s = max(throttle.wait_s(now) for throttle in throttles)
        if wait_s:
            self._delay(followed, wait_s)

    def _delay(self, followed: FollowedPartition, wait_s: float) -> None:
        self._session.delay(followed, self._context.clock.monotonic() + wait_s)

    async def _make_durable(self) -> None:
        """Flush fetched records before the next request acknowledges them."""
        failures = 0
        while self._appended:
            try:
                await self._context.replicas.make_durable(self._appended)
            except BrokerError as error:
                _logger.error("fetched records can't be flushed: %s", error)
            # A log that failed rejects further appends. For the other logs the disk is full, and
            # the leader must not count on their records before they are flushed.
            self._appended = {
                each: None
                for each in self._appended
                if each.log.failure is None and each.log.recovery_point < each.log.log_end_offset
            }
            if self._appended:
                failures += 1
                await asyncio.sleep(self._pause_s(failures))
