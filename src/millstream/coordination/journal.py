"""The journal of a shard: appends its records, and delivers replies once they are committed.

The records of all events in one iteration of the event loop are appended together at its end, in as
few batches as possible. The records of one event share a batch if they fit into one. The records of
a transaction share a batch with no others.

A reply is delivered once every record appended before it is committed, even if its own event has no
records. So no client learns of a state that a failure could revert.

If an append fails, the state in memory is ahead of the log. The journal then fails all pending
replies and calls `on_failure`; the shards reload the state from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from millstream.coordination.effects import Effects, LogRecord, ProducerIdAndEpoch
from millstream.env.clock import Clock
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackKind
from millstream.model.reply import Reply, code_of
from millstream.model.sentinel import NO_EPOCH, NO_PRODUCER_ID
from millstream.records.batch import HEADER_BYTES, read_header
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record
from millstream.replication.partition import Partition

_logger = logging.getLogger(__name__)

_Replies = list[tuple[Reply[Any], Any]]
#: The records of one event, and the producer whose transaction they are part of.
_Event = tuple[ProducerIdAndEpoch | None, list[LogRecord]]

#: An upper bound for the lengths, deltas and header count around key and value.
_RECORD_OVERHEAD_BYTES: Final = 32
#: The size limit of a batch, even if the topic allows larger messages.
_BATCH_BYTES_MAX: Final = 512 * 1024
_NO_PRODUCER: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_EPOCH)

#: The error codes that clients get if an append to the coordinator's partition fails.
_CLIENT_CODES: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


class TransactionEnd(NamedTuple):
    """The end of a producer's transaction, as its marker in a partition records it."""

    producer: ProducerIdAndEpoch
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int = 0


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """The settings of a journal."""

    #: How long replies wait for in-sync replicas that do not fetch.
    commit_timeout_ms: int = 5000
    codec: CompressionType = CompressionType.NONE


