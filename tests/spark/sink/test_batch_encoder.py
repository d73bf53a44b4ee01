"""Rows of several topics become batches by partition, with consecutive sequence numbers."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest

from millstream.records.batch import read_header
from millstream.records.compression import CompressionType
from millstream.records.record import decode_records
from millstream.spark.error import OptionError
from millstream.spark.sink.batch_encoder import BatchEncoder, PartitionBatch
from millstream.spark.sink.input_column import InputRows
from millstream.spark.sink.transaction_request import ProducerIdentity

PRODUCER = ProducerIdentity("id", 7, 3)


def encoder() -> BatchEncoder:
    return BatchEncoder(
        PRODUCER, CompressionType.NONE, 10_000, lambda topic: {"a": 1, "b": 2}[topic]
    )


def rows(*given: tuple[str, bytes | None, int | None]) -> InputRows:
    topics, values, partitions = zip(*given, strict=True)
    return InputRows(
        pa.array(topics, pa.string()),
        None,
        pa.array(values, pa.binary()),
        None,
        pa.array(partitions, pa.int32()),
        None,
    )


def contents(
    batches: Iterable[PartitionBatch],
) -> dict[tuple[str, int], tuple[int, list[bytes | None]]]:
    """Return the first sequence number and the values of each partition."""
    found = {}
    for place, batch in batches:
        header = read_header(batch)
        assert (header.producer_id, header.producer_epoch) == PRODUCER[1:]
        assert header.is_transactional
        records = decode_records(batch, 1 << 20)
        found[tuple(place)] = header.base_sequence, [each.value for each in records]
    return found


def test_topics_and_partitions_are_distinguished() -> None:
    made = encoder()
    given = rows(("b", b"1", 1), ("a", b"2", 0), ("b", None, 0), ("b", b"3", 1))
    assert list(made.encode(given, None)) == []
    assert contents(made.flush()) == {
        ("b", 1): (0, [b"1", b"3"]),
        ("a", 0): (0, [b"2"]),
        ("b", 0): (0, [None]),
    }
    assert list(made.encode(rows(("b", b"4", 1)), None)) == []
    assert contents(made.flush()) == {("b", 1): (2, [b"4"])}


def test_the_topic_option_takes_precedence_over_the_column() -> None:
    made = encoder()
    assert list(made.encode(rows(("b", b"1", 0), ("a", b"2", 0)), "b")) == []
    assert contents(made.flush()) == {("b", 0): (0, [b"1", b"2"])}


def test_an_unknown_partition_is_rejected() -> None:
    with pytest.raises(OptionError, match="topic a cannot be written: partition 1 is not one of 1"):
        list(encoder().encode(rows(("a", b"1", 1)), None))
