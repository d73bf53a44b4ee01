"""AddPartitionsToTxn: adds partitions to the transaction of a producer.

Clients use versions up to 3, for one transaction. Brokers use versions 4 and 5, for any number of
transactions, and may only verify that the partitions are part of them.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, boolean, int16, int32, int32_array, int64, string
from millstream.wire.schema import Message, message, struct


@struct
class TxnTopic:
    name: str = string()
    partitions: list[int] = int32_array()


@struct
class TxnTopicResult:
    @struct
    class Partition:
        partition_index: int = int32()
        partition_error_code: int = int16()

    name: str = string()
    results_by_partition: list[Partition] = array(Partition)


@message(ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 5))
class AddPartitionsToTxnRequest(Message):
    @struct
    class Transaction:
        transactional_id: str = string()
        producer_id: int = int64()
        producer_epoch: int = int16()
        verify_only: bool = boolean()
        topics: list[TxnTopic] = array(TxnTopic)

    transactions: list[Transaction] = array(Transaction, since=4)
    v3_and_below_transactional_id: str = string(until=3)
    v3_and_below_producer_id: int = int64(until=3)
    v3_and_below_producer_epoch: int = int16(until=3)
    v3_and_below_topics: list[TxnTopic] = array(TxnTopic, until=3)


@message(ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 5))
class AddPartitionsToTxnResponse(Message):
    @struct
    class Transaction:
        transactional_id: str = string()
        topic_results: list[TxnTopicResult] = array(TxnTopicResult)

    throttle_time_ms: int = int32()
    error_code: int = int16(since=4, ignorable=True)
    results_by_transaction: list[Transaction] = array(Transaction, since=4)
    results_by_topic_v3_and_below: list[TxnTopicResult] = array(TxnTopicResult, until=3)
