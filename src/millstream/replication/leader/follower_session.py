"""A follower's fetch session on its leader: what it reads, where it is, what it is yet to be told.

A follower's fetcher has one session, which it opens with a full Fetch; then it names only
partitions whose position changed (KIP-227). It differs from a consumer's in what is looked at:
partitions report here when something happens to them, and only those are visited. With thousands
of idle partitions a fetch costs what the busy ones cost.

States of a partition in a session:

    due      to be looked at by the next answer: named by the follower, appended to, or its high
             watermark, log start or leadership changed. Stays due while the follower knows newer
             metadata of it than this broker, for as long as one request may wait
    quiet    the follower has been told everything there is to tell
    sent     records or an error were sent; nothing more is until the follower names it again

Records and a new log start wake a waiting fetch; a high watermark alone goes along with the next
answer. A request that comes while another one waits makes that one answer at once: that is how a
follower adds partitions without waiting for the end of a long poll. `CatchUpPace` limits what a
follower gets of partitions in which it is not in sync.

Nothing here is persistent. Event loop only.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, TypeAlias

from millstream.env.clock import Clock
from millstream.log.reading.slice import EMPTY_SLICE, LogSlice
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.model.sentinel import INT32_MAX
from millstream.model.topic import TopicId
from millstream.replication.leader import fetch_position
from millstream.replication.leader.catch_up_pace import CatchUpPace
from millstream.replication.leader.divergence import follower_divergence
from millstream.replication.leader.fetch_position import FetchPosition
from millstream.replication.leader.follower_state import FollowerFetch
from millstream.replication.leader.isr_change import IsrChanges
from millstream.replication.partition import Partition
from millstream.replication.replicas import Replicas
from millstream.replication.stats import ReplicationStats
from millstream.replication.throttle import ReplicaLimit, Throttle
from millstream.wire.messages.fetch import FetchRequest, FetchResponse

_Key: TypeAlias = tuple[TopicId, int]
_Row = FetchResponse.Topic.Partition
#: Event loops count in milliseconds.
_REST_S_MIN: Final = 0.001
_ANOTHER_LEADER: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class LeaderContext(NamedTuple):
    """The parts of the leading broker that sessions work with."""

    replicas: Replicas
    isr: IsrChanges
    clock: Clock
    stats: ReplicationStats
    limit: ReplicaLimit
    #: Bytes a second for a follower that catches up while producers write.
    catch_up_rate: int


class RequestLimits(NamedTuple):
    """Of one fetch."""

    wait_ms_max: int
    bytes_min: int
    bytes_max: int


class _Entry:
    """One partition in a session; a `Reader` of it while it is found here."""

    __slots__ = (
        "_session",
        "ahead_until",
        "is_held",
        "is_sent",
        "key",
        "partition",
        "position",
        "sent_high_watermark",
        "sent_log_start_offset",
    )

    def __init__(self, session: FollowerSession, key: _Key, position: FetchPosition) -> None:
        self._session = session
        self.key = key
        self.position = position
        self.partition: Partition | None = None
        self.is_sent = False
        #: Whether there are records for a follower that has to rest.
        self.is_held = False
        #: Monotonic time, while the follower knows metadata that have not reached this broker: it
        #: gets no error before.
        self.ahead_until: float | None = None
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1

    def attach(self, partition: Partition | None) -> None:
        """Listen to the partition that now has this name, and to no other."""
        if partition is self.partition:
            return
        self.detach()
        if partition is not None:
            partition.readers = (*partition.readers, self)
            self.partition = partition

    def detach(self) -> None:
        partition, self.partition = self.partition, None
        if partition is not None:
            partition.readers = tuple(each for each in partition.readers if each is not self)

    def reset_sent(self) -> None:
        """It was named: answers under way may be of no use to the follower any more."""
        self.is_sent = False
        self.sent_high_watermark = self.sent_log_start_offset = -1

    @property
    def is_ahead(self) -> bool:
        """Whether the follower knows metadata of the partition that this broker does not."""
        partition = self.partition
        return partition is None or self.position.current_leader_epoch > partition.leader_epoch

    @property
    def has_new_start(self) -> bool:
        """Whether the log starts later than the follower knows: somebody may wait for all replicas
        to follow."""
        known = max(self.sent_log_start_offset, self.position.log_start_offset)
        return self.partition is not None and known < self.partition.log.log_start_offset

    def is_behind(self) -> bool:
        """Whether the follower lacks records of the log."""
        partition = self.partition
        return partition is not None and self.position.offset < partition.log.log_end_offset

    def more_appended(self, size: int) -> None:
        self._session.pace.produced(size)
        self._session.touch(self, has_records=not self.is_held)

    def changed(self) -> None:
        self._session.touch(self, has_records=False)


class FollowerSession:
    """See the module's text."""

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
        #: The epoch that the next request must carry.
        self.epoch = 1
        self._entries: dict[_Key, _Entry] = {}
        #: Entries to look at, the longest waiting first.
        self._due: dict[_Entry, None] = {}
        #: Due entries whose partition this broker does not know yet.
        self._unknown: dict[_Entry, None] = {}
        #: Of the request that waits; None while none does.
        self._reply: Reply[FetchResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: While a request waits and the follower has to rest.
        self._pace_timer: asyncio.TimerHandle | None = None
        self._limits = RequestLimits(0, 0, 0)
        #: Whether something that must not wait became due since the last `collect` began.
        self._is_urgent = False
        self._is_wake_scheduled = False
        #: When the follower was last known to listen.
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

    # What the follower says

    def apply_request(self, request: FetchRequest) -> None:
        """Note which partitions the follower wants, and where it is in those it names."""
        find = self._context.replicas.find_by_id
        for topic in request.topics:
            for wanted in topic.partitions:
                key = (topic.topic_id, wanted.partition)
                entry = self._entries.get(key)
                if entry is None:
                    entry = self._entries[key] = _Entry(self, key, FetchPosition(wanted))
                else:
                    entry.position.update(wanted)
                entry.attach(find(*key))
                entry.reset_sent()
                # Behind those that wait already: under a small limit each gets its turn.
                self._due.pop(entry, None)
                self._due[entry] = None
        for forgotten in request.forgotten_topics_data:
            for partition in forgotten.partitions:
                entry = self._entries.pop((forgotten.topic_id, partition), None)
                if entry is not None:
                    entry.detach()
                    self._due.pop(entry, None)
                    self._unknown.pop(entry, None)

    # What happens to partitions

    def touch(self, entry: _Entry, *, has_records: bool) -> None:
        if entry.is_sent:
            return
        if entry not in self._due:
            self._due[entry] = None
            self._note_caught_up(entry)
        # An error is due at once as well; it shows as a partition that is no longer led.
        is_lost = entry.partition is None or entry.partition.leadership is None
        is_awaited = entry.ahead_until is not None
        if has_records or is_lost or is_awaited or entry.has_new_start:
            self._is_urgent = True
            self._wake_soon()

    def find_new_partitions(self) -> None:
        """The metadata changed: look for the partitions that the follower knew of first."""
        for entry in list(self._unknown):
            entry.attach(self._context.replicas.find_by_id(*entry.key))
            if entry.partition is not None:
                del self._unknown[entry]
                self.touch(entry, has_records=False)

    def _wake_soon(self) -> None:
        """Look at the due partitions in the next turn of the loop, if a request waits."""
        if self._reply is not None and not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake_reply)

    def _note_caught_up(self, entry: _Entry) -> None:
        """Up to this moment the follower had everything, if it listened."""
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

    # Answering

    def wait(self, limits: RequestLimits, reply: Reply[FetchResponse]) -> None:
        """Respond when there is enough to send, or with what there is after the wait.

        `collect` has just found too little. It may have moved a high watermark, and somebody who
        waited for that may have appended records since: those wake the request at once.
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
        """Have the request that waits looked at when more may be sent, if something is held."""
        if self._pace_timer is None and any(entry.is_held for entry in self._due):
            rest_s = max(self.pace.wait_s(self._context.clock.monotonic()), _REST_S_MIN)
            self._pace_timer = asyncio.get_running_loop().call_later(rest_s, self._pace_elapsed)

    def _pace_elapsed(self) -> None:
        self._pace_timer = None
        self._wake_reply()

    def respond_now(self) -> None:
        """Respond to the request that waits, if one does, with what there is."""
        if self._reply is not None:
            self._reply.run(self._respond_final)

    def _respond_final(self) -> None:
        response = self.collect(self._limits, is_final=True)
        assert response is not None
        self._respond_waiting(response)

    def stop_waiting(self) -> None:
        """The request that waited has ended, or the follower has hung up."""
        self._reply = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pace_timer is not None:
            self._pace_timer.cancel()
            self._pace_timer = None

    def _respond_waiting(self, response: FetchResponse) -> None:
        self._responded_at = self._context.clock.monotonic()
        # While `collect` ran the request may have ended.
        if self._reply is not None:
            self._reply.deliver(response)

    def collect(self, limits: RequestLimits, *, is_final: bool = False) -> FetchResponse | None:
        """What there is to tell; None if that is not enough and may wait."""
        now = self._context.clock.monotonic()
        # Taking note of a position can move a high watermark, and callbacks on that can append.
        # Entries that this touches go into the new `_due`, and are looked at again.
        due, self._due = self._due, {}
        self._is_urgent = False
        try:
            return self._collect_from(due, limits, now, is_final=is_final)
        except Exception:
            # Nothing was told: all is to be looked at again.
            self._due = {**due, **self._due}
            raise

    def _collect_from(
        self, due: dict[_Entry, None], limits: RequestLimits, now: float, *, is_final: bool
    ) -> FetchResponse | None:
        found: list[tuple[_Entry, _Row, LogSlice]] = []
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
                # Pieces are small: a follower that waits for more would wait in vain.
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

    def _awaits_metadata(self, entry: _Entry, limits: RequestLimits, now: float) -> bool:
        """Whether to wait for metadata that the follower has and this broker has not.

        A new topic's followers often hear of it first. Told that it is unknown they would rest,
        and the first records would wait for them.
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
        self, entry: _Entry, row: _Row, remaining: int, at_least_one: bool, now: float
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
                # What this changed here is told below.
                self._due.pop(entry, None)
            row.high_watermark = row.last_stable_offset = partition.high_watermark
            if entry.is_held or self._is_throttled(partition, now):
                return EMPTY_SLICE
            return fetch_position.read(partition, position, remaining, at_least_one)
        except BrokerError as error:
            self._describe_failure(row, error, partition)
            return EMPTY_SLICE
        except OSError as error:
            # Of the files beside the batches.
            assert partition is not None
            self._describe_failure(row, partition.log.read_failed(error), partition)
            return EMPTY_SLICE

    def _catches_up(self, entry: _Entry) -> bool:
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

    def _respond(self, found: list[tuple[_Entry, _Row, LogSlice]]) -> FetchResponse:
        response = FetchResponse(session_id=self.session_id)
        topic: FetchResponse.Topic | None = None
        behind: dict[_Entry, None] = {}
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

    def _record_sent(self, entry: _Entry, row: _Row, records: LogSlice) -> bool:
        """Read what is to be sent and take the entry's new state; whether there is news."""
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
            # What is not here takes no room; the follower names it again.
            del self._entries[entry.key]
        return has_news

    def _count(self, entry: _Entry, size: int) -> None:
        self._context.stats.bytes_out += size
        now = self._context.clock.monotonic()
        if self._catches_up(entry):
            self.pace.sent(size, now)
        if entry.partition is not None:
            for throttle in self._throttles(entry.partition):
                throttle.add(size, now)
