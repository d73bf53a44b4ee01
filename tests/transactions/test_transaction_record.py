"""Records of the transactions topic: golden bytes, all versions, and damage.

The golden bytes were checked by decoding and encoding them with the classes of Kafka 4.3.0.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.schema_values import full_message_of, values_of
from millstream.coordination.topic_record import DamagedRecordError
from millstream.transactions.transaction_record import (
    TransactionLogKey,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode,
)
from millstream.wire.schema import encode_prefixed

PARTITIONS = TransactionLogValue.Partitions
KEY = "0000 0004 62616e6b"

#: Version, value, and the value as hexadecimal digits.
GOLDEN: list[tuple[int, TransactionLogValue, str]] = [
    (
        0,
        TransactionLogValue(
            producer_id=42,
            producer_epoch=3,
            transaction_timeout_ms=60_000,
            transaction_status=0,
            transaction_last_update_timestamp_ms=1000,
            transaction_start_timestamp_ms=-1,
        ),
        "0000 000000000000002a 0003 0000ea60 00 ffffffff 00000000000003e8 ffffffffffffffff",
    ),
    (
        0,
        TransactionLogValue(
            producer_id=42,
            producer_epoch=3,
            transaction_timeout_ms=60_000,
            transaction_status=1,
            transaction_partitions=[PARTITIONS(topic="t", partition_ids=[0, 2])],
            transaction_last_update_timestamp_ms=1000,
            transaction_start_timestamp_ms=900,
        ),
        (
            "0000 000000000000002a 0003 0000ea60 01 00000001 000174 00000002 00000000 00000002"
            " 00000000000003e8 0000000000000384"
        ),
    ),
    (
        1,
        TransactionLogValue(
            producer_id=42,
            producer_epoch=3,
            transaction_timeout_ms=60_000,
            transaction_status=0,
            transaction_last_update_timestamp_ms=1000,
            transaction_start_timestamp_ms=-1,
        ),
        "0001 000000000000002a 0003 0000ea60 00 00 00000000000003e8 ffffffffffffffff 00",
    ),
    (
        1,
        TransactionLogValue(
            producer_id=42,
            previous_producer_id=41,
            next_producer_id=43,
            producer_epoch=32767,
            next_producer_epoch=5,
            transaction_timeout_ms=60_000,
            transaction_status=2,
            transaction_partitions=[
                PARTITIONS(topic="t", partition_ids=[0, 2]),
                PARTITIONS(topic="u", partition_ids=[7]),
            ],
            transaction_last_update_timestamp_ms=1000,
            transaction_start_timestamp_ms=900,
            client_transaction_version=2,
        ),
        (
            "0001 000000000000002a 7fff 0000ea60 02 03 0274 03 00000000 00000002 00"
            " 0275 02 00000007 00 00000000000003e8 0000000000000384"
            " 04 0008 0000000000000029 0108 000000000000002b 0202 0002 0302 0005"
        ),
    ),
    (
        1,
        TransactionLogValue(
            producer_id=43,
            previous_producer_id=42,
            producer_epoch=0,
            transaction_timeout_ms=60_000,
            transaction_status=4,
            transaction_partitions=[],
            transaction_last_update_timestamp_ms=1001,
            transaction_start_timestamp_ms=900,
            client_transaction_version=2,
        ),
        (
            "0001 000000000000002b 0000 0000ea60 04 01 00000000000003e9 0000000000000384"
            " 02 0008 000000000000002a 0202 0002"
        ),
    ),
]


@pytest.mark.parametrize(("version", "value", "expected"), GOLDEN)
def test_golden_bytes(version: int, value: TransactionLogValue, expected: str) -> None:
    key, encoded = encode("bank", value, version)
    assert key == bytes.fromhex(KEY)
    assert encoded == bytes.fromhex(expected)
    assert decode_key(key) == "bank"
    assert decode_value(encoded) == value


def test_a_tombstone_has_no_value() -> None:
    assert encode("bank", None) == (bytes.fromhex(KEY), None)
    assert decode_value(None) is None


@pytest.mark.parametrize("version", [0, 1])
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_values_round_trip_in_every_version(version: int, data: st.DataObject) -> None:
    value: Any = data.draw(values_of(TransactionLogValue, version))
    assert decode_value(encode("x", value, version)[1]) == value


@pytest.mark.parametrize("version", [0, 1])
def test_a_truncated_value_is_damaged(version: int) -> None:
    encoded = encode_prefixed(full_message_of(TransactionLogValue, version), version)
    for size in range(len(encoded)):
        with pytest.raises(DamagedRecordError):
            decode_value(encoded[:size])


def test_unknown_keys_are_ignored_and_short_keys_are_damaged() -> None:
    key = encode_prefixed(TransactionLogKey(transactional_id="bank"), 0)
    assert decode_key(b"\0\1" + key[2:]) is None
    for size in range(len(key)):
        with pytest.raises(DamagedRecordError):
            decode_key(key[:size])
    with pytest.raises(DamagedRecordError):
        decode_value(b"\0\2" + bytes(40))