class Journal:
    """The journal of one shard. Event loop only."""

    __slots__ = (
        "_clock",
        "_end_offset",
        "_is_closed",
        "_on_failure",
        "_options",
        "_partition",
        "_records",
        "_replies",
        "_waits",
    )

    def __init__(
        self,
        partition: Partition,
        clock: Clock,
        options: JournalOptions,
        on_failure: Callable[[], None],
    ) -> None:
        self._partition = partition
        self._clock = clock
        self._options = options
        self._on_failure = on_failure
        #: The pending events of this loop iteration, and the replies to deliver after them.
        self._records: list[_Event] = []
        self._replies: _Replies = []
        #: The end of the last record that results may depend on. At the start it covers records of
        #: an earlier leader, which may not be committed yet.
        self._end_offset = partition.log.log_end_offset
        self._waits: dict[_Wait, None] = {}
        self._is_closed = False

    @property
    def is_committed(self) -> bool:
        """Whether all records are appended and committed."""
        return not self._records and self._partition.high_watermark >= self._end_offset

    def carry_out(self, effects: Effects) -> None:
        """Append the records and deliver the replies. The shard sets the timers."""
        if effects.records:
            if not self._records:
                asyncio.get_running_loop().call_soon(self.flush)
            self._records.append((effects.producer, effects.records))
            self._replies += effects.replies
        elif self._records:
            self._replies += effects.replies
        elif effects.replies:
            self._send(effects.replies)

    def close(self, code: ErrorCode) -> None:
        """Append nothing more, and fail all pending replies with `code`."""
        self._is_closed = True
        replies, self._replies, self._records = self._replies, [], []
        for reply, _ in replies:
            reply.fail(code)
        for wait in list(self._waits):
            wait.fail(code)

    def append_marker(self, end: TransactionEnd) -> None:
        """End a producer's transaction in this partition, after all records pending so far.

        Raises BrokerError if the marker cannot be appended; the state is not ahead of the log
        then."""
        self.flush()
        if self._is_closed:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        appended = self._partition.append_marker(
            end.producer.producer_id,
            end.producer.epoch,
            commit=end.is_commit,
            coordinator_epoch=end.coordinator_epoch,
            transaction_version=end.transaction_version,
        )
        self._end_offset = max(self._end_offset, appended.last_offset + 1)

    def flush(self) -> None:
        """Append the pending records now instead of at the end of this loop iteration."""
        if self._is_closed or not self._records:
            return
        records, self._records = self._records, []
        replies, self._replies = self._replies, []
        try:
            for producer, batch in self._batches(records):
                self._append(producer, batch)
        except Exception as error:  # noqa: BLE001  # logged, and all replies fail
            self._append_failed(error, replies)
            return
        self._send(replies)

    def _append_failed(self, error: Exception, replies: _Replies) -> None:
        partition = self._partition
        _logger.error(
            "appending records to %s failed, so its state is reloaded from the log: %s",
            partition.topic_partition,
            error,
        )
        if not isinstance(error, BrokerError):
            partition.failures.note(CallbackKind.JOURNAL, error, partition.topic_partition)
        code = code_of(error)
        code = _CLIENT_CODES.get(code, code)
        for reply, _ in replies:
            reply.fail(code)
        self._on_failure()

    def _batches(
        self, events: list[_Event]
    ) -> Iterator[tuple[ProducerIdAndEpoch | None, list[LogRecord]]]:
        """Group all records into batches by producer and size."""
        most = self._partition.log.config.max_message_bytes
        most = min(most, _BATCH_BYTES_MAX) - HEADER_BYTES
        for producer, group in groupby(events, key=itemgetter(0)):
            for batch in _split((records for _, records in group), most):
                yield producer, batch

    def _append(self, producer: ProducerIdAndEpoch | None, records: list[LogRecord]) -> None:
        now_ms = self._clock.wall_ms()
        producer_id, epoch = producer or _NO_PRODUCER
        batch = build_batch(
            [Record(place, now_ms, key, value, []) for place, (key, value) in enumerate(records)],
            codec=self._options.codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            is_transactional=producer is not None,
        )
        partition = self._partition
        appended = partition.append(memoryview(batch), read_header(batch), acks_all=True)
        self._end_offset = appended.last_offset + 1
        counters = partition.counters
        counters.bytes_in += len(batch)
        counters.messages_in += len(records)

    def _send(self, replies: _Replies) -> None:
        if self._partition.high_watermark >= self._end_offset:
            for reply, result in replies:
                reply.deliver(result)
        elif replies:
            wait = _Wait(self._partition, self._end_offset, replies, self._waits)
            wait.begin(self._options.commit_timeout_ms)


class _Wait:
    """Replies that wait until the high watermark reaches an offset."""

    __slots__ = ("_end_offset", "_others", "_partition", "_replies", "_timer")

    def __init__(
        self, partition: Partition, end_offset: int, replies: _Replies, others: dict[_Wait, None]
    ) -> None:
        self._partition = partition
        self._end_offset = end_offset
        self._replies = replies
        self._others = others
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, timeout_ms: int) -> None:
        self._others[self] = None
        self._timer = asyncio.get_running_loop().call_later(
            timeout_ms / 1000, self.fail, ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        self._partition.when_acknowledged(self._end_offset, self._check, None, acks_all=True)

    def _check(self) -> None:
        if self._partition.high_watermark < self._end_offset:
            self.fail(ErrorCode.NOT_COORDINATOR)
            return
        for reply, result in self._finish():
            reply.deliver(result)

    def fail(self, code: ErrorCode) -> None:
        for reply, _ in self._finish():
            reply.fail(code)

    def _finish(self) -> _Replies:
        self._others.pop(self, None)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        replies, self._replies = self._replies, []
        return replies


def _split(events: Iterable[list[LogRecord]], most: int) -> Iterator[list[LogRecord]]:
    """Split the records into lists of at most `most` bytes; a larger record gets its own list."""
    batch: list[LogRecord] = []
    size = 0
    for event in events:
        event_size = sum(map(_size, event))
        if batch and size + event_size > most:
            yield batch
            batch, size = [], 0
        if event_size <= most:
            batch += event
            size += event_size
            continue
        for one in event:
            if batch and size + _size(one) > most:
                yield batch
                batch, size = [], 0
            batch.append(one)
            size += _size(one)
    if batch:
        yield batch


def _size(record: LogRecord) -> int:
    key, value = record
    return len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES
