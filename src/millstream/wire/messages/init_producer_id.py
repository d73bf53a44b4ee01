"""InitProducerId: an id and epoch for an idempotent or transactional producer.

Version 6 (two-phase commit) is not stable in Kafka yet and is left out.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import int16, int32, int64, nullable_string
from millstream.wire.schema import Message, message


@message(ApiKey.INIT_PRODUCER_ID, versions=(0, 5))
class InitProducerIdRequest(Message):
    transactional_id: str | None = nullable_string()
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)


@message(ApiKey.INIT_PRODUCER_ID, versions=(0, 5))
class InitProducerIdResponse(Message):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
