"""Records of the offsets topic: golden bytes, all versions, and damage.

The golden bytes were checked by decoding and encoding them with the classes of Kafka 4.3.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness.schema_values import full_message_of, values_of
from millstream.coordination.topic_record import DamagedRecordError
from millstream.groups.group_record import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    Key,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownKey,
    Value,
    decode_key,
    decode_value,
    encode,
)
from millstream.wire.primitive import EncodeError
from millstream.wire.schema import encode_prefixed

TOPIC_ID = bytes(range(16))
OFFSET_KEY = OffsetCommitKey(group_id="g", topic="t", partition=3)
CLASSIC_MEMBER = GroupMetadataValue.Member(
    member_id="m",
    group_instance_id="i",
    client_id="c",
    client_host="/h",
    rebalance_timeout_ms=300_000,
    session_timeout_ms=45_000,
    subscription=b"sub",
    assignment=b"as",
)
CLASSIC = ConsumerGroupMemberMetadataValue.Classic
OWNED = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions

#: Key, value, and both as hexadecimal digits.
GOLDEN: list[tuple[Key, Value, str, str]] = [
    (
        OFFSET_KEY,
        OffsetCommitValue(offset=42, leader_epoch=7, metadata="x", commit_timestamp=1000),
        "0001 00016700 01740000 0003",
        "0004 00000000 0000002a 00000007 02780000 00000000 03e800",
    ),
    (
        OFFSET_KEY,
        OffsetCommitValue(offset=42, leader_epoch=7, commit_timestamp=1000, topic_id=TOPIC_ID),
        "0001 00016700 01740000 0003",
        (
            "0004 00000000 0000002a 00000007 01000000 00000003 e8010010 00010203 04050607 "
            "08090a0b 0c0d0e0f"
        ),
    ),
    (
        OFFSET_KEY,
        OffsetCommitValue(offset=42, metadata="x", commit_timestamp=1000, expire_timestamp=2000),
        "0001 00016700 01740000 0003",
        "0001 00000000 0000002a 00017800 00000000 0003e800 00000000 0007d0",
    ),
    (
        GroupMetadataKey(group_id="g"),
        GroupMetadataValue(
            protocol_type="consumer",
            generation=5,
            protocol="range",
            leader="m",
            current_state_timestamp=1000,
            members=[CLASSIC_MEMBER],
        ),
        "0002 000167",
        (
            "0003 0008636f 6e73756d 65720000 00050005 72616e67 6500016d 00000000 000003e8 "
            "00000001 00016d00 01690001 6300022f 68000493 e00000af c8000000 03737562 00000002 "
            "6173"
        ),
    ),
    (
        GroupMetadataKey(group_id="g"),
        GroupMetadataValue(current_state_timestamp=1000),
        "0002 000167",
        "0003 00000000 0000ffff ffff0000 00000000 03e80000 0000",
    ),
    (
        ConsumerGroupMetadataKey(group_id="g"),
        ConsumerGroupMetadataValue(epoch=9, metadata_hash=-2),
        "0003 000167",
        "0000 00000009 010008ff ffffffff fffffe",
    ),
    (
        ConsumerGroupPartitionMetadataKey(group_id="g"),
        ConsumerGroupPartitionMetadataValue(
            topics=[
                ConsumerGroupPartitionMetadataValue.Topic(
                    topic_id=TOPIC_ID, topic_name="t", num_partitions=2
                )
            ]
        ),
        "0004 000167",
        "0000 02000102 03040506 0708090a 0b0c0d0e 0f027400 00000201 0000",
    ),
    (
        ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
        ConsumerGroupMemberMetadataValue(
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["t"],
            rebalance_timeout_ms=45_000,
            server_assignor="uniform",
        ),
        "0005 00016700 016d",
        "0000 00000263 032f6802 02740000 00afc808 756e6966 6f726d01 000100",
    ),
    (
        ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
        ConsumerGroupMemberMetadataValue(
            instance_id="i",
            rack_id="r",
            subscribed_topic_regex="t.*",
            classic_member_metadata=CLASSIC(
                session_timeout_ms=45_000,
                supported_protocols=[CLASSIC.Protocol(name="range", metadata=b"sub")],
            ),
        ),
        "0005 00016700 016d",
        "0000 02690272 01010104 742e2aff ffffff00 01001201 0000afc8 02067261 6e676504 73756200 00",
    ),
    (
        ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=9, assignment_timestamp=1000),
        "0006 000167",
        "0000 00000009 01000800 00000000 0003e8",
    ),
    (
        ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                ConsumerGroupTargetAssignmentMemberValue.TopicPartitions(
                    topic_id=TOPIC_ID, partitions=[0, 1]
                )
            ]
        ),
        "0007 00016700 016d",
        "0000 02000102 03040506 0708090a 0b0c0d0e 0f030000 00000000 00010000",
    ),
    (
        ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=9,
            previous_member_epoch=8,
            state=1,
            assigned_partitions=[
                OWNED(topic_id=TOPIC_ID, partitions=[0, 1], assignment_epochs=[8, 9])
            ],
            partitions_pending_revocation=[OWNED(topic_id=TOPIC_ID, partitions=[2])],
        ),
        "0008 00016700 016d",
        (
            "0000 00000009 00000008 01020001 02030405 06070809 0a0b0c0d 0e0f0300 00000000 "
            "00000101 00090300 00000800 00000902 00010203 04050607 08090a0b 0c0d0e0f 02000000 "
            "020000"
        ),
    ),
    (
        ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="t.*"),
        ConsumerGroupRegularExpressionValue(topics=["t"], version=12, timestamp=1000),
        "0010 00016700 03742e2a",
        "0000 02027400 00000000 00000c00 00000000 0003e800",
    ),
]
#: Every kind of key with its kind of value, in each version of the value.
FORMATS = list({type(key): type(value) for key, value, _, _ in GOLDEN}.items())
VERSIONS = [
    pytest.param(key, value, version, id=f"{value.__name__}-v{version}")
    for key, value in FORMATS
    for version in range(value.versions[0], value.versions[1] + 1)
]

quick = settings(
    max_examples=10,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


@pytest.mark.parametrize(("key", "value", "key_hex", "value_hex"), GOLDEN)
def test_encoding_matches_kafka(key: Key, value: Value, key_hex: str, value_hex: str) -> None:
    expected = bytes.fromhex(key_hex), bytes.fromhex(value_hex)
    assert encode(key, value) == expected
    assert decode_key(expected[0]) == key
    assert decode_value(key, expected[1]) == value


@pytest.mark.parametrize(("key_shape", "value_shape", "version"), VERSIONS)
@quick
@given(data=st.data())
def test_every_version_of_a_value_is_decoded(
    key_shape: type[Key], value_shape: type[Value], version: int, data: st.DataObject
) -> None:
    key = data.draw(values_of(key_shape, key_shape.versions[1]))
    value = data.draw(values_of(value_shape, version))
    encoded = encode_prefixed(value, version)
    assert decode_value(key, encoded) == value
    assert decode_value(key, memoryview(encoded)) == value


@pytest.mark.parametrize(("key_shape", "value_shape"), FORMATS)
@quick
@given(data=st.data())
def test_decoding_returns_what_was_encoded(
    key_shape: type[Key], value_shape: type[Value], data: st.DataObject
) -> None:
    key = data.draw(values_of(key_shape, key_shape.versions[1]))
    value = data.draw(values_of(value_shape, value_shape.versions[1]))
    encoded_key, encoded_value = encode(key, value)
    assert decode_key(memoryview(encoded_key)) == key
    assert decode_value(key, encoded_value) == value


def test_offset_keys_of_kafka_0_8_are_decoded() -> None:
    assert decode_key(bytes.fromhex("0000 000167 000174 00000003")) == OFFSET_KEY
    written = bytes.fromhex("0000 000000000000002a 000178 00000000000003e8")
    expected = OffsetCommitValue(offset=42, metadata="x", commit_timestamp=1000)
    assert decode_value(OFFSET_KEY, written) == expected


def test_null_is_a_tombstone() -> None:
    encoded_key, encoded_value = encode(OFFSET_KEY, None)
    assert encoded_value is None
    assert decode_key(encoded_key) == OFFSET_KEY
    assert decode_value(OFFSET_KEY, None) is None


@pytest.mark.parametrize("kind", [-1, 9, 15, 17, 23, 0x7FFF])
def test_unknown_kinds_are_not_damage(kind: int) -> None:
    assert decode_key(kind.to_bytes(2, signed=True) + b"anything") == UnknownKey(kind)


def test_a_value_must_be_of_its_keys_kind() -> None:
    with pytest.raises(TypeError, match="GroupMetadataValue is no value for OffsetCommitKey"):
        encode(OFFSET_KEY, GroupMetadataValue())


def test_a_name_that_does_not_fit_the_format_is_rejected() -> None:
    with pytest.raises(EncodeError):
        encode(GroupMetadataKey(group_id="g" * 0x8000), None)


def test_fields_added_later_under_a_tag_are_skipped() -> None:
    key = ConsumerGroupMetadataKey(group_id="g")
    later = bytes.fromhex("0000 00000009 02 0008fffffffffffffffe 0103616263")
    assert decode_value(key, later) == ConsumerGroupMetadataValue(epoch=9, metadata_hash=-2)


def test_classic_metadata_that_is_absent_is_not_null() -> None:
    key = ConsumerGroupMemberMetadataKey(group_id="g", member_id="m")
    null = encode(key, ConsumerGroupMemberMetadataValue())[1]
    assert null is not None
    assert null.endswith(bytes.fromhex("01000100"))
    absent = null.removesuffix(bytes.fromhex("01000100")) + b"\0"
    expected = ConsumerGroupMemberMetadataValue(classic_member_metadata=CLASSIC())
    assert decode_value(key, absent) == expected


@pytest.mark.parametrize("key_shape", [key for key, _ in FORMATS])
def test_a_damaged_key_is_reported(key_shape: type[Key]) -> None:
    encoded, _ = encode(full_message_of(key_shape, key_shape.versions[1]), None)
    for size in range(len(encoded)):
        with pytest.raises(DamagedRecordError):
            decode_key(encoded[:size])
    with pytest.raises(DamagedRecordError, match="follow the end"):
        decode_key(encoded + b"\0")
    for mutated in _mutations(encoded, Random(key_shape.__name__)):
        _is_whole_or_damaged(decode_key, mutated)


@pytest.mark.parametrize(("key_shape", "value_shape", "version"), VERSIONS)
def test_a_damaged_value_is_reported(
    key_shape: type[Key], value_shape: type[Value], version: int
) -> None:
    key = key_shape()
    encoded = encode_prefixed(full_message_of(value_shape, version), version)
    for size in range(len(encoded)):
        with pytest.raises(DamagedRecordError):
            decode_value(key, encoded[:size])
    with pytest.raises(DamagedRecordError, match="follow the end"):
        decode_value(key, encoded + b"\0")
    for mutated in _mutations(encoded, Random(f"{value_shape.__name__} {version}")):
        _is_whole_or_damaged(lambda each: decode_value(key, each), mutated)


@pytest.mark.parametrize(("key_shape", "value_shape"), FORMATS)
def test_an_unknown_version_is_damage(key_shape: type[Key], value_shape: type[Value]) -> None:
    for version in (-1, value_shape.versions[1] + 1):
        with pytest.raises(DamagedRecordError, match="has versions"):
            decode_value(key_shape(), version.to_bytes(2, signed=True) + bytes(64))


def _mutations(encoded: bytes, random: Random) -> Iterator[bytes]:
    for _ in range(200):
        mutated = bytearray(encoded)
        for _ in range(random.choice((1, 1, 2, 8))):
            start = random.randrange(len(mutated) + 1)
            removed, inserted = random.choice((0, 1, 1, 4)), random.choice((0, 1, 1, 4))
            byte = random.choice((b"\0", b"\x7f", b"\x80", b"\xff", random.randbytes(1)))
            mutated[start : start + removed] = byte * inserted
        yield bytes(mutated)


def _is_whole_or_damaged(decode: Any, encoded: bytes) -> None:
    """Decode damaged bytes; any exception but DamagedRecordError fails the test with the bytes."""
    try:
        decode(encoded)
    except DamagedRecordError:
        pass
    except Exception as problem:
        raise AssertionError(f"{problem!r} from {encoded!r}") from problem
