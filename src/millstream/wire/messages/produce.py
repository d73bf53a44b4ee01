"""Produce: appends record batches to partitions.

Topics have names up to version 12 and ids from version 13. `records` is a view of the request's
buffer: the broker stamps batches in place and appends them from there.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    int16,
    int32,
    int64,
    nullable_string,
    records,
    string,
    tagged_struct,
    uuid,
)
from millstream.wire.primitive import Buffer
from millstream.wire.schema import Message, message, struct


@message(ApiKey.PRODUCE, versions=(3, 13))
class ProduceRequest(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            index: int = int32()
            records: Buffer | None = records()

        name: str = string(until=12, ignorable=True)
        topic_id: bytes = uuid(since=13, ignorable=True)
        partition_data: list[Partition] = array(Partition)

    transactional_id: str | None = nullable_string()
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[Topic] = array(Topic)


@message(ApiKey.PRODUCE, versions=(3, 13))
class ProduceResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            @struct
            class RecordError:
                batch_index: int = int32()
                batch_index_error_message: str | None = nullable_string()

            @struct
            class Leader:
                leader_id: int = int32(default=-1)
                leader_epoch: int = int32(default=-1)

            index: int = int32()
            error_code: int = int16()
            base_offset: int = int64()
            log_append_time_ms: int = int64(default=-1)
            log_start_offset: int = int64(since=5, default=-1, ignorable=True)
            record_errors: list[RecordError] = array(RecordError, since=8, ignorable=True)
            error_message: str | None = nullable_string(since=8, ignorable=True)
            current_leader: Leader | None = tagged_struct(Leader, tag=0, since=10)

        name: str = string(until=12, ignorable=True)
        topic_id: bytes = uuid(since=13, ignorable=True)
        partition_responses: list[Partition] = array(Partition)

    @struct
    class NodeEndpoint:
        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = nullable_string()

    responses: list[Topic] = array(Topic)
    throttle_time_ms: int = int32()
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, tag=0, since=10)
