"""The records of `__consumer_offsets`, in the formats of Kafka 4.3.

A key starts with the kind of record (see `coordination/topic_record.py`). A value is an int16
version and the fields of that version. A null value is a tombstone: it deletes the record with the
same key.

    kind  key                        value                       versions  written
       1  group, topic, partition    committed offset            0-4       4; 1 with an expiry
       2  group                      classic group               0-4       3
       3  group                      consumer group's epoch      0         0
       4  group                      its topics' partitions      0         0 (Kafka: not since 4.1)
       5  group, member              member metadata             0         0
       6  group                      target assignment's epoch   0         0
       7  group, member              member's target assignment  0         0
       8  group, member              member's current assignment 0         0
      16  group, regular expression  topics that match           0         0

Kind 0 is an offset in the format of Kafka 0.8: it has the layout of kind 1. All other kinds decode
to an `UnknownKey`: they belong to group types that this broker does not serve, or to later ones.

Fields have Kafka's names in snake case, except that every key has a `group_id`, and timeouts end in
their unit. This module handles bytes only; the groups interpret the records.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from millstream.coordination import topic_record
from millstream.coordination.topic_record import DamagedRecordError
from millstream.wire.field import (
    array,
    int8,
    int32,
    int32_array,
    int64,
    nullable_string,
    nullable_tagged_struct,
    octets,
    string,
    string_array,
    tagged_int32_array,
    uuid,
)
from millstream.wire.primitive import Buffer, DecodeError
from millstream.wire.schema import (
    Versioned,
    decode_prefixed,
    encode_prefixed,
    struct,
    versioned,
)

#: The expiry of a committed offset for which the broker's retention applies.
NO_EXPIRY: Final = -1


class UnknownKey(NamedTuple):
    """The key of a record of an unknown kind."""

    kind: int


@versioned(versions=(0, 1))
class OffsetCommitKey(Versioned):
    group_id: str = string()
    topic: str = string()
    partition: int = int32()


@versioned(versions=(0, 4), flexible_from=4)
class OffsetCommitValue(Versioned):
    offset: int = int64()
    leader_epoch: int = int32(since=3, default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(since=1, until=1, default=NO_EXPIRY, ignorable=True)
    topic_id: bytes = uuid(since=4, tag=0, ignorable=True)


@versioned(versions=(2, 2))
class GroupMetadataKey(Versioned):
    group_id: str = string()


@versioned(versions=(0, 4), flexible_from=4)
class GroupMetadataValue(Versioned):
    @struct
    class Member:
        member_id: str = string()
        group_instance_id: str | None = nullable_string(since=3, ignorable=True)
        client_id: str = string()
        client_host: str = string()
        rebalance_timeout_ms: int = int32(since=1, default=-1, ignorable=True)
        session_timeout_ms: int = int32()
        subscription: bytes = octets()
        assignment: bytes = octets()

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = nullable_string()
    leader: str | None = nullable_string()
    current_state_timestamp: int = int64(since=2, default=-1, ignorable=True)
    members: list[Member] = array(Member)


@versioned(versions=(3, 3))
class ConsumerGroupMetadataKey(Versioned):
    group_id: str = string()


@versioned(versions=(0, 0), flexible_from=0)
class ConsumerGroupMetadataValue(Versioned):
    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


@versioned(versions=(4, 4))
class ConsumerGroupPartitionMetadataKey(Versioned):
    group_id: str = string()


@versioned(versions=(0, 0), flexible_from=0)
class ConsumerGroupPartitionMetadataValue(Versioned):
    @struct
    class Topic:
        @struct
        class Partition:
            partition: int = int32()
            racks: list[str] = string_array()

        topic_id: bytes = uuid()
        topic_name: str = string()
        num_partitions: int = int32()
        partition_metadata: list[Partition] = array(Partition)

    topics: list[Topic] = array(Topic)


@versioned(versions=(5, 5))
class ConsumerGroupMemberMetadataKey(Versioned):
    group_id: str = string()
    member_id: str = string()


@versioned(versions=(0, 0), flexible_from=0)
class ConsumerGroupMemberMetadataValue(Versioned):
    @struct
    class Classic:
        """The JoinGroup data of a member that speaks the classic protocol."""

        @struct
        class Protocol:
            name: str = string()
            metadata: bytes = octets()

        session_timeout_ms: int = int32()
        supported_protocols: list[Protocol] = array(Protocol)

    instance_id: str | None = nullable_string()
    rack_id: str | None = nullable_string()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = string_array()
    subscribed_topic_regex: str | None = nullable_string()
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = nullable_string()
    classic_member_metadata: Classic | None = nullable_tagged_struct(Classic, tag=0)


@versioned(versions=(6, 6))
class ConsumerGroupTargetAssignmentMetadataKey(Versioned):
    group_id: str = string()


@versioned(versions=(0, 0), flexible_from=0)
class ConsumerGroupTargetAssignmentMetadataValue(Versioned):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


@versioned(versions=(7, 7))
class ConsumerGroupTargetAssignmentMemberKey(Versioned):
    group_id: str = string()
    member_id: str = string()


@versioned(versions=(0, 0), flexible_from=0)
class ConsumerGroupTargetAssignmentMemberValue(Versioned):
    @struct
    class TopicPartitions:
        topic_id: bytes = uuid()
        partitions: list[int] = int32_array()

    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


@versioned(versions=(8, 8))
class ConsumerGroupCurrentMemberAssignmentKey(Versioned):
    group_id: str = string()
    member_id: str = string()


@versioned(versions=(0, 0), flexible_from=0)
class ConsumerGroupCurrentMemberAssignmentValue(Versioned):
    @struct
    class TopicPartitions:
        topic_id: bytes = uuid()
        partitions: list[int] = int32_array()
        #: The epoch in which each partition was assigned; None in older records.
        assignment_epochs: list[int] | None = tagged_int32_array(tag=0)

    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions)


@versioned(versions=(16, 16))
class ConsumerGroupRegularExpressionKey(Versioned):
    group_id: str = string()
    regular_expression: str = string()


@versioned(versions=(0, 0), flexible_from=0)
class ConsumerGroupRegularExpressionValue(Versioned):
    topics: list[str] = string_array()
    #: The metadata version for which the expression was resolved.
    version: int = int64()
    timestamp: int = int64()


Key: TypeAlias = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
Value: TypeAlias = (
    OffsetCommitValue
    | GroupMetadataValue
    | ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)

_VALUE_OF_KEY: Final[dict[type[Key], type[Value]]] = {
    OffsetCommitKey: OffsetCommitValue,
    GroupMetadataKey: GroupMetadataValue,
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey: ConsumerGroupPartitionMetadataValue,
    ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
}
#: The schema version of a key is its kind.
_KEY_OF_KIND: Final = {kind: shape for shape in _VALUE_OF_KEY for kind in set(shape.versions)}


def decode_key(encoded: Buffer) -> Key | UnknownKey:
    """Decode a record's key; raise DamagedRecordError if a key of a known kind is damaged."""
    key = topic_record.decode_key(encoded, _KEY_OF_KIND)
    return UnknownKey(key) if isinstance(key, int) else key


def decode_value(key: Key, encoded: Buffer | None) -> Value | None:
    """Decode the value of the record with this key; None for a tombstone.

    The key's class determines the value's class. Raises DamagedRecordError.
    """
    if encoded is None:
        return None
    try:
        return decode_prefixed(_VALUE_OF_KEY[type(key)], encoded)
    except DecodeError as problem:
        raise DamagedRecordError(f"the value of {key} is damaged: {problem}") from problem


def encode(key: Key, value: Value | None) -> tuple[bytes, bytes | None]:
    """Encode key and value; a value of None makes a tombstone.

    Raises EncodeError if a field's value does not fit its format.
    """
    shape = type(key)
    encoded_key = encode_prefixed(key, shape.versions[1])
    if value is None:
        return encoded_key, None
    if type(value) is not _VALUE_OF_KEY[shape]:
        raise TypeError(f"{type(value).__name__} is no value for {shape.__name__}")
    return encoded_key, encode_prefixed(value, _written_version(value))


def _written_version(value: Value) -> int:
    match value:
        case OffsetCommitValue(expire_timestamp=expiry):
            # Only version 1 has an expiry per offset.
            return 4 if expiry == NO_EXPIRY else 1
        case GroupMetadataValue():
            return 3
    return 0
