"""Every kind of field of the protocol, in a message of the test's own."""

from __future__ import annotations

import pytest

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    boolean,
    float64,
    int8,
    int16,
    nullable_octets,
    nullable_struct,
    nullable_tagged_struct,
    octets,
    string,
    string_array,
    struct_field,
    tagged_int32_array,
    tagged_struct,
    uint16,
    uint32,
    uuid,
)
from millstream.wire.messages.produce import ProduceRequest
from millstream.wire.primitive import DecodeError
from millstream.wire.schema import (
    Message,
    Versioned,
    codec,
    decode_prefixed,
    encode_prefixed,
    message,
    read_version,
    struct,
    versioned,
)


@message(ApiKey.HEARTBEAT, versions=(2, 5))
class Sample(Message):
    @struct
    class Point:
        x: int = int16(default=-1)
        label: str = string(since=4, ignorable=True)
        weight: float = float64(since=5, ignorable=True)

    small: int = int8()
    port: int = uint16()
    size: int = uint32(since=3, ignorable=True)
    here: Point = struct_field(Point)
    there: Point | None = nullable_struct(Point)
    blob: bytes = octets()
    perhaps: bytes | None = nullable_octets(since=3, ignorable=True)
    names: list[str] = string_array()
    path: list[Point] = array(Point)
    flag: bool = boolean(tag=1, since=4, ignorable=True)
    origin: Point | None = tagged_struct(Point, tag=0, since=4, ignorable=True)
    identity: bytes = uuid(tag=300, since=5, ignorable=True)


POINT = Sample.Point
SAMPLE = Sample(
    small=-1, port=65535, here=POINT(x=1), there=POINT(x=2), blob=b"ab", names=["n"], path=[POINT()]
)


def test_the_bytes_of_a_version_with_fixed_lengths() -> None:
    assert codec(Sample, 2).encode(SAMPLE) == [
        (
            b"\xff"
            b"\xff\xff"
            b"\x00\x01"
            b"\x01\x00\x02"
            b"\x00\x00\x00\x02ab"
            b"\x00\x00\x00\x01\x00\x01n"
            b"\x00\x00\x00\x01\xff\xff"
        )
    ]


def test_the_bytes_of_a_version_with_compact_lengths_and_tags() -> None:
    message = Sample(small=1, here=POINT(x=1, label="l"), names=["n"], origin=POINT(x=3), flag=True)
    assert codec(Sample, 4).encode(message) == [
        (
            b"\x01"
            b"\x00\x00"
            b"\x00\x00\x00\x00"
            b"\x00\x01\x02l\x00"
            b"\xff"
            b"\x01"
            b"\x00"
            b"\x02\x02n"
            b"\x01"
            b"\x02"
            b"\x00\x04\x00\x03\x01\x00"
            b"\x01\x01\x01"
        )
    ]


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_every_kind_of_field_is_decoded_to_its_value(version: int) -> None:
    (encoded,) = codec(Sample, version).encode(SAMPLE)
    assert codec(Sample, version).decode(bytes(encoded)) == SAMPLE


def test_fields_with_tags_of_two_bytes_are_decoded() -> None:
    message = Sample(identity=bytes(range(16)), origin=POINT(weight=0.5))
    (encoded,) = codec(Sample, 5).encode(message)
    assert codec(Sample, 5).decode(encoded) == message


@pytest.mark.parametrize("size", [b"\x03", b"\x05"])
def test_a_tagged_field_must_fill_its_size(size: bytes) -> None:
    (encoded,) = codec(Sample, 4).encode(Sample(origin=POINT(x=3)))
    good = b"\x01\x00\x04\x00\x03\x01\x00"
    assert bytes(encoded).endswith(good)
    body = bytes(encoded)[: -len(good)]
    with pytest.raises(DecodeError, match="tagged field 0"):
        codec(Sample, 4).decode(body + b"\x01\x00" + size + b"\x00\x03\x01\x00\x00")


def test_unknown_tags_inside_nested_structs_are_skipped() -> None:
    (encoded,) = codec(Sample, 4).encode(Sample())
    plain = b"\xff\xff\x01\x00"
    tagged = b"\xff\xff\x01\x02\x00\x01x\x09\x00"
    assert bytes(encoded).count(plain) == 1
    assert codec(Sample, 4).decode(bytes(encoded).replace(plain, tagged)) == Sample()


