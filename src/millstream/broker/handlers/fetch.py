"""Fetch: versions 4 to 18.

Returns committed batches as ranges of files, without decoding them; larger ranges are not even
read. A response has at least one batch if there is any. Otherwise it is limited to `max_bytes` (and
the broker's `fetch.max.bytes`) in total and to `partition_max_bytes` for each partition. The
request waits up to `max_wait_ms` for `min_bytes`, without a task: the partitions wake it. Sessions
(KIP-227) from version 7, diverging epochs from version 12, topic ids from version 13.

With isolation level 1 (`read_committed`) the records end at the last stable offset, and the
response names the aborted transactions among them; the client skips their records. For readers of
uncommitted records, the last stable offset of a log that was not loaded since the start is reported
as the high watermark.

If `replica.selector.class` is set, a consumer that names its rack is sent to a replica there
(KIP-392), and followers serve consumers. `replica_fetch` serves fetches of followers, which need
ClusterAction instead of Read.

The response to a client above a quota is empty (KIP-219).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, cast

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.fetch_session import FetchPartition, FetchSession
from millstream.broker.handlers import replica_fetch
from millstream.log.reading.slice import LogSlice
from millstream.model.acl import CLUSTER_NAME, Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.model.sentinel import INT32_MAX, NO_EPOCH, NO_OFFSET
from millstream.records.batch import count_records
from millstream.replication.follower.truncation import EpochEnd
from millstream.replication.leader.divergence import epoch_divergence
from millstream.replication.leader.read_replica import nearest_replica
from millstream.replication.partition import Partition
from millstream.wire.messages.fetch import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchRequest,
    FetchResponse,
)

_TOPIC_IDS_SINCE = 13
_LEADER_HINT_SINCE = 12
_RACK_SINCE = 11
_ANOTHER_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_Row = FetchResponse.Topic.Partition

_READ_COMMITTED = 1
_NO_TOPICS: Final[frozenset[str]] = frozenset()

#: Ranges of at least this size are sent from their file: below, a copy costs less than two system
#: calls.
_SENT_FROM_FILE_BYTES_MIN = 64 * 1024


def handle(request: FetchRequest, context: Context) -> FetchResponse | Reply[FetchResponse]:
    if (
        context.services.authorizer is not None
        and is_from_follower(request)
        and not context.allows(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    ):
        return replica_fetch.deny(request)
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
    FetchRequest,
    FetchResponse,
    versions=(4, 18),
    handle=handle,
    sends_files=True,
    access=(
        Right(Operation.READ, ResourceType.TOPIC, "by consumers"),
        Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "by followers"),
    ),
)


def _resolve(
    request: FetchRequest, context: Context
) -> tuple[FetchSession | None, list[FetchPartition], bool]:
    """Return the session, the partitions to read, and whether the response is incremental."""
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


def is_from_follower(request: FetchRequest) -> bool:
    """Return whether a broker sends the request, in any version."""
    state = request.replica_state
    return request.replica_id >= 0 or (state is not None and state.replica_id >= 0)


def _denied_topics(
    request: FetchRequest, wanted: Iterable[FetchPartition], context: Context
) -> frozenset[str]:
    """Return the topics that the client may not read."""
    services = context.services
    if is_from_follower(request):
        return _NO_TOPICS
    names = {entry.topic or services.replicas.topic_name(entry.topic_id) for entry in wanted}
    return frozenset(
        name
        for name in names
        if name is not None and not context.allows(Operation.READ, ResourceType.TOPIC, name)
    )


def _wanted(request: FetchRequest) -> Iterable[FetchPartition]:
    for topic in request.topics:
        for data in topic.partitions:
            entry = FetchPartition(topic.topic, topic.topic_id, data.partition)
            entry.offset = data.fetch_offset
            entry.max_bytes = data.partition_max_bytes
            entry.current_leader_epoch = data.current_leader_epoch
            entry.last_fetched_epoch = data.last_fetched_epoch
            yield entry


class _Fetch:
    """A Fetch request in progress. It is the watcher that `Partition.watch` accepts."""

    __slots__ = (
        "_collected",
        "_context",
        "_denied",
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
        wanted: list[FetchPartition],
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
        quotas = context.services.quotas
        if quotas is not None:
            self._max_bytes = min(self._max_bytes, quotas.fetch_bytes_max(context) or INT32_MAX)
        self._reads_followers = context.version >= _RACK_SINCE and bool(
            config.replica_selector_class
        )
        #: The rack of the consumer; empty if the consumer may not read from followers.
        self._rack = request.rack_id if self._reads_followers else ""
        #: Topics that the client may not read.
        self._denied: frozenset[str] = _NO_TOPICS
        if context.services.authorizer is not None:
            self._denied = _denied_topics(request, wanted, context)
        self._collected: list[tuple[FetchPartition, _Row]] = []
        self._watched: list[Partition] = []
        #: Set while the request waits.
        self._reply: Reply[FetchResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def collect(self) -> bool:
        """Read every partition; return whether to respond now."""
        collected: list[tuple[FetchPartition, _Row]] = []
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

    def _read(self, entry: FetchPartition, remaining: int, *, at_least_one: bool) -> _Row:
        row = _Row(partition_index=entry.partition, records=b"")
        partition = self._partition(entry)
        try:
            if self._denied and self._topic(entry) in self._denied:
                raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
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
            # Raised by files other than segments: epochs, producers, transactions.
            assert partition is not None
            self._describe_failure(row, partition.log.read_failed(error), partition)
            return row
        if len(found):
            row.records = found
        if self._read_committed:
            row.aborted_transactions = []
        return row

    def _is_nearer_elsewhere(self, partition: Partition, entry: FetchPartition, row: _Row) -> bool:
        """Return whether the consumer should read from another replica; if so, the row names it."""
        brokers = self._context.services.catalog.image.brokers
        nearest = nearest_replica(partition, brokers, self._rack, entry.offset)
        if nearest == partition.broker_id:
            return False
        row.preferred_read_replica = nearest
        row.high_watermark = row.last_stable_offset = partition.high_watermark
        row.log_start_offset = partition.log.log_start_offset
        return True

    def _partition(self, entry: FetchPartition) -> Partition | None:
        topic = self._topic(entry)
        if topic is None:
            return None
        return self._context.services.replicas.get(topic, entry.partition)

    def _topic(self, entry: FetchPartition) -> str | None:
        return entry.topic or self._context.services.replicas.topic_name(entry.topic_id)

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
        """Return a reply that ends once `min_bytes` are available, or after `wait_ms`."""
        reply = self._reply = Reply(ReplyKind.FETCH, self._context.receiver, self._reject)
        reply.on_end = self._release
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

    def _release(self) -> None:
        """Release timer, watches and rows: a partition may call this watcher once more."""
        self._reply = None
        self._collected = []
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        watched, self._watched = self._watched, []
        for partition in watched:
            partition.unwatch(self)

    def _reject(self, code: ErrorCode) -> FetchResponse:
        """Return a response with the same error for every partition, which all versions support."""
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
        """Return the collected rows by topic; in an incremental session only rows that changed."""
        quotas = self._context.services.quotas
        if quotas is not None:
            size = sum(len(row.records) for _, row in self._collected if row.records is not None)
            throttle_ms = quotas.charge_fetch(self._context, size)
            if throttle_ms:
                return self._throttled(throttle_ms)
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
            elif self._is_incremental and not _has_changed(entry, row):
                continue
            entry.sent_high_watermark = row.high_watermark
            entry.sent_log_start_offset = row.log_start_offset
            if topic is None or topic.topic != entry.topic or topic.topic_id != entry.topic_id:
                topic = FetchResponse.Topic(topic=entry.topic, topic_id=entry.topic_id)
                response.responses.append(topic)
            topic.partitions.append(row)
        if session is not None and len(session.partitions) > 1:
            session.mark_served(served)
        return response

    def _throttled(self, throttle_ms: int) -> FetchResponse:
        """Return an empty response. As in Kafka, it has no session if the client did not name one:
        the client begins again."""
        response = FetchResponse(throttle_time_ms=throttle_ms)
        if self._session is not None:
            if self._is_incremental:
                response.session_id = self._session.session_id
            else:
                self._context.services.fetch_sessions.close(self._session.session_id)
        return response

    def _load(self, entry: FetchPartition, row: _Row) -> None:
        """Prepare a row for sending: load its records if they are few, add aborted transactions."""
        partition = self._partition(entry)
        found = cast("LogSlice", row.records)
        try:
            if len(found) >= _SENT_FROM_FILE_BYTES_MIN and found.end_offset != NO_OFFSET:
                # It stays a range of its file, which the session keeps open until it is sent.
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


def _has_changed(entry: FetchPartition, row: _Row) -> bool:
    return (
        row.error_code != 0
        or row.diverging_epoch is not None
        or row.preferred_read_replica >= 0
        or row.high_watermark != entry.sent_high_watermark
        or row.log_start_offset != entry.sent_log_start_offset
    )
