"""AddOffsetsToTxn: announces that a transaction will commit offsets of a group."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import int16, int32, int64, string
from millstream.wire.schema import Message, message


@message(ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4))
class AddOffsetsToTxnRequest(Message):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


@message(ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4))
class AddOffsetsToTxnResponse(Message):
    throttle_time_ms: int = int32()
    error_code: int = int16()
