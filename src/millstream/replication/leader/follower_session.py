"""A follower's fetch session on its leader: its partitions, positions, and pending responses.

A follower's fetcher opens its session with a full Fetch. Later requests list only partitions whose
position changed (KIP-227). Unlike a consumer's session, partitions report their changes here, and a
response visits only these. So a fetch costs what the busy partitions cost, even with thousands of
idle ones.

States of a partition in a session:

    due      visited by the next response: the follower listed it, records were appended, or its
             high watermark, log start or leadership changed. If the follower has newer metadata
             than this broker, it stays due for as long as one request may wait
    quiet    the follower has been sent everything
    sent     records or an error were sent; it rests until the follower lists it again

Records and a new log start wake a waiting request. A high watermark alone goes into the next
response. A second request makes the waiting one respond at once: that is how a
follower adds partitions without waiting for the end of a long poll. `CatchUpPace` limits what a
follower gets of partitions in which it is not in sync.

Nothing here is persistent. Event loop only.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from millstream.env.clock import Clock
from millstream.log.reading.slice import EMPTY_SLICE, LogSlice
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.model.sentinel import INT32_MAX
from millstream.replication.leader import fetch_position
from millstream.replication.leader.catch_up_pace import CatchUpPace
from millstream.replication.leader.divergence import follower_divergence
from millstream.replication.leader.fetch_position import FetchPosition
from millstream.replication.leader.follower_state import FollowerFetch
from millstream.replication.leader.isr_change import IsrChanges
from millstream.replication.leader.session_partition import SessionKey, SessionPartition
from millstream.replication.partition import Partition
from millstream.replication.replicas import Replicas
from millstream.replication.stats import ReplicationStats
from millstream.replication.throttle import ReplicaLimit, Throttle
from millstream.wire.messages.fetch import FetchRequest, FetchResponse

_Row = FetchResponse.Topic.Partition
#: Event loops count in milliseconds.
_PAUSE_S_MIN: Final = 0.001
_ANOTHER_LEADER: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class LeaderContext(NamedTuple):
    """The parts of the broker that its followers' sessions share."""

    replicas: Replicas
    isr: IsrChanges
    clock: Clock
    stats: ReplicationStats
    limit: ReplicaLimit
    #: Bytes a second for a follower that catches up while producers write.
    catch_up_rate: int


class RequestLimits(NamedTuple):
    """The limits that one Fetch request sets."""

    wait_ms_max: int
    bytes_min: int
    bytes_max: int


