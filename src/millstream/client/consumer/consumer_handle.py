"""Calls of librdkafka's consumer, with its errors in our words. Holds no state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer as Handle
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from millstream.client.error import CommitFailed, error_of, from_kafka, settings_error, translated
from millstream.client.producer.producer_handle import LOGGER
from millstream.client.record import NotedOffset, Partition, row_of

#: A wait is cut in slices, so that whoever closes the consumer need not wait for all of it.
SLICE_S: Final = 0.2
RESPONSE_S_MAX: Final = 30.0
#: How long one look for committed offsets may take, and all of them for an assignment: longer, and
#: the group takes the member for dead.
_SETTLING_S: Final = 5.0
_SETTLED_S_MAX: Final = 240.0
#: Told by librdkafka as records; it goes on by itself.
_PASSING: Final = frozenset(
    {
        KafkaError._PARTITION_EOF,  # noqa: SLF001
        KafkaError._MAX_POLL_EXCEEDED,  # noqa: SLF001
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


def open_handle(properties: dict[str, Any]) -> Handle:
    try:
        return Handle(properties, logger=LOGGER)
    except KafkaException as error:
        raise settings_error(error, "consumer") from error


def sorted_out(messages: Sequence[Message]) -> tuple[list[Message], KafkaError | None]:
    """The records among these, and the first error that does not pass by itself."""
    good = [message for message in messages if message.error() is None]
    for message in messages:
        error = message.error()
        if error is None:
            continue
        if error.code() not in _PASSING:
            return good, error
        LOGGER.warning("%s", error)
    return good, None


def seek(handle: Handle, partition: Partition, offset: int) -> bool:
    """Read on there; False if that is not possible yet: the partition was assigned, but librdkafka
    still asks for its first offset."""
    try:
        handle.seek(TopicPartition(*partition, offset))
    except KafkaException as error:
        if error_of(error).code() == KafkaError._STATE:  # noqa: SLF001
            return False
        raise from_kafka(error, f"Seeking in {partition.topic}") from error
    return True


def partitions_of(handle: Handle, topics: Sequence[str]) -> list[Partition]:
    found: list[Partition] = []
    for topic in topics:
        what = f"Asking for the partitions of {topic!r}"
        with translated(what):
            known = handle.list_topics(topic, timeout=RESPONSE_S_MAX).topics[topic]
        if known.error is not None:
            raise from_kafka(known.error, what)
        found += [Partition(topic, number) for number in known.partitions]
    return found


def offsets_at(
    handle: Handle, partitions: Iterable[Partition], time_ms: int
) -> dict[Partition, int]:
    """Those of the first records from that time on."""
    rows = [TopicPartition(*partition, time_ms) for partition in partitions]
    with translated("Asking for offsets by time"):
        return offsets_in(handle.offsets_for_times(rows, timeout=RESPONSE_S_MAX))


def committed(handle: Handle, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """What the group has committed, where it has; each offset with its metadata."""
    with translated("Asking for offsets"):
        rows = handle.committed(rows_of(partitions), timeout=RESPONSE_S_MAX)
    return {
        Partition(row.topic, row.partition): NotedOffset(row.offset, row.metadata or "")
        for row in rows
        if row.offset >= 0
    }


def placed(
    handle: Handle, rows: list[TopicPartition], is_over: Callable[[], bool]
) -> list[TopicPartition]:
    """Partitions that a group is about to assign, each with its committed offset.

    Waits for offsets that an open transaction may change yet, as when its producer was killed
    before it ended it. librdkafka waits for them as well; but if the group rebalances meanwhile,
    version 2.16 takes such an offset for none at all, and begins where `auto.offset.reset` says."""
    deadline = time.monotonic() + _SETTLED_S_MAX
    while rows and not is_over() and time.monotonic() < deadline:
        try:
            return list(handle.committed(rows, timeout=_SETTLING_S))
        except KafkaException as error:
            if error_of(error).code() != KafkaError._TIMED_OUT:  # noqa: SLF001
                # librdkafka asks again, and tells the application what is wrong.
                break
        LOGGER.warning(
            "waiting for the committed offsets of %d partitions: a transaction that has some of "
            "them is open, or the group's coordinator does not answer",
            len(rows),
        )
    return rows


def commit(handle: Handle, offsets: Mapping[Partition, int]) -> None:
    rows = [row_of(partition, offset) for partition, offset in offsets.items()]
    with translated("Committing offsets", CommitFailed):
        done = handle.commit(offsets=rows, asynchronous=False)
    for row in done:
        if row.error is not None:
            raise from_kafka(row.error, f"Committing {row.topic}-{row.partition}", CommitFailed)


def offsets_in(rows: Iterable[TopicPartition]) -> dict[Partition, int]:
    return {Partition(row.topic, row.partition): row.offset for row in rows}


def partitions_in(rows: Iterable[TopicPartition]) -> list[Partition]:
    return [Partition(row.topic, row.partition) for row in rows]


def rows_of(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]
