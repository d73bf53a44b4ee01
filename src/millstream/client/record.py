"""Records that an application reads, and the positions of records that it sent."""

from __future__ import annotations

from typing import NamedTuple, Self

from confluent_kafka import Message, TopicPartition

from millstream.client.consumer.record_kernel import (
    Decode,
    Header,
    Record,
    Records,
    record_type,
    timestamp_of,
)

__all__ = [
    "Decode",
    "Header",
    "OffsetAndMetadata",
    "Partition",
    "Record",
    "RecordMetadata",
    "Records",
    "metadata_of",
    "record_type",
    "row_of",
    "timestamp_of",
]


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class OffsetAndMetadata(int):
    """A committed offset with `metadata`, the text that Kafka stores beside it."""

    metadata: str

    def __new__(cls, offset: int, metadata: str = "") -> Self:
        instance = super().__new__(cls, offset)
        instance.metadata = metadata
        return instance


class RecordMetadata(NamedTuple):
    """The position of a sent record. `offset` is -1 with acks=0; `timestamp` is in ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None


def metadata_of(message: Message) -> RecordMetadata:
    """Return the position of a delivered message."""
    offset = message.offset()
    return RecordMetadata(
        message.topic() or "",
        message.partition() or 0,
        -1 if offset is None or offset < 0 else offset,
        timestamp_of(message),
    )


def row_of(partition: Partition, offset: int) -> TopicPartition:
    """Return the offset as librdkafka's row, with its metadata if it has any."""
    metadata = getattr(offset, "metadata", "")
    if not metadata:
        return TopicPartition(*partition, int(offset))
    return TopicPartition(*partition, int(offset), metadata)
