"""Encodes rows into record batches by topic and partition.

This module splits rows by topic. `records/arrow/row_encoder.py` chooses the partition of each row
and assigns the sequence numbers by which brokers detect duplicate batches. Pure: the caller passes
the number of partitions of each topic.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow.compute as pc

from millstream.model.topic import TopicPartition
from millstream.records.arrow.row_encoder import BatchProducer, EncodedBatch, RowEncoder
from millstream.records.compression import CompressionType
from millstream.records.crc import Buffer
from millstream.spark.arrow import number_column, record_columns
from millstream.spark.error import OptionError
from millstream.spark.sink.input_column import InputRows
from millstream.spark.sink.transaction_request import ProducerIdentity

_INT32_BYTES: Final = 4
_START_PARTITIONS: Final = 1 << 16


class PartitionBatch(NamedTuple):
    """An encoded record batch and its partition."""

    partition: TopicPartition
    batch: Buffer


class BatchEncoder:
    """Encodes the rows of one producer. Batches must be sent in the order of encoding."""

    def __init__(
        self,
        producer: ProducerIdentity,
        codec: CompressionType,
        batch_bytes: int,
        partition_count: Callable[[str], int],
    ) -> None:
        is_transactional = bool(producer.transactional_id)
        self._producer = BatchProducer(producer.producer_id, producer.epoch, is_transactional)
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._partition_count = partition_count
        self._encoders: dict[str, RowEncoder] = {}

    def encode(self, rows: InputRows, topic: str | None) -> Iterator[PartitionBatch]:
        """Add rows and yield the batches that are full. `topic` overrides the topic column."""
        now_ms = time.time_ns() // 1_000_000
        for name, share in [(topic, rows)] if topic is not None else _by_topic(rows):
            given = None
            if share.partition is not None:
                given = number_column(share.partition, _INT32_BYTES)
            columns = record_columns(share.key, share.value, share.headers, share.timestamp)
            try:
                made = self._encoder(name).append(columns, given, now_ms)
            except ValueError as error:
                raise OptionError(f"a row for topic {name} cannot be written: {error}") from error
            yield from _with_partition(name, made)

    def flush(self) -> Iterator[PartitionBatch]:
        """Yield the batches that are not full yet."""
        for name, encoder in self._encoders.items():
            yield from _with_partition(name, encoder.flush())

    def _encoder(self, topic: str) -> RowEncoder:
        found = self._encoders.get(topic)
        if found is None:
            found = self._encoders[topic] = RowEncoder(
                self._producer,
                self._partition_count(topic),
                self._codec,
                self._batch_bytes,
                # Concurrent tasks start with different partitions.
                random.randrange(_START_PARTITIONS),
            )
        return found


def _by_topic(rows: InputRows) -> Iterator[tuple[str, InputRows]]:
    for name in rows.topic.unique():
        chosen = pc.equal(rows.topic, name)
        yield (
            name.as_py(),
            InputRows(*(None if column is None else column.filter(chosen) for column in rows)),
        )


def _with_partition(topic: str, batches: Iterable[EncodedBatch]) -> Iterator[PartitionBatch]:
    for partition, data, _ in batches:
        yield PartitionBatch(TopicPartition(topic, partition), data)
