"""DescribeProducers: the producer state of partitions, from their leader."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, int32_array, int64, nullable_string, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0))
class DescribeProducersRequest(Message):
    @struct
    class Topic:
        name: str = string()
        partition_indexes: list[int] = int32_array()

    topics: list[Topic] = array(Topic)


@message(ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0))
class DescribeProducersResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            @struct
            class Producer:
                producer_id: int = int64()
                producer_epoch: int = int32()
                last_sequence: int = int32(default=-1)
                last_timestamp: int = int64(default=-1)
                coordinator_epoch: int = int32()
                current_txn_start_offset: int = int64(default=-1)

            partition_index: int = int32()
            error_code: int = int16()
            error_message: str | None = nullable_string()
            active_producers: list[Producer] = array(Producer)

        name: str = string()
        partitions: list[Partition] = array(Partition)

    throttle_time_ms: int = int32()
    topics: list[Topic] = array(Topic)
