"""Encoding rows as record batches for the partitions of one topic, ready to be produced.

Owns what `arrow_encode` leaves open: compression, header, CRC and sequence numbers. The batches of
a partition must be sent in the order in which they are returned. No I/O: the caller knows the
number of partitions, the time and the producer.

    encoder = RowEncoder(Producer(...), partition_count, codec, batch_bytes)
    for columns in ...:
        for batch in encoder.append(columns, given_partitions, now_ms): ...
    for batch in encoder.flush(): ...
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.model.sentinel import NO_PRODUCER_ID, NO_SEQUENCE, SEQUENCE_MODULUS
from millstream.records.arrow.arrow_encode import (
    BatchWriter,
    Column,
    OpenBatch,
    RecordColumns,
    choose_partitions,
)
from millstream.records.batch import HEADER_BYTES, MAGIC, TRANSACTIONAL_FLAG, BatchHeader
from millstream.records.builder import seal_batch
from millstream.records.compression import CompressionType, compress

#: Default size of a batch: below a broker's default `message.max.bytes`, with overhead.
BATCH_BYTES: Final = 1_000_000
#: Rows without a key that go to one partition before the next one.
TURN_ROWS: Final = 4096


class BatchProducer(NamedTuple):
    """The producer in the batch headers. Without an id, batches have no sequence numbers."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = -1
    is_transactional: bool = False


class EncodedBatch(NamedTuple):
    """A record batch for a partition, with its number of records."""

    partition: int
    data: bytearray
    record_count: int


class RowEncoder:
    """Encodes the rows of one producer for one topic."""

    def __init__(
        self,
        producer: BatchProducer,
        partition_count: int,
        codec: CompressionType = CompressionType.NONE,
        batch_bytes: int = BATCH_BYTES,
        turn: int = 0,
    ) -> None:
        self._producer = producer
        self._partition_count = partition_count
        self._codec = codec
        self._writer = BatchWriter(partition_count, batch_bytes)
        #: The partition for rows without a key, modulo the partition count. Grows with each call.
        self._turn = turn
        #: Partition -> next sequence number.
        self._sequences: dict[int, int] = {}

    def append(
        self, columns: RecordColumns, given: Column | None, now_ms: int
    ) -> list[EncodedBatch]:
        """Append rows. Returns the batches that became full.

        `given` holds partitions (int32). Where it is None or null, the key decides as in Java's
        client, and rows without a key go round robin. Rows without a timestamp get `now_ms`. Raises
        ValueError for a partition that does not exist and for a header without a key.
        """
        self._turn += 1
        chosen = choose_partitions(columns, given, self._partition_count, self._turn, TURN_ROWS)
        self._writer.append(columns, chosen, now_ms)
        return self._pop_finished()

    def flush(self) -> list[EncodedBatch]:
        """Finish and return all open batches."""
        self._writer.flush()
        return self._pop_finished()

    def _pop_finished(self) -> list[EncodedBatch]:
        finished = self._writer.finished
        sealed = [EncodedBatch(each.partition, self._seal(each), each.count) for each in finished]
        finished.clear()
        return sealed

    def _seal(self, batch: OpenBatch) -> bytearray:
        data = batch.data
        del data[batch.size :]
        if self._codec != CompressionType.NONE:
            body = compress(self._codec, memoryview(data)[HEADER_BYTES:])
            data = bytearray(HEADER_BYTES)
            data += body
        seal_batch(data, self._header(batch))
        return data

    def _header(self, batch: OpenBatch) -> BatchHeader:
        producer = self._producer
        return BatchHeader(
            base_offset=0,
            batch_length=0,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=self._codec | (TRANSACTIONAL_FLAG if producer.is_transactional else 0),
            last_offset_delta=batch.count - 1,
            base_timestamp=batch.base_timestamp,
            max_timestamp=batch.max_timestamp,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=self._next_sequence(batch),
            count=batch.count,
        )

    def _next_sequence(self, batch: OpenBatch) -> int:
        if self._producer.producer_id == NO_PRODUCER_ID:
            return NO_SEQUENCE
        sequence = self._sequences.get(batch.partition, 0)
        self._sequences[batch.partition] = (sequence + batch.count) % SEQUENCE_MODULUS
        return sequence
