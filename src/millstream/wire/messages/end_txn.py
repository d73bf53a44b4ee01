"""EndTxn: commits or aborts a transaction.

From version 5 every end raises the producer's epoch (KIP-890), and the response has the producer's
new id and epoch.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import boolean, int16, int32, int64, string
from millstream.wire.schema import Message, message


@message(ApiKey.END_TXN, versions=(0, 5))
class EndTxnRequest(Message):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


@message(ApiKey.END_TXN, versions=(0, 5))
class EndTxnResponse(Message):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(since=5, default=-1, ignorable=True)
    producer_epoch: int = int16(since=5, default=-1, ignorable=True)
