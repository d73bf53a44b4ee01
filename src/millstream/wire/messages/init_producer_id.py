"""InitProducerId: an id and epoch for an idempotent or transactional producer.

Version 6 is for two-phase commit (KIP-939). In Kafka it is an unstable version.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import boolean, int16, int32, int64, nullable_string
from millstream.wire.schema import Message, message


@message(ApiKey.INIT_PRODUCER_ID, versions=(0, 6))
class InitProducerIdRequest(Message):
    transactional_id: str | None = nullable_string()
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)
    enable_2pc: bool = boolean(since=6, ignorable=True)
    keep_prepared_txn: bool = boolean(since=6, ignorable=True)


@message(ApiKey.INIT_PRODUCER_ID, versions=(0, 6))
class InitProducerIdResponse(Message):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64(since=6, default=-1, ignorable=True)
    ongoing_txn_producer_epoch: int = int16(since=6, default=-1, ignorable=True)
