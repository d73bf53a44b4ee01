"""Rows into record batches, one after the other for each partition.

Owns which partition a row goes to (its own, or by Java's murmur2 of its key; rows without a key
stay together and move on with each call) and the sequence numbers that let brokers tell repeated
batches. Pure: the caller says how many partitions topics have.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from millstream.records.builder import build_batch
from millstream.records.codec import Codec
from millstream.records.crc import Buffer
from millstream.records.record import Record
from millstream.spark.connection.cluster import TopicPartition
from millstream.spark.error import OptionError
from millstream.spark.sink.column import Rows
from millstream.spark.sink.transaction import Identity

_SEQUENCE_MODULUS: Final = 1 << 31
#: About what a record needs besides its key and value.
_RECORD_OVERHEAD: Final = 24


class Encoded(NamedTuple):
    """A record batch for a partition."""

    place: TopicPartition
    batch: Buffer


class Encoder:
    """Of one producer. Batches must be sent in the order in which they are made."""

    def __init__(
        self,
        producer: Identity,
        codec: Codec,
        batch_bytes: int,
        partition_count: Callable[[str], int],
    ) -> None:
        self._producer = producer
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._partition_count = partition_count
        #: Next sequence number by partition.
        self._sequences: dict[TopicPartition, int] = {}
        self._turn = random.randrange(1 << 16)

    def encode(self, rows: Rows, topic: str | None) -> Iterator[Encoded]:
        """Batches of `batch_bytes` at most where rows allow it. `topic` goes before the column."""
        self._turn += 1
        now_ms = time.time_ns() // 1_000_000
        for place, records in self._by_place(rows, topic, now_ms).items():
            for part in self._parts(records):
                yield Encoded(place, self._batch(place, part))

    def _by_place(
        self, rows: Rows, topic: str | None, now_ms: int
    ) -> dict[TopicPartition, list[Record]]:
        found: dict[TopicPartition, list[Record]] = {}
        columns = [_values(column, len(rows)) for column in rows]
        for name, key, value, headers, partition, timestamp in zip(*columns, strict=True):
            place = self._place(topic or name, key, partition)
            records = found.setdefault(place, [])
            pairs = [(each["key"], each["value"]) for each in headers or ()]
            moment = now_ms if timestamp is None else timestamp
            records.append(Record(len(records), moment, key, value, pairs))
        return found

    def _place(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        count = self._partition_count(topic)
        if partition is not None:
            if not 0 <= partition < count:
                raise OptionError(
                    f"a row is for partition {partition} of topic {topic}, which has {count}."
                )
        elif key is None:
            partition = self._turn % count
        else:
            from millstream.client.partitioner import by_key

            partition = by_key(key, count)
        return TopicPartition(topic, partition)

    def _parts(self, records: Sequence[Record]) -> Iterator[list[Record]]:
        part: list[Record] = []
        size = 0
        for record in records:
            added = len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD
            if part and size + added > self._batch_bytes:
                yield part
                part, size = [], 0
            part.append(record._replace(offset=len(part)))
            size += added
        if part:
            yield part

    def _batch(self, place: TopicPartition, records: list[Record]) -> Buffer:
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = (sequence + len(records)) % _SEQUENCE_MODULUS
        return build_batch(
            records,
            codec=self._codec,
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.epoch,
            base_sequence=sequence,
            is_transactional=bool(self._producer.transactional_id),
        )


def _values(column: Any, count: int) -> list[Any]:
    return [None] * count if column is None else column.to_pylist()
