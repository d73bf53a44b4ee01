"""ConsumerGroupDescribe: state, epochs and members of consumer groups (KIP-848).

`member_type`, from version 1, is one of the constants below.
"""

from __future__ import annotations

from typing import Final

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    boolean,
    int8,
    int16,
    int32,
    int32_array,
    nullable_string,
    string,
    string_array,
    struct_field,
    uuid,
)
from millstream.wire.messages.metadata import OPERATIONS_OMITTED
from millstream.wire.schema import Message, message, struct

MEMBER_UNKNOWN: Final = -1
MEMBER_CLASSIC: Final = 0
MEMBER_CONSUMER: Final = 1


@message(ApiKey.CONSUMER_GROUP_DESCRIBE, versions=(0, 1))
class ConsumerGroupDescribeRequest(Message):
    group_ids: list[str] = string_array()
    include_authorized_operations: bool = boolean()


@message(ApiKey.CONSUMER_GROUP_DESCRIBE, versions=(0, 1))
class ConsumerGroupDescribeResponse(Message):
    @struct
    class Group:
        @struct
        class Member:
            @struct
            class Assignment:
                @struct
                class TopicPartitions:
                    topic_id: bytes = uuid()
                    topic_name: str = string()
                    partitions: list[int] = int32_array()

                topic_partitions: list[TopicPartitions] = array(TopicPartitions)

            member_id: str = string()
            instance_id: str | None = nullable_string()
            rack_id: str | None = nullable_string()
            member_epoch: int = int32()
            client_id: str = string()
            client_host: str = string()
            subscribed_topic_names: list[str] = string_array()
            subscribed_topic_regex: str | None = nullable_string()
            assignment: Assignment = struct_field(Assignment)
            target_assignment: Assignment = struct_field(Assignment)
            member_type: int = int8(since=1, default=MEMBER_UNKNOWN, ignorable=True)

        error_code: int = int16()
        error_message: str | None = nullable_string()
        group_id: str = string()
        group_state: str = string()
        group_epoch: int = int32()
        assignment_epoch: int = int32()
        assignor_name: str = string()
        members: list[Member] = array(Member)
        authorized_operations: int = int32(default=OPERATIONS_OMITTED)

    throttle_time_ms: int = int32()
    groups: list[Group] = array(Group)
