"""Fetching from one leader: a task with one connection and one session, for many partitions there.

Owns the exchange of requests and answers and what to do with each row of an answer. Which
partitions are fetched from here is `fetcher_pool`'s decision, the session's bookkeeping is
`leader_session`'s, where to cut is `truncation`'s.

There is one request under way, and a second one when partitions came or went meanwhile: a new
leader's first acknowledgements must not wait for the end of an earlier long poll. Rows are applied
in one synchronous step each; after `_BYTES_PER_TURN` the loop gets a turn, so every row is checked
anew against what the metadata say by then.

A row is applied by these rules:

    diverging epoch         cut the log by epochs, then name the new end
    records                 append them as they are
    OFFSET_OUT_OF_RANGE     the leader's log begins after the end of ours: start over there
    any other error         leave the partition alone for a while, or until its metadata change

A leader that hung up is taken for lost for a moment (`is_lost`): clients are not sent to it before
the metadata say who leads now. A leader that never answers again is for others to find out.

Rests grow from `_REST_S_MIN` to `backoff_ms`: most failures end at once, when the metadata have
reached the other side or a broker that has just registered accepts connections.
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

#: Brokers of a cluster are of one version; this is what they speak.
FETCH_VERSION: Final = 18
#: Appended before others get a turn of the loop.
_BYTES_PER_TURN: Final = 1024 * 1024
_REQUESTS_MAX: Final = 2
_REST_S_MIN: Final = 0.02
#: After this the cluster has decided about a leader that hung up, or it is alive for others.
_LOST_S_MAX: Final = 1.0
_SESSION_LOST: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)
#: RejectedProducers that end by themselves when the metadata have reached both sides.
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
    limits: FetchLimits = field(default_factory=FetchLimits)
    backoff_ms: int = 1000
    #: Time for a connection, and for an answer beyond the wait that was asked for.
    timeout_ms: int = 30_000
    #: Whether what a follower has must be on stable storage before it says so.
    flushes_before_ack: bool = False


@dataclass(slots=True)
class FetcherContext:
    """This broker, as its fetchers need it."""

    broker_id: int
    network: Network
    clock: Clock
    replicas: Replicas
    options: FetcherOptions
    stats: ReplicationStats
    limit: ReplicaLimit
    supervisor: Supervisor
    #: Of the present registration.
    broker_epoch: int = -1


class _Call(NamedTuple):
    """A request under way."""

    number: int
    answer: asyncio.Future[FetchResponse]
    #: Monotonic time.
    deadline: float


class Fetcher:
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
        """`number` tells the fetchers for one source apart."""
        self._context = context
        self._leader_id = leader_id
        #: By which the leader knows its session from those of this broker's other fetchers.
        self._name = f"broker-{context.broker_id}-fetcher-{number}"
        self._endpoint = endpoint
        self._session = LeaderSession(context.options.limits)
        self._peer: Peer | None = None
        self._task: SupervisedTask | None = None
        #: What the task waits on: an answer came, partitions came or went, or it is time.
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._alarm: asyncio.TimerHandle | None = None
        #: Monotonic time, while there is one.
        self._alarm_at = 0.0
        #: Whether the connection was closed from here, to begin a new session at once.
        self._is_restarting = False
        #: When a connection broke on which the leader had answered; None after its next answer.
        self._lost_at: float | None = None
        #: Appended to since the last answer, where that is to be made durable first.
        self._appended: dict[Partition, None] = {}

    def __len__(self) -> int:
        return len(self._session)

    def start(self) -> None:
        self._task = self._context.supervisor.start(
            "replica-fetcher", self._run, about=f"{self._name} from broker {self._leader_id}"
        )

    def cancel(self) -> None:
        """Fetch no more. The task ends soon."""
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
        """Fetch a partition from here, or take note that its metadata changed."""
        self._session.add(partition)
        self._wake()

    def remove(self, key: Key) -> None:
        self._session.remove(key)
        self._wake()

    def restart(self) -> None:
        """Begin a new session at once: this broker has registered anew."""
        self._is_restarting = True
        self._close()

    @property
    def is_lost(self) -> bool:
        """Whether the leader has just hung up, and nothing was heard of it since."""
        if self._peer is not None and self._peer.closed and not self._is_restarting:
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

    # The exchange

    async def _run(self) -> None:
        # A run that failed may have left a connection, a session, and records that are not on
        # stable storage yet: the next request says that they are.
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
                if not self._is_restarting:
                    self._context.stats.connection_failures += 1
                    if self._session.is_open:
                        self._lost_at = self._context.clock.monotonic()
                    _logger.warning("fetching from broker %d: %s", self._leader_id, error)
            self._close()
            self._session.reset()
            failures = failures + 1 if self._session.requests <= requests + 1 else 1
            if not self._is_restarting:
                await asyncio.sleep(self._rest_s(failures))
            self._is_restarting = False

    def _rest_s(self, failures: int) -> float:
        """After so many failures in a row."""
        longest_s = self._context.options.backoff_ms / 1000
        return min(_REST_S_MIN * 2.0 ** min(failures, 16), longest_s)

    async def _fetch_until_failure(self) -> None:
        """Ask and apply until something fails. Raises PeerError."""
        options, endpoint = self._context.options, self._endpoint
        self._peer = peer = await Peer.connect(
            self._context.network,
            endpoint.host,
            endpoint.port,
            self._name,
            options.timeout_ms / 1000,
        )
        peer.on_progress = self._wake
        calls: deque[_Call] = deque()
        while True:
            self._session.wake_delayed(self._context.clock.monotonic())
            if not calls or self._may_send_another(len(calls)):
                calls.append(self._send(peer))
            call = calls[0]
            if not call.answer.done():
                await self._wait(call)
            if call.answer.done():
                calls.popleft()
                await self._apply(call.number, call.answer.result())

    def _may_send_another(self, under_way: int) -> bool:
        session = self._session
        return session.has_news and session.is_open and under_way < _REQUESTS_MAX

    def _send(self, peer: Peer) -> _Call:
        context, options = self._context, self._context.options
        request = self._session.request(context.broker_id, context.broker_epoch)
        timeout_s = (options.limits.wait_ms_max + options.timeout_ms) / 1000
        return _Call(
            self._session.requests,
            peer.send(request, FETCH_VERSION, FetchResponse),
            context.clock.monotonic() + timeout_s,
        )

    async def _wait(self, call: _Call) -> None:
        """Until the answer is there, or there is more to ask for. Raises PeerError at a timeout."""
        now = self._context.clock.monotonic()
        if now >= call.deadline:
            raise PeerError("there was no answer in time")
        wake_at = call.deadline
        if self._session.is_open:
            wake_at = min(wake_at, now + self._session.delay_left_s(now))
        self._set_alarm(wake_at, now)
        if self._woken.done():
            self._woken = asyncio.get_running_loop().create_future()
        await self._woken

    def _set_alarm(self, wake_at: float, now: float) -> None:
        """Have the task woken by then. Deadlines move on with every request, so that an alarm which
        is set already will mostly do; it wakes the task in vain now and then."""
        if self._alarm is not None:
            if self._alarm_at <= wake_at:
                return
            self._alarm.cancel()
        self._alarm_at = wake_at
        self._alarm = asyncio.get_running_loop().call_later(wake_at - now, self._alarmed)

    def _alarmed(self) -> None:
        self._alarm = None
        self._wake()

    # Answers

    async def _apply(self, number: int, response: FetchResponse) -> None:
        if response.error_code:
            code = ErrorCode(response.error_code)
            if code not in _SESSION_LOST:
                raise PeerError(f"the leader refuses: {code.name}")
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
        """Bring one partition on; returns how much was appended."""
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
        except Exception as error:  # noqa: BLE001  # noted; other partitions go on
            self._note_failure(followed, error)
            return size
        followed.failures = 0
        if log.log_end_offset != end_before:
            self._session.moved(followed)
            self._hold_back(followed, size)
        elif log.log_start_offset != start_before:
            self._session.moved(followed)
        return size

    def _note_failure(self, followed: FollowedPartition, error: Exception) -> None:
        """Leave a partition alone for a while."""
        self._context.stats.partition_failures += 1
        name = followed.partition.topic_partition
        if isinstance(error, BrokerError):
            level = logging.DEBUG if error.code in _EXPECTED else logging.ERROR
            _logger.log(level, "%s not fetched from broker %d: %s", name, self._leader_id, error)
        else:
            about = f"{name} from broker {self._leader_id}"
            self._context.supervisor.report("replica-fetcher", error, about)
        followed.failures += 1
        self._delay(followed, self._rest_s(followed.failures))

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
                "%s starts over at %d: the log of its leader, broker %d, begins after the end, %d",
                partition.topic_partition,
                row.log_start_offset,
                self._leader_id,
                partition.log.log_end_offset,
            )
            partition.restart_at(row.log_start_offset)
            return
        raise BrokerError(ErrorCode(row.error_code), "the leader refuses")

    def _truncate(self, partition: Partition, diverging: _Row.EpochEndOffset) -> None:
        log = partition.log
        leader = EpochEnd(diverging.epoch, diverging.end_offset)
        offset = truncation_offset(log.epochs, log.log_end_offset, leader)
        _logger.info(
            "%s is cut from %d to %d: broker %d, its leader, ends epoch %d at %d",
            partition.topic_partition,
            log.log_end_offset,
            offset,
            self._leader_id,
            leader.epoch,
            leader.end_offset,
        )
        if offset >= log.log_end_offset:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "no place to cut the log is known")
        self._context.stats.truncations += 1
        partition.truncate(offset)

    def _hold_back(self, followed: FollowedPartition, size: int) -> None:
        """Let a replica that is throttled wait for its turn."""
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
        """Before the next request, which tells the leader that this broker has it."""
        failures = 0
        while self._appended:
            try:
                await self._context.replicas.make_durable(self._appended)
            except BrokerError as error:
                _logger.error("what was fetched can't be made durable: %s", error)
            # Logs that failed take no more appends; their rows are refused from now on. For the
            # others there was no room, and the leader must not count on them before there is.
            self._appended = {
                each: None
                for each in self._appended
                if each.log.failure is None and each.log.recovery_point < each.log.log_end_offset
            }
            if self._appended:
                failures += 1
                await asyncio.sleep(self._rest_s(failures))
