"""ListTransactions: the transactional ids that a broker coordinates.

Version 1 filters by the duration of a transaction, version 2 by a pattern for the id.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    int16,
    int32,
    int64,
    int64_array,
    nullable_string,
    string,
    string_array,
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.LIST_TRANSACTIONS, versions=(0, 2))
class ListTransactionsRequest(Message):
    state_filters: list[str] = string_array()
    producer_id_filters: list[int] = int64_array()
    duration_filter: int = int64(since=1, default=-1)
    transactional_id_pattern: str | None = nullable_string(since=2)


@message(ApiKey.LIST_TRANSACTIONS, versions=(0, 2))
class ListTransactionsResponse(Message):
    @struct
    class State:
        transactional_id: str = string()
        producer_id: int = int64()
        transaction_state: str = string()

    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = string_array()
    transaction_states: list[State] = array(State)
