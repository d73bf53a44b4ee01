"""Calls of librdkafka's consumer, with its errors as the client's. Holds no state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer as RdKafkaConsumer
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from millstream.client.error import CommitFailed, error_of, from_kafka, settings_error, translated
from millstream.client.record import OffsetAndMetadata, Partition, row_of

_logger = logging.getLogger(__name__)

#: Waits are split into slices, so that closing the consumer does not wait for all of them.
SLICE_S: Final = 0.2
RESPONSE_S_MAX: Final = 30.0
#: The timeout of one request for committed offsets, and of all requests for an assignment. After a
#: longer wait the group takes the member for dead.
_COMMITTED_S: Final = 5.0
_COMMITTED_S_MAX: Final = 240.0
#: Errors that librdkafka reports as messages, and recovers from.
_RECOVERABLE: Final = frozenset(
    {
        KafkaError._PARTITION_EOF,  # noqa: SLF001
        KafkaError._MAX_POLL_EXCEEDED,  # noqa: SLF001
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


def open_handle(properties: dict[str, Any]) -> RdKafkaConsumer:
    """Return a librdkafka consumer with these properties."""
    try:
        return RdKafkaConsumer(properties, logger=_logger)
    except KafkaException as error:
        raise settings_error(error, "consumer") from error


def split_errors(messages: Sequence[Message]) -> tuple[list[Message], KafkaError | None]:
    """Return the records among the messages, and the first error that is not recoverable."""
    good = [message for message in messages if message.error() is None]
    for message in messages:
        error = message.error()
        if error is None:
            continue
        if error.code() not in _RECOVERABLE:
            return good, error
        _logger.warning("%s", error)
    return good, None


def seek(handle: RdKafkaConsumer, partition: Partition, offset: int) -> bool:
    """Move librdkafka to `offset`. False if that is not possible yet.

    That is so while librdkafka still fetches the first offset of an assigned partition.
    """
    try:
        handle.seek(TopicPartition(*partition, offset))
    except KafkaException as error:
        if error_of(error).code() == KafkaError._STATE:  # noqa: SLF001
            return False
        raise from_kafka(error, f"Seeking in {partition.topic}") from error
    return True


def partitions_of(handle: RdKafkaConsumer, topics: Sequence[str]) -> list[Partition]:
    """Return all partitions of these topics."""
    found: list[Partition] = []
    for topic in topics:
        what = f"Asking for the partitions of {topic!r}"
        with translated(what):
            known = handle.list_topics(topic, timeout=RESPONSE_S_MAX).topics[topic]
        if known.error is not None:
            raise from_kafka(known.error, what)
        found += [Partition(topic, number) for number in known.partitions]
    return found


def topics_in(handle: RdKafkaConsumer) -> list[str]:
    """Return the names of all topics."""
    with translated("Asking for topics"):
        return sorted(handle.list_topics(timeout=RESPONSE_S_MAX).topics)


def position(handle: RdKafkaConsumer, partition: Partition) -> int:
    """Return the offset after the last record that librdkafka handed out; negative if none was."""
    (row,) = handle.position(rows_of([partition]))
    return row.offset


def end_of(handle: RdKafkaConsumer, partition: Partition, *, is_start: bool) -> int:
    """Return the first offset of a partition, or the one after its last record."""
    with translated(f"Asking for the offsets of {partition.topic}"):
        first, last = handle.get_watermark_offsets(
            TopicPartition(*partition), timeout=RESPONSE_S_MAX
        )
    return first if is_start else last


def offsets_at(
    handle: RdKafkaConsumer, partitions: Iterable[Partition], time_ms: int
) -> dict[Partition, int]:
    """Return the offsets of the first records at or after `time_ms`."""
    rows = [TopicPartition(*partition, time_ms) for partition in partitions]
    with translated("Asking for offsets by time"):
        return offsets_in(handle.offsets_for_times(rows, timeout=RESPONSE_S_MAX))


def committed(handle: RdKafkaConsumer, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the group's committed offsets with their metadata, where there are any."""
    with translated("Asking for offsets"):
        rows = handle.committed(rows_of(partitions), timeout=RESPONSE_S_MAX)
    return {
        Partition(row.topic, row.partition): OffsetAndMetadata(row.offset, row.metadata or "")
        for row in rows
        if row.offset >= 0
    }


def with_committed_offsets(
    handle: RdKafkaConsumer, rows: list[TopicPartition], is_over: Callable[[], bool]
) -> list[TopicPartition]:
    """Return partitions that are about to be assigned, each with its committed offset.

    Waits for offsets that an open transaction may still change, for example of a producer that was
    killed. librdkafka waits for them as well. But if the group rebalances meanwhile, version 2.16
    treats such an offset as missing, and starts where `auto.offset.reset` says.
    """
    deadline = time.monotonic() + _COMMITTED_S_MAX
    while rows and not is_over() and time.monotonic() < deadline:
        try:
            return list(handle.committed(rows, timeout=_COMMITTED_S))
        except KafkaException as error:
            if error_of(error).code() != KafkaError._TIMED_OUT:  # noqa: SLF001
                # librdkafka retries, and reports the error to the application.
                break
        _logger.warning(
            "Waiting for the committed offsets of %d partitions: a transaction that has some of "
            "them is open, or the group's coordinator does not respond.",
            len(rows),
        )
    return rows


def commit(handle: RdKafkaConsumer, offsets: Mapping[Partition, int]) -> None:
    """Commit these offsets, and wait for the response."""
    rows = [row_of(partition, offset) for partition, offset in offsets.items()]
    with translated("Committing offsets", CommitFailed):
        done = handle.commit(offsets=rows, asynchronous=False)
    for row in done:
        if row.error is not None:
            raise from_kafka(row.error, f"Committing {row.topic}-{row.partition}", CommitFailed)


def offsets_in(rows: Iterable[TopicPartition]) -> dict[Partition, int]:
    """Return the offsets of these rows by partition."""
    return {Partition(row.topic, row.partition): row.offset for row in rows}


def partitions_in(rows: Iterable[TopicPartition]) -> list[Partition]:
    """Return the partitions of these rows."""
    return [Partition(row.topic, row.partition) for row in rows]


def rows_of(partitions: Iterable[Partition]) -> list[TopicPartition]:
    """Return librdkafka's rows for these partitions."""
    return [TopicPartition(*partition) for partition in partitions]
