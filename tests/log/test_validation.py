"""Which batches a leader looks into, what it rejects there, and what it leaves opaque."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from harness.in_process.log_home import NOW_MS, LogHome, append, make_batch
from millstream.log.log import PartitionLog
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.records.batch import check_crc, scan, stamp_crc
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record
from millstream.records.validation import RecordsRejected

NewHome = Callable[..., LogHome]
_COMPACT = frozenset({"compact"})
_HOUR_MS = 3_600_000


def _batch(
    *records: tuple[int, bytes | None], codec: CompressionType = CompressionType.NONE
) -> bytearray:
    """Build a batch of records, each given by its time relative to now and its key."""
    return build_batch(
        [
            Record(index, NOW_MS + distance_ms, key, b"value", [])
            for index, (distance_ms, key) in enumerate(records)
        ],
        codec=codec,
    )


def _with_max_timestamp(batch: bytearray, timestamp: int) -> bytearray:
    struct.pack_into(">q", batch, 35, timestamp)
    stamp_crc(batch, 0, len(batch))
    return batch


def _opaque(distance_ms: int = 0) -> bytearray:
    """Build a batch with a valid header whose records do not decode."""
    batch = _batch((distance_ms, b"k"))
    batch[61] = 0x7E
    stamp_crc(batch, 0, len(batch))
    return batch


def _rejected(log: PartitionLog, batch: bytearray) -> tuple[ErrorCode, list[int]]:
    """Return the error for a batch that the log rejects, and check that the log is unchanged."""
    end = log.log_end_offset
    with pytest.raises(RecordsRejected) as caught:
        append(log, batch)
    assert log.log_end_offset == end
    return caught.value.code, [error.batch_index for error in caught.value.record_errors]


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("policy", [_COMPACT, frozenset({"compact", "delete"})])
def test_a_compacted_topic_requires_keys(
    new_home: NewHome, policy: frozenset[str], codec: CompressionType
) -> None:
    log = new_home(TopicConfig(cleanup_policy=policy)).open()
    append(log)
    batch = _batch((0, b"k"), (0, None), (0, b""), (0, None), codec=codec)
    assert _rejected(log, batch) == (ErrorCode.INVALID_RECORD, [1, 3])
    append(log)


def test_only_keys_count_where_the_broker_gives_the_time(new_home: NewHome) -> None:
    config = TopicConfig(cleanup_policy=_COMPACT, message_timestamp_type="LogAppendTime")
    log = new_home(config).open()
    far = 9 * _HOUR_MS
    assert _rejected(log, _batch((far, b"k"), (far, None))) == (ErrorCode.INVALID_RECORD, [1])
    assert append(log, _batch((far, b"k"))).append_time_ms == NOW_MS


@pytest.mark.parametrize("codec", CompressionType)
def test_timestamps_too_far_from_now_are_listed(new_home: NewHome, codec: CompressionType) -> None:
    config = TopicConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    log = new_home(config).open()
    append(log, _batch((-1000, None), (500, None), codec=codec))
    expected = ErrorCode.INVALID_TIMESTAMP
    assert _rejected(log, _batch((0, None), (501, None), codec=codec)) == (expected, [1])
    # The header does not show this record: it is neither the first nor the latest.
    batch = _batch((0, None), (-1001, None), (0, None), codec=codec)
    assert _rejected(log, batch) == (expected, [1])
    append(log, make_batch(timestamp=-1))


def test_a_compacted_topic_has_both_rules(new_home: NewHome) -> None:
    log = new_home(TopicConfig(cleanup_policy=_COMPACT)).open()
    batch = _batch((0, None), (2 * _HOUR_MS, b"k"), (0, b"k"))
    assert _rejected(log, batch) == (ErrorCode.INVALID_TIMESTAMP, [0, 1])


def test_records_stay_opaque_if_no_topic_setting_concerns_them(new_home: NewHome) -> None:
    log = new_home(TopicConfig()).open()
    append(log, _opaque())
    append(log, _opaque(-90_000 * _HOUR_MS))
    with pytest.raises(BrokerError) as caught:
        append(log, _opaque(2 * _HOUR_MS))
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert not isinstance(caught.value, RecordsRejected)
    log = new_home(TopicConfig(message_timestamp_type="LogAppendTime")).open()
    append(log, _opaque(2 * _HOUR_MS))


@pytest.mark.parametrize("config", [TopicConfig(), TopicConfig(cleanup_policy=_COMPACT)])
def test_a_header_with_a_later_timestamp_is_corrected(
    new_home: NewHome, config: TopicConfig
) -> None:
    log = new_home(config).open()
    append(log, _with_max_timestamp(_batch((-5, b"k"), (-7, b"k")), NOW_MS + 2 * _HOUR_MS))
    data = log.read(0, 1000, 2, at_least_one=True).read()
    [(position, header)] = scan(data)
    check_crc(data, header, position)
    assert header.max_timestamp == NOW_MS - 5
    assert log.find_by_timestamp(NOW_MS - 5) == (NOW_MS - 5, 0, 0)
    assert log.find_by_timestamp(NOW_MS - 4) is None


def test_records_are_checked_although_the_header_has_an_earlier_timestamp(
    new_home: NewHome,
) -> None:
    log = new_home(TopicConfig(cleanup_policy=_COMPACT)).open()
    batch = _with_max_timestamp(_batch((0, b"k"), (2 * _HOUR_MS, b"k")), NOW_MS)
    assert _rejected(log, batch) == (ErrorCode.INVALID_TIMESTAMP, [1])


def test_limits_beyond_64_bits(new_home: NewHome) -> None:
    largest = (1 << 63) - 1
    config = TopicConfig(
        message_timestamp_before_max_ms=largest - 1, message_timestamp_after_max_ms=largest
    )
    log = new_home(config).open()
    append(log, _batch((0, b"k"), (1 << 61, b"k")))
    append(log, make_batch(timestamp=-(1 << 61)))
