from __future__ import annotations

import struct
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition
from millstream.records.batch import check_produced, read_header, stamp_crc
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record
from millstream.records.validation import (
    MESSAGES_MAX,
    NAMED_MAX,
    RecordRules,
    RecordsRejected,
    validate_records,
)

_PLACE = TopicPartition("orders", 3)
_KEYED = RecordRules(is_key_required=True)
_SIZE_MAX = 1 << 20
_both = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def _record(index: int, timestamp: int = 50, key: bytes | None = b"key") -> Record:
    return Record(index, timestamp, key, b"value", [("trace", b"1"), ("", None)])


def _rejected(batch: bytearray, rules: RecordRules, size_max: int = _SIZE_MAX) -> RecordsRejected:
    with pytest.raises(RecordsRejected) as caught:
        validate_records(batch, check_produced(batch), size_max, rules, _PLACE)
    return caught.value


@pytest.mark.parametrize("codec", CompressionType)
def test_records_without_a_key_are_listed(kernel: ModuleType, codec: CompressionType) -> None:
    keys = (b"k", None, b"", None)
    batch = build_batch([_record(i, 50, key) for i, key in enumerate(keys)], codec=codec)
    assert validate_records(batch, check_produced(batch), 1000, RecordRules(), _PLACE) == 50
    error = _rejected(batch, _KEYED, 1000)
    assert error.code is ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in error.record_errors] == [1, 3]
    assert all(each.message and "orders-3" in each.message for each in error.record_errors)
    assert error.message is not None
    assert error.message.startswith("2 of 4 records were rejected: record 1: the record has no key")


@pytest.mark.parametrize("codec", CompressionType)
def test_records_with_invalid_timestamps_are_listed(
    kernel: ModuleType, codec: CompressionType
) -> None:
    times = (50, 9, 10, 100, 101, -1)
    batch = build_batch([_record(i, time) for i, time in enumerate(times)], codec=codec)
    error = _rejected(batch, RecordRules(earliest_ms=10, latest_ms=100), 1000)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    first, second = error.record_errors
    assert (first.batch_index, second.batch_index) == (1, 4)
    assert first.message is not None
    assert first.message.startswith("timestamp 9 is earlier than 10")
    assert second.message is not None
    assert second.message.startswith("timestamp 101 is later than 100")


def test_one_bad_timestamp_decides_the_code_of_all(kernel: ModuleType) -> None:
    """A record without key and with an invalid timestamp is listed once, for its key."""
    batch = build_batch([_record(0, 50, None), _record(1, 9), _record(2), _record(3, 9, None)])
    error = _rejected(batch, RecordRules(is_key_required=True, earliest_ms=10))
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    words = [(each.batch_index, (each.message or "").split()[0]) for each in error.record_errors]
    assert words == [(0, "the"), (1, "timestamp"), (3, "the")]


def test_the_list_of_invalid_records_is_bounded(kernel: ModuleType) -> None:
    count = NAMED_MAX + 5
    records = [Record(i, 50, None, b"", []) for i in range(count - 1)]
    # The only invalid timestamp is beyond the list, and still decides the code.
    records.append(Record(count - 1, 9, b"k", b"", []))
    batch = build_batch(records, codec=CompressionType.ZSTD)
    error = _rejected(batch, RecordRules(is_key_required=True, earliest_ms=10))
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [each.batch_index for each in error.record_errors] == list(range(NAMED_MAX))
    messages = [each.message for each in error.record_errors]
    assert all(messages[:MESSAGES_MAX])
    assert not any(messages[MESSAGES_MAX:])
    assert error.message is not None
    assert error.message.startswith(f"{count} of {count} records")
    assert error.message.endswith(f"; and {count - 3} more")
    assert len(error.message) < 500


@_both
@given(
    records=st.lists(
        st.tuples(st.integers(-1, 20), st.sampled_from([None, b"", b"k"])), min_size=1, max_size=8
    ),
    earliest=st.integers(-2, 22),
    latest=st.integers(-2, 22),
    is_key_required=st.booleans(),
    codec=st.sampled_from(CompressionType),
)
def test_exactly_the_invalid_records_are_listed(
    kernel: ModuleType,
    records: list[tuple[int, bytes | None]],
    earliest: int,
    latest: int,
    is_key_required: bool,
    codec: CompressionType,
) -> None:
    batch = build_batch([_record(i, *fields) for i, fields in enumerate(records)], codec=codec)
    rules = RecordRules(is_key_required, earliest, latest)
    untimely = [time != -1 and not earliest <= time <= latest for time, _ in records]
    without_key = [key is None and is_key_required for _, key in records]
    bad = [i for i in range(len(records)) if untimely[i] or without_key[i]]
    if not bad:
        found = validate_records(batch, check_produced(batch), _SIZE_MAX, rules, _PLACE)
        assert found == max(time for time, _ in records)
        return
    error = _rejected(batch, rules)
    assert [each.batch_index for each in error.record_errors] == bad
    is_untimely = any(untimely[i] and not without_key[i] for i in bad)
    assert (error.code is ErrorCode.INVALID_TIMESTAMP) == is_untimely


def test_records_that_do_not_decode_are_of_the_whole_batch(kernel: ModuleType) -> None:
    records = [_record(i) for i in range(3)]
    gap = build_batch([_record(0), _record(2)])
    fewer = build_batch(records)
    struct.pack_into(">i", fewer, 57, 2)
    more = build_batch(records)
    struct.pack_into(">i", more, 57, 4)
    broken = build_batch(records)
    broken[61] = 0x7E
    compressed = build_batch(records, codec=CompressionType.ZSTD)
    compressed[70] ^= 0xFF
    overflow = build_batch([_record(0, 0), _record(1, 10)])
    struct.pack_into(">q", overflow, 27, (1 << 63) - 1)
    for batch in (gap, fewer, more, broken, compressed, overflow):
        stamp_crc(batch, 0, len(batch))
        with pytest.raises(BrokerError) as caught:
            validate_records(batch, read_header(batch), 1000, _KEYED, _PLACE)
        assert caught.value.code is ErrorCode.INVALID_RECORD
        assert not isinstance(caught.value, RecordsRejected)


@pytest.mark.parametrize("codec", CompressionType)
def test_decompression_is_bounded(kernel: ModuleType, codec: CompressionType) -> None:
    batch = build_batch([Record(0, 0, None, bytes(100_000), [])], codec=codec)
    with pytest.raises(BrokerError, match="INVALID_RECORD") as caught:
        validate_records(batch, check_produced(batch), 50_000, _KEYED, _PLACE)
    assert not isinstance(caught.value, RecordsRejected)
