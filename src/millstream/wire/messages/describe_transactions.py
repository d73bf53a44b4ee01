"""DescribeTransactions: the state of transactional ids, from their coordinator."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, int32_array, int64, string, string_array
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0))
class DescribeTransactionsRequest(Message):
    transactional_ids: list[str] = string_array()


@message(ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0))
class DescribeTransactionsResponse(Message):
    @struct
    class State:
        @struct
        class Topic:
            topic: str = string()
            partitions: list[int] = int32_array()

        error_code: int = int16()
        transactional_id: str = string()
        transaction_state: str = string()
        transaction_timeout_ms: int = int32()
        transaction_start_time_ms: int = int64()
        producer_id: int = int64()
        producer_epoch: int = int16()
        topics: list[Topic] = array(Topic)

    throttle_time_ms: int = int32()
    transaction_states: list[State] = array(State)