class FollowerSession:
    """The session of one fetcher of one follower."""

    __slots__ = (
        "_context",
        "_due",
        "_entries",
        "_is_urgent",
        "_is_wake_scheduled",
        "_limits",
        "_pace_timer",
        "_reply",
        "_responded_at",
        "_timer",
        "_unknown",
        "broker_epoch",
        "broker_id",
        "epoch",
        "pace",
        "session_id",
    )

    def __init__(
        self, context: LeaderContext, broker_id: int, broker_epoch: int, session_id: int
    ) -> None:
        self._context = context
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.session_id = session_id
        #: The session epoch that the next request must have.
        self.epoch = 1
        self._entries: dict[SessionKey, SessionPartition] = {}
        #: Partitions that are due, the longest waiting first.
        self._due: dict[SessionPartition, None] = {}
        #: Due partitions that this broker does not know yet.
        self._unknown: dict[SessionPartition, None] = {}
        #: The reply of the request that waits, or None.
        self._reply: Reply[FetchResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Set while a request waits and the pace holds records back.
        self._pace_timer: asyncio.TimerHandle | None = None
        self._limits = RequestLimits(0, 0, 0)
        #: Whether something urgent became due since the last `collect` started.
        self._is_urgent = False
        self._is_wake_scheduled = False
        #: Time of the last response.
        self._responded_at = context.clock.monotonic()
        self.pace = CatchUpPace(context.catch_up_rate, self._responded_at)

    def __len__(self) -> int:
        return len(self._entries)

    def step(self) -> None:
        self.epoch = 1 if self.epoch == INT32_MAX else self.epoch + 1

    def close(self) -> None:
        self.respond_now()
        for entry in self._entries.values():
            entry.detach()
        self._entries.clear()
        self._due.clear()
        self._unknown.clear()

    # Requests

    def apply_request(self, request: FetchRequest) -> None:
        """Update the session's partitions and positions from a request."""
        find = self._context.replicas.find_by_id
        for topic in request.topics:
            for wanted in topic.partitions:
                key = (topic.topic_id, wanted.partition)
                entry = self._entries.get(key)
                if entry is None:
                    entry = self._entries[key] = SessionPartition(self, key, FetchPosition(wanted))
                else:
                    entry.position.update(wanted)
                entry.attach(find(*key))
                entry.reset_sent()
                # Last in the queue: with a small limit each partition gets its turn.
                self._due.pop(entry, None)
                self._due[entry] = None
        for forgotten in request.forgotten_topics_data:
            for partition in forgotten.partitions:
                entry = self._entries.pop((forgotten.topic_id, partition), None)
                if entry is not None:
                    entry.detach()
                    self._due.pop(entry, None)
                    self._unknown.pop(entry, None)

    # Changes of partitions

    def touch(self, entry: SessionPartition, *, has_records: bool) -> None:
        if entry.is_sent:
            return
        if entry not in self._due:
            self._due[entry] = None
            self._note_caught_up(entry)
        # A partition that this broker no longer leads gets an error at once.
        is_lost = entry.partition is None or entry.partition.leadership is None
        is_awaited = entry.ahead_until is not None
        if has_records or is_lost or is_awaited or entry.has_new_start:
            self._is_urgent = True
            self._wake_soon()

    def find_new_partitions(self) -> None:
        """Find partitions that the follower knew before this broker: the metadata changed."""
        for entry in list(self._unknown):
            entry.attach(self._context.replicas.find_by_id(*entry.key))
            if entry.partition is not None:
                del self._unknown[entry]
                self.touch(entry, has_records=False)

    def _wake_soon(self) -> None:
        """Visit the due partitions in the next turn of the loop, if a request waits."""
        if self._reply is not None and not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake_reply)

    def _note_caught_up(self, entry: SessionPartition) -> None:
        """Record that the follower had every record until now, or until its last response."""
        leadership = entry.partition.leadership if entry.partition is not None else None
        follower = leadership.followers.get(self.broker_id) if leadership is not None else None
        if follower is not None and follower.broker_epoch == self.broker_epoch:
            is_listening = self._reply is not None
            heard_at = self._context.clock.monotonic() if is_listening else self._responded_at
            follower.caught_up_at = max(follower.caught_up_at, heard_at)

    def _wake_reply(self) -> None:
        self._is_wake_scheduled = False
        if self._reply is not None:
            self._reply.run(self._wake)

    def _wake(self) -> None:
        response = self.collect(self._limits)
        if response is not None:
            self._respond_waiting(response)
        else:
            self._set_pace_timer()

    # Responses

    def wait(self, limits: RequestLimits, reply: Reply[FetchResponse]) -> None:
        """Respond when there is enough to send, or with less when the wait expires.

        `collect` has just found too little. But it may have advanced a high watermark, and a
        callback of that may have appended records. Those wake the request at once.
        """
        self._limits = limits
        self._reply = reply
        reply.on_end = self.stop_waiting
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.wait_ms_max / 1000, self.respond_now)
        self._set_pace_timer()
        if self._is_urgent:
            self._wake_soon()

    def _set_pace_timer(self) -> None:
        """Wake the waiting request when the pace allows more, if records are held back."""
        if self._pace_timer is None and any(entry.is_held for entry in self._due):
            pause_s = max(self.pace.wait_s(self._context.clock.monotonic()), _PAUSE_S_MIN)
            self._pace_timer = asyncio.get_running_loop().call_later(pause_s, self._pace_elapsed)

    def _pace_elapsed(self) -> None:
        self._pace_timer = None
        self._wake_reply()

    def respond_now(self) -> None:
        """Respond to the waiting request, if there is one, with the records that are ready."""
        if self._reply is not None:
            self._reply.run(self._respond_final)

    def _respond_final(self) -> None:
        response = self.collect(self._limits, is_final=True)
        assert response is not None
        self._respond_waiting(response)

    def stop_waiting(self) -> None:
        """Clear the waiting request: it has ended, or the follower has closed its connection."""
        self._reply = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pace_timer is not None:
            self._pace_timer.cancel()
            self._pace_timer = None

    def _respond_waiting(self, response: FetchResponse) -> None:
        self._responded_at = self._context.clock.monotonic()
        # The request may have ended while `collect` ran.
        if self._reply is not None:
            self._reply.deliver(response)

    def collect(self, limits: RequestLimits, *, is_final: bool = False) -> FetchResponse | None:
        """Return the next response, or None if there is too little to send and it may wait."""
        now = self._context.clock.monotonic()
        # Recording a position can advance a high watermark, and callbacks of that can append.
        # Partitions that this touches go into the new `_due`, and are visited again.
        due, self._due = self._due, {}
        self._is_urgent = False
        try:
            return self._collect_from(due, limits, now, is_final=is_final)
        except Exception:
            # Nothing was sent: every partition stays due.
            self._due = {**due, **self._due}
            raise

    def _collect_from(
        self,
        due: dict[SessionPartition, None],
        limits: RequestLimits,
        now: float,
        *,
        is_final: bool,
    ) -> FetchResponse | None:
        found: list[tuple[SessionPartition, _Row, LogSlice]] = []
        remaining, gathered, is_urgent = limits.bytes_max, 0, False
        room = self.pace.available_bytes(now)
        for entry in due:
            if self._awaits_metadata(entry, limits, now):
                continue
            row = _Row(partition_index=entry.key[1], records=b"")
            catches_up = self._catches_up(entry)
            entry.is_held = catches_up and room == 0 and entry.is_behind()
            size_max = min(remaining, room) if catches_up else remaining
            records = self._fill_row(entry, row, size_max, gathered == 0, now)
            gathered += len(records)
            remaining = max(remaining - len(records), 0)
            if catches_up and records:
                # The pace sends small pieces; waiting for `bytes_min` would not give more.
                room, is_urgent = max(room - len(records), 0), True
            is_urgent = is_urgent or row.error_code != 0 or row.diverging_epoch is not None
            is_urgent = is_urgent or entry.has_new_start
            found.append((entry, row, records))
        if not is_final and not is_urgent and gathered < limits.bytes_min:
            self._due = {**due, **self._due}
            return None
        response = self._respond(found)
        awaiting = {entry: None for entry in due if entry.ahead_until is not None}
        self._due = {**awaiting, **self._due}
        return response

    def _awaits_metadata(self, entry: SessionPartition, limits: RequestLimits, now: float) -> bool:
        """Whether to wait for metadata that the follower has and this broker does not have yet.

        Followers of a new topic often know it first. After an error they would pause, and the first
        acknowledgements would wait for them.
        """
        if not entry.is_ahead:
            entry.ahead_until = None
        elif entry.ahead_until is None:
            entry.ahead_until = now + limits.wait_ms_max / 1000
        is_awaiting = entry.ahead_until is not None and now < entry.ahead_until
        if not is_awaiting:
            entry.ahead_until = None
            self._unknown.pop(entry, None)
        elif entry.partition is None:
            self._unknown[entry] = None
        return is_awaiting

    def _fill_row(
        self, entry: SessionPartition, row: _Row, remaining: int, at_least_one: bool, now: float
    ) -> LogSlice:
        partition, position = entry.partition, entry.position
        try:
            if partition is None:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID)
            fetch_position.check_follower(partition, self.broker_id, position)
            row.log_start_offset = partition.log.log_start_offset
            if position.is_new:
                diverging = follower_divergence(partition.log, position)
                if diverging is not None:
                    row.diverging_epoch = _Row.EpochEndOffset(
                        epoch=diverging.epoch, end_offset=diverging.end_offset
                    )
                    return EMPTY_SLICE
                self._note_fetch(partition, position, now)
                # The response includes what this has changed.
                self._due.pop(entry, None)
            row.high_watermark = row.last_stable_offset = partition.high_watermark
            if entry.is_held or self._is_throttled(partition, now):
                return EMPTY_SLICE
            return fetch_position.read(partition, position, remaining, at_least_one)
        except BrokerError as error:
            self._describe_failure(row, error, partition)
            return EMPTY_SLICE
        except OSError as error:
            # An index or epoch file cannot be read.
            assert partition is not None
            self._describe_failure(row, partition.log.read_failed(error), partition)
            return EMPTY_SLICE

    def _catches_up(self, entry: SessionPartition) -> bool:
        return entry.partition is not None and self.broker_id not in entry.partition.state.isr

    def _note_fetch(self, partition: Partition, position: FetchPosition, now: float) -> None:
        position.is_new = False
        fetch = FollowerFetch(
            self.broker_id, self.broker_epoch, position.offset, position.log_start_offset, now
        )
        self._context.isr.fetched(partition, fetch)

    def _throttles(self, partition: Partition) -> list[Throttle]:
        return self._context.limit.of(
            partition.state,
            partition.log.config.leader_replication_throttled_replicas,
            partition.topic_partition.partition,
            self.broker_id,
            partition.state.leader,
        )

    def _is_throttled(self, partition: Partition, now: float) -> bool:
        return any(throttle.is_exceeded(now) for throttle in self._throttles(partition))

    def _describe_failure(self, row: _Row, error: BrokerError, partition: Partition | None) -> None:
        row.error_code = error.code
        row.high_watermark = -1
        if partition is not None and error.code in _ANOTHER_LEADER:
            row.current_leader = _Row.Leader(
                leader_id=partition.state.leader, leader_epoch=partition.leader_epoch
            )

    def _respond(self, found: list[tuple[SessionPartition, _Row, LogSlice]]) -> FetchResponse:
        response = FetchResponse(session_id=self.session_id)
        topic: FetchResponse.Topic | None = None
        behind: dict[SessionPartition, None] = {}
        for entry, row, records in found:
            has_news = self._record_sent(entry, row, records)
            if entry.is_sent:
                self._due.pop(entry, None)
            elif entry.is_behind():
                behind[entry] = None
            if not has_news:
                continue
            if topic is None or topic.topic_id != entry.key[0]:
                topic = FetchResponse.Topic(topic_id=entry.key[0])
                response.responses.append(topic)
            topic.partitions.append(row)
        self._due = {**behind, **self._due}
        return response

    def _record_sent(self, entry: SessionPartition, row: _Row, records: LogSlice) -> bool:
        """Read the records of a row and update the entry; return whether the row has news."""
        if records:
            try:
                row.records = records.read()
            except BrokerError as error:
                self._describe_failure(row, error, entry.partition)
            self._count(entry, len(records))
        has_news = (
            bool(records)
            or row.error_code != 0
            or row.diverging_epoch is not None
            or row.high_watermark != entry.sent_high_watermark
            or row.log_start_offset != entry.sent_log_start_offset
        )
        entry.is_sent = bool(records) or row.error_code != 0 or row.diverging_epoch is not None
        entry.sent_high_watermark = row.high_watermark
        entry.sent_log_start_offset = row.log_start_offset
        if entry.partition is None:
            # Unknown partitions are not kept; the follower lists them again.
            del self._entries[entry.key]
        return has_news

    def _count(self, entry: SessionPartition, size: int) -> None:
        self._context.stats.bytes_out += size
        now = self._context.clock.monotonic()
        if self._catches_up(entry):
            self.pace.sent(size, now)
        if entry.partition is not None:
            for throttle in self._throttles(entry.partition):
                throttle.add(size, now)
