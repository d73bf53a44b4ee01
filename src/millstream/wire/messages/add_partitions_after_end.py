"""AddPartitionsAfterEnd: adds partitions once the transactions in progress have ended.

This API is Millstream's own. It is like AddPartitionsToTxn between brokers, but the coordinator
waits for transactions that are ending.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int32
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from millstream.wire.schema import Message, message


@message(ApiKey.ADD_PARTITIONS_AFTER_END, versions=(0, 0))
class AddPartitionsAfterEndRequest(Message):
    #: Maximum wait. The coordinator may wait less.
    wait_ms: int = int32()
    transactions: list[AddPartitionsToTxnRequest.Transaction] = array(
        AddPartitionsToTxnRequest.Transaction
    )


@message(ApiKey.ADD_PARTITIONS_AFTER_END, versions=(0, 0))
class AddPartitionsAfterEndResponse(Message):
    results_by_transaction: list[AddPartitionsToTxnResponse.Transaction] = array(
        AddPartitionsToTxnResponse.Transaction
    )
