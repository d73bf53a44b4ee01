"""The records of `__transaction_state`, in the formats of Kafka 4.3.

A key is the int16 0 and the transactional id. A value is an int16 version and the fields of that
version: 1, which allows tagged fields, or 0 if the cluster's transaction version is 0. A null value
is a tombstone: the id is deleted.

Fields have Kafka's names in snake case. This module handles bytes only; `state` interprets them.
"""

from __future__ import annotations

from typing import Final

from millstream.coordination import topic_record
from millstream.coordination.topic_record import DamagedRecordError
from millstream.wire.field import (
    int8,
    int16,
    int32,
    int32_array,
    int64,
    nullable_array,
    string,
)
from millstream.wire.primitive import Buffer, DecodeError
from millstream.wire.schema import (
    Versioned,
    decode_prefixed,
    encode_prefixed,
    struct,
    versioned,
)

_KEY_KIND: Final = 0


@versioned(versions=(0, 0))
class TransactionLogKey(Versioned):
    transactional_id: str = string()


_KEY_OF_KIND: Final = {_KEY_KIND: TransactionLogKey}


@versioned(versions=(0, 1), flexible_from=1)
class TransactionLogValue(Versioned):
    @struct
    class Partitions:
        topic: str = string()
        partition_ids: list[int] = int32_array()

    producer_id: int = int64()
    previous_producer_id: int = int64(since=1, tag=0, default=-1, ignorable=True)
    next_producer_id: int = int64(since=1, tag=1, default=-1, ignorable=True)
    producer_epoch: int = int16()
    next_producer_epoch: int = int16(since=1, tag=3, default=-1, ignorable=True)
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[Partitions] | None = nullable_array(Partitions)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(since=1, tag=2, ignorable=True)


def decode_key(encoded: Buffer) -> str | None:
    """Return the transactional id in a record's key; None for an unknown kind of key.

    Raises DamagedRecordError if the key is damaged."""
    key = topic_record.decode_key(encoded, _KEY_OF_KIND)
    return None if isinstance(key, int) else key.transactional_id


def decode_value(encoded: Buffer | None) -> TransactionLogValue | None:
    """Decode a record's value; None for a tombstone. Raises DamagedRecordError."""
    if encoded is None:
        return None
    try:
        return decode_prefixed(TransactionLogValue, encoded)
    except DecodeError as problem:
        raise DamagedRecordError(f"a value is damaged: {problem}") from problem


def encode(
    transactional_id: str, value: TransactionLogValue | None, version: int = 1
) -> tuple[bytes, bytes | None]:
    """Encode key and value; a value of None makes a tombstone."""
    key = encode_prefixed(TransactionLogKey(transactional_id=transactional_id), _KEY_KIND)
    return key, None if value is None else encode_prefixed(value, version)
