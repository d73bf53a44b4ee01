"""Batches exchanged with the readers and builders of two other clients, in both directions."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.model.topic import TopicPartition
from millstream.records.batch import check_produced
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record, decode_records
from millstream.records.validation import RecordRules, validate_records

with warnings.catch_warnings():
    # kafka-python uses calls that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    import kafka.record.default_records as kafka_python_records

_SIZE_MAX = 1 << 20
_MISSING = {
    name for name in ("SNAPPY", "LZ4", "ZSTD") if not getattr(kafka.codec, f"has_{name.lower()}")()
}

_text = st.text(st.characters(codec="utf-8"), max_size=8)
_headers = st.lists(st.tuples(_text, st.one_of(st.none(), st.binary(max_size=8))), max_size=3)
_bodies = st.lists(
    st.tuples(
        st.integers(0, 1 << 41),
        st.one_of(st.none(), st.binary(max_size=20)),
        st.one_of(st.none(), st.binary(max_size=300), st.just(b"x" * 70_000)),
        _headers,
    ),
    min_size=1,
    max_size=6,
)
_checks = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20
)


@pytest.fixture(params=[aiokafka_records, kafka_python_records], ids=["aiokafka", "kafka-python"])
def oracle(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def _skip_missing(oracle: ModuleType, codec: CompressionType) -> None:
    if oracle is kafka_python_records and codec.name in _MISSING:
        pytest.skip(f"kafka-python has no {codec.name.lower()} here")


@pytest.mark.parametrize("codec", CompressionType)
@_checks
@given(bodies=_bodies)
def test_other_clients_read_built_batches(
    kernel: ModuleType, oracle: ModuleType, codec: CompressionType, bodies: list[tuple[Any, ...]]
) -> None:
    _skip_missing(oracle, codec)
    records = [Record(100 + index, *body) for index, body in enumerate(bodies)]
    batch = build_batch(
        records, base_offset=100, codec=codec, producer_id=7, producer_epoch=2, base_sequence=9
    )
    theirs = oracle.DefaultRecordBatch(bytes(batch))
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.next_offset) == (100, 100 + len(records))
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (7, 2, 9)
    assert theirs.compression_type == codec
    assert theirs.max_timestamp == max(record.timestamp for record in records)
    read = [
        Record(record.offset, record.timestamp, record.key, record.value, list(record.headers))
        for record in theirs
    ]
    assert read == records


@pytest.mark.parametrize("codec", CompressionType)
@_checks
@given(bodies=_bodies)
def test_batches_of_other_clients_are_read(
    kernel: ModuleType, oracle: ModuleType, codec: CompressionType, bodies: list[tuple[Any, ...]]
) -> None:
    _skip_missing(oracle, codec)
    builder = oracle.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=1,
        producer_id=7,
        producer_epoch=2,
        base_sequence=9,
        batch_size=1 << 30,
    )
    records = [Record(index, *body) for index, body in enumerate(bodies)]
    for record in records:
        builder.append(record.offset, record.timestamp, record.key, record.value, record.headers)
    batch = bytes(builder.build())
    header = check_produced(batch)
    assert header.count == len(records)
    assert header.last_offset_delta == len(records) - 1
    assert header.is_transactional
    assert header.max_timestamp == max(record.timestamp for record in records)
    rules, place = RecordRules(), TopicPartition("t", 0)
    latest = validate_records(batch, header, _SIZE_MAX, rules, place)
    assert latest == max(header.max_timestamp, -1)
    assert decode_records(batch, _SIZE_MAX) == records
