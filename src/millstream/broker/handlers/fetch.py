"""Fetch: versions 4 to 18.

Returns committed batches as ranges of files, never decoded, the larger ones not even read: at least
one batch if there is any, however small the limits; no more than `max_bytes` (and the broker's
`fetch.max.bytes`) in all and `partition_max_bytes` a partition otherwise. Waits up to `max_wait_ms`
for `min_bytes`, without a task: the partitions wake it. Sessions (KIP-227) from version 7, topics
by id from 13, diverging epochs from 12.

Isolation level 1 (`read_committed`) ends at the last stable offset and names the transactions
aborted in what is returned; the client leaves their records out. To readers of uncommitted records
the last stable offset of a log that nobody has used since the start is told as the high watermark.

Where the broker allows it, a consumer that tells its rack is sent to a replica there (KIP-392), and
followers serve consumers. A follower's own fetch is another matter: see `replica_fetch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, cast

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry
from millstream.broker.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    Wanted,
)
from millstream.broker.handlers import replica_fetch
from millstream.log.reading.slice import LogSlice
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.model.sentinel import NO_EPOCH, NO_OFFSET
from millstream.records.batch import count_records
from millstream.replication.follower.truncation import EpochEnd
from millstream.replication.leader.fetch_position import epoch_divergence
from millstream.replication.leader.read_replica import nearest_replica
from millstream.replication.partition import Partition
from millstream.wire.messages.fetch import FetchRequest, FetchResponse

_TOPIC_IDS_SINCE = 13
_LEADER_HINT_SINCE = 12
_RACK_SINCE = 11
_ANOTHER_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_Row = FetchResponse.Topic.Partition

_READ_COMMITTED = 1

#: From here on a range is sent from its file: below, one copy is cheaper than two system calls.
_SENT_FROM_FILE_BYTES_MIN = 64 * 1024


def handle(request: FetchRequest, context: Context) -> FetchResponse | Reply[FetchResponse]:
    if request.replica_state is not None and request.replica_state.replica_id >= 0:
        return replica_fetch.handle(request, context)
    try:
        session, wanted, is_incremental = _resolve(request, context)
    except BrokerError as error:
        context.services.metrics.api("Fetch").errors[error.code] += 1
        return FetchResponse(error_code=error.code)
    fetch = _Fetch(request, context, session, wanted, is_incremental=is_incremental)
    if fetch.collect() or request.max_wait_ms <= 0 or not wanted:
        return fetch.response()
    return fetch.wait(request.max_wait_ms)


API: Final = ApiEntry(
    FetchRequest, FetchResponse, versions=(4, 18), handle=handle, sends_files=True
)


def _resolve(
    request: FetchRequest, context: Context
) -> tuple[FetchSession | None, list[Wanted], bool]:
    """The session, the partitions to read, and whether the answer holds only what changed."""
    sessions = context.services.fetch_sessions
    uses_topic_ids = context.version >= _TOPIC_IDS_SINCE
    if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if request.session_id != NO_SESSION:
            sessions.close(request.session_id)
        wanted = list(_wanted(request))
        if request.session_epoch == FINAL_EPOCH:
            return None, wanted, False
        return sessions.open(wanted, uses_topic_ids=uses_topic_ids), wanted, False
    session = sessions.resume(
        request.session_id, request.session_epoch, uses_topic_ids=uses_topic_ids
    )
    forgotten = (
        (topic.topic, topic.topic_id, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    )
    session.update(_wanted(request), forgotten)
    return session, list(session.partitions.values()), True


def _wanted(request: FetchRequest) -> Iterable[Wanted]:
    for topic in request.topics:
        for data in topic.partitions:
            entry = Wanted(topic.topic, topic.topic_id, data.partition)
            entry.offset = data.fetch_offset
            entry.max_bytes = data.partition_max_bytes
            entry.current_leader_epoch = data.current_leader_epoch
            entry.last_fetched_epoch = data.last_fetched_epoch
            yield entry


class _Fetch:
    """One Fetch while it is being served. `Partition.watch` takes it as a watcher."""

    __slots__ = (
        "_collected",
        "_context",
        "_is_incremental",
        "_max_bytes",
        "_min_bytes",
        "_rack",
        "_read_committed",
        "_reads_followers",
        "_reply",
        "_session",
        "_timer",
        "_wanted",
        "_watched",
    )

    def __init__(
        self,
        request: FetchRequest,
        context: Context,
        session: FetchSession | None,
        wanted: list[Wanted],
        *,
        is_incremental: bool,
    ) -> None:
        self._context = context
        self._session = session
        self._wanted = wanted
        self._is_incremental = is_incremental
        self._read_committed = request.isolation_level == _READ_COMMITTED
        self._min_bytes = request.min_bytes
        config = context.services.config.fetch
        self._max_bytes = min(request.max_bytes, config.fetch_max_bytes)
        self._reads_followers = context.version >= _RACK_SINCE and bool(
            config.replica_selector_class
        )
        #: Where the consumer stands, if that matters.
        self._rack = request.rack_id if self._reads_followers else ""
        self._collected: list[tuple[Wanted, _Row]] = []
        self._watched: list[Partition] = []
        #: While the request waits.
        self._reply: Reply[FetchResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def collect(self) -> bool:
        """Read every partition; returns whether the answer should leave now."""
        collected: list[tuple[Wanted, _Row]] = []
        remaining = self._max_bytes
        gathered = 0
        is_due = False
        for entry in self._wanted:
            row = self._read(entry, remaining, at_least_one=gathered == 0)
            size = len(row.records) if row.records is not None else 0
            gathered += size
            remaining = max(remaining - size, 0)
            is_due = is_due or row.error_code != 0 or row.diverging_epoch is not None
            is_due = is_due or row.preferred_read_replica >= 0
            collected.append((entry, row))
        self._collected = collected
        return is_due or gathered >= self._min_bytes

    def _read(self, entry: Wanted, remaining: int, *, at_least_one: bool) -> _Row:
        row = _Row(partition_index=entry.partition, records=b"")
        partition = self._partition(entry)
        try:
            if partition is None:
                raise BrokerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    if entry.topic
                    else ErrorCode.UNKNOWN_TOPIC_ID
                )
            partition.check_readable(
                entry.current_leader_epoch, from_follower=self._reads_followers
            )
            if self._rack and self._is_nearer_elsewhere(partition, entry, row):
                return row
            row.high_watermark = row.last_stable_offset = partition.high_watermark
            if self._read_committed or partition.log.is_loaded:
                row.last_stable_offset = partition.last_stable_offset
            row.log_start_offset = partition.log.log_start_offset
            epoch = entry.last_fetched_epoch
            if epoch >= 0:
                common_end = epoch_divergence(partition.log, epoch, entry.offset)
                if common_end is not None:
                    _describe_divergence(row, common_end)
                    return row
            found = partition.read(
                entry.offset,
                min(entry.max_bytes, remaining),
                at_least_one=at_least_one,
                read_committed=self._read_committed,
            )
        except BrokerError as error:
            self._describe_failure(row, error, partition)
            return row
        except OSError as error:
            # Of the files beside the batches: epochs, producers, transactions.
            assert partition is not None
            self._describe_failure(row, partition.log.read_failed(error), partition)
            return row
        if len(found):
            row.records = found
        if self._read_committed:
            row.aborted_transactions = []
        return row

    def _is_nearer_elsewhere(self, partition: Partition, entry: Wanted, row: _Row) -> bool:
        """Whether the consumer should read from another replica; then the row says which."""
        brokers = self._context.services.catalog.image.brokers
        nearest = nearest_replica(partition, brokers, self._rack, entry.offset)
        if nearest == partition.broker_id:
            return False
        row.preferred_read_replica = nearest
        row.high_watermark = row.last_stable_offset = partition.high_watermark
        row.log_start_offset = partition.log.log_start_offset
        return True

    def _partition(self, entry: Wanted) -> Partition | None:
        replicas = self._context.services.replicas
        topic = entry.topic or replicas.topic_name(entry.topic_id)
        return replicas.get(topic, entry.partition) if topic is not None else None

    def _describe_failure(self, row: _Row, error: BrokerError, partition: Partition | None) -> None:
        row.error_code = error.code
        row.high_watermark = row.last_stable_offset = -1
        self._context.services.metrics.api("Fetch").errors[error.code] += 1
        if partition is None:
            return
        partition.counters.failed_fetches += 1
        if self._context.version >= _LEADER_HINT_SINCE and error.code in _ANOTHER_LEADER:
            row.current_leader = _Row.Leader(
                leader_id=partition.state.leader, leader_epoch=partition.leader_epoch
            )

    def wait(self, wait_ms: int) -> Reply[FetchResponse]:
        """Respond when enough is there, or with what is there after `wait_ms`."""
        reply = self._reply = Reply(ReplyKind.FETCH, self._context.receiver, self._refuse)
        reply.on_end = self._let_go
        for entry in self._wanted:
            partition = self._partition(entry)
            if partition is not None:
                partition.watch(self)
                self._watched.append(partition)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(wait_ms / 1000, reply.run, self._expire)
        return reply

    def more_readable(self) -> None:
        if self._reply is not None and self.collect():
            self._reply.deliver(self.response())

    def failed(self, error: Exception) -> None:
        if self._reply is not None:
            self._reply.crash(error)

    def _expire(self) -> None:
        if self._reply is not None:
            self.collect()
            self._reply.deliver(self.response())

    def _let_go(self) -> None:
        """Drop what was collected as well: a partition may call this watcher once more."""
        self._reply = None
        self._collected = []
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        watched, self._watched = self._watched, []
        for partition in watched:
            partition.unwatch(self)

    def _refuse(self, code: ErrorCode) -> FetchResponse:
        """The response with the same error for every partition, which all versions have."""
        session_id = NO_SESSION if self._session is None else self._session.session_id
        response = FetchResponse(session_id=session_id)
        for entry in self._wanted:
            topic = FetchResponse.Topic(topic=entry.topic, topic_id=entry.topic_id)
            row = _Row(partition_index=entry.partition, error_code=code, records=b"")
            row.high_watermark = row.last_stable_offset = -1
            topic.partitions.append(row)
            response.responses.append(topic)
        return response

    def response(self) -> FetchResponse:
        """The collected rows by topic; in an incremental session only those with news."""
        response = FetchResponse()
        session = self._session
        if session is not None:
            response.session_id = session.session_id
        topic: FetchResponse.Topic | None = None
        served: list[tuple[str, bytes, int]] = []
        for entry, row in self._collected:
            if row.records:
                self._load(entry, row)
                served.append(entry.key)
            elif self._is_incremental and not _has_news(entry, row):
                continue
            entry.told_high_watermark = row.high_watermark
            entry.told_log_start_offset = row.log_start_offset
            if topic is None or topic.topic != entry.topic or topic.topic_id != entry.topic_id:
                topic = FetchResponse.Topic(topic=entry.topic, topic_id=entry.topic_id)
                response.responses.append(topic)
            topic.partitions.append(row)
        if session is not None and len(session.partitions) > 1:
            session.served(served)
        return response

    def _load(self, entry: Wanted, row: _Row) -> None:
        """Make the row's range ready to leave, say what was aborted in it, and count it."""
        partition = self._partition(entry)
        found = cast("LogSlice", row.records)
        try:
            if len(found) >= _SENT_FROM_FILE_BYTES_MIN and found.end_offset != NO_OFFSET:
                # Stays a range of its file, which the session holds open until it was sent.
                found.open()
                count, end_offset = found.end_offset - entry.offset, found.end_offset
            else:
                row.records = data = found.read()
                count, end_offset = count_records(data)
            if self._read_committed and partition is not None:
                row.aborted_transactions = _aborted(partition, entry.offset, end_offset)
        except BrokerError as error:
            row.records = b""
            self._describe_failure(row, error, partition)
            return
        if partition is not None:
            partition.counters.bytes_out += len(found)
            partition.counters.messages_out += count


def _aborted(
    partition: Partition, from_offset: int, end_offset: int
) -> list[_Row.AbortedTransaction]:
    return [
        _Row.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
        for each in partition.log.aborted_transactions(from_offset, end_offset)
    ]


def _describe_divergence(row: _Row, common_end: EpochEnd) -> None:
    if common_end.epoch == NO_EPOCH:
        raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
    row.diverging_epoch = _Row.EpochEndOffset(
        epoch=common_end.epoch, end_offset=common_end.end_offset
    )


def _has_news(entry: Wanted, row: _Row) -> bool:
    return (
        row.error_code != 0
        or row.diverging_epoch is not None
        or row.preferred_read_replica >= 0
        or row.high_watermark != entry.told_high_watermark
        or row.log_start_offset != entry.told_log_start_offset
    )