def test_every_instance_has_its_own_lists_and_structs() -> None:
    one, other = Sample(), Sample()
    one.names.append("n")
    one.here.x = 9
    assert other == Sample()
    decoded = codec(ProduceRequest, 13).decode(
        codec(ProduceRequest, 13).encode(ProduceRequest())[0]
    )
    assert decoded.topic_data is not ProduceRequest().topic_data


def test_a_message_class_has_its_key_and_versions() -> None:
    assert ProduceRequest.api_key is ApiKey.PRODUCE
    assert ProduceRequest.versions == (3, 13)
    assert ProduceRequest.flexible_from == 9
    assert not hasattr(ProduceRequest(), "__dict__")


def test_codecs_are_cached() -> None:
    assert codec(Sample, 3) is codec(Sample, 3)
    assert codec(Sample, 3) is not codec(Sample, 4)


@pytest.mark.parametrize("version", [1, 6, -1])
def test_a_version_outside_of_the_range_is_rejected(version: int) -> None:
    with pytest.raises(ValueError, match="Sample has versions 2 to 5"):
        codec(Sample, version)


@versioned(versions=(1, 2), flexible_from=2)
class Kept(Versioned):
    name: str = string()
    owner: Sample.Point | None = nullable_tagged_struct(Sample.Point, tag=0)
    epochs: list[int] | None = tagged_int32_array(tag=1)


@versioned(versions=(0, 1), is_open=True)
class Loose(Versioned):
    name: str = string()
    flag: bool = boolean(since=1, ignorable=True)


def test_versioned_data_follows_its_version() -> None:
    assert encode_prefixed(Loose(name="n"), 0) == b"\0\0" + b"\0\1n"
    assert decode_prefixed(Loose, b"\0\1" + b"\0\1n\1") == Loose(name="n", flag=True)
    assert read_version(Kept, encode_prefixed(Kept(), 2)) == 2


def test_a_later_version_of_open_data_is_read_as_the_last_known_one() -> None:
    later = b"\0\7" + b"\0\1n\1" + b"what version 7 adds"
    assert read_version(Loose, later) == 1
    assert decode_prefixed(Loose, later) == Loose(name="n", flag=True)


@pytest.mark.parametrize(
    ("kept", "encoded"),
    [
        (Kept, b""),
        (Kept, b"\0"),
        (Kept, b"\0\0"),
        (Kept, b"\0\3"),
        (Kept, b"\xff\xff"),
        (Kept, encode_prefixed(Kept(), 2) + b"\0"),
        (Loose, b"\xff\xff\0\0\0"),
        (Loose, b"\0\7\0"),
    ],
)
def test_invalid_versioned_data_is_rejected(kept: type[Versioned], encoded: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_prefixed(kept, encoded)


def test_an_absent_nullable_tagged_struct_has_its_defaults() -> None:
    head = b"\0\2" + b"\2n"
    null = Kept(name="n", owner=None)
    some = Kept(name="n", owner=POINT(x=7))
    assert encode_prefixed(null, 2) == head + b"\1" + b"\0\1\0"
    assert encode_prefixed(some, 2) == head + b"\1" + b"\0\4\1\0\7\0"
    assert decode_prefixed(Kept, encode_prefixed(null, 2)) == null
    assert decode_prefixed(Kept, encode_prefixed(some, 2)) == some
    assert decode_prefixed(Kept, head + b"\0") == Kept(name="n", owner=POINT())


def test_a_tagged_array_may_be_null_when_read_and_is_absent_when_empty() -> None:
    head = b"\0\2" + b"\2n"
    null = decode_prefixed(Kept, head + b"\1" + b"\1\1\0")
    assert null.epochs is None
    assert encode_prefixed(null, 2) == encode_prefixed(Kept(name="n", owner=POINT()), 2)
    full = Kept(name="n", epochs=[5])
    assert encode_prefixed(full, 2).endswith(b"\1\5\2" + b"\0\0\0\5")
    assert decode_prefixed(Kept, encode_prefixed(full, 2)) == full
