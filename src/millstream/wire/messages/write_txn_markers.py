"""WriteTxnMarkers: ends transactions in partitions, for a coordinator or an operator."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, boolean, int8, int16, int32, int32_array, int64, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.WRITE_TXN_MARKERS, versions=(1, 2))
class WriteTxnMarkersRequest(Message):
    @struct
    class Marker:
        @struct
        class Topic:
            name: str = string()
            partition_indexes: list[int] = int32_array()

        producer_id: int = int64()
        producer_epoch: int = int16()
        #: True for a commit.
        transaction_result: bool = boolean()
        topics: list[Topic] = array(Topic)
        coordinator_epoch: int = int32()
        transaction_version: int = int8(since=2, ignorable=True)

    markers: list[Marker] = array(Marker)


@message(ApiKey.WRITE_TXN_MARKERS, versions=(1, 2))
class WriteTxnMarkersResponse(Message):
    @struct
    class Marker:
        @struct
        class Topic:
            @struct
            class Partition:
                partition_index: int = int32()
                error_code: int = int16()

            name: str = string()
            partitions: list[Partition] = array(Partition)

        producer_id: int = int64()
        topics: list[Topic] = array(Topic)

    markers: list[Marker] = array(Marker)
