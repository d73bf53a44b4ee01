"""Invalid input, for every message in every version, raises DecodeError and nothing else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from millstream.wire.messages.fetch import FetchRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.produce import ProduceRequest
from millstream.wire.primitive import DecodeError
from millstream.wire.schema import Versioned, codec

FullMessage = Callable[[type, int], Any]

HUGE_INT32 = b"\x7f\xff\xff\xff"
HUGE_VARINT = b"\xff\xff\xff\xff\x07"


def _versions(shape: type[Versioned], first: int = 0) -> range:
    return range(max(first, shape.versions[0]), shape.versions[1] + 1)


def _encode(shape: type[Versioned], version: int, full_message: FullMessage) -> bytes:
    return b"".join(codec(shape, version).encode(full_message(shape, version)))


def _is_rejected(shape: type[Versioned], version: int, encoded: bytes) -> bool:
    """Return whether decoding raises DecodeError. Another exception fails the test and names the
    bytes."""
    try:
        codec(shape, version).decode(encoded)
    except DecodeError:
        return True
    except Exception as problem:
        raise AssertionError(f"{problem!r} from version {version}, {encoded!r}") from problem
    return False


def test_truncated_messages_are_rejected(shape: type[Versioned], full_message: FullMessage) -> None:
    for version in _versions(shape):
        encoded = _encode(shape, version, full_message)
        assert not _is_rejected(shape, version, encoded)
        for size in range(len(encoded)):
            assert _is_rejected(shape, version, encoded[:size]), (version, size)


def test_bytes_after_the_last_field_are_rejected_unless_the_class_is_open(
    shape: type[Versioned], full_message: FullMessage
) -> None:
    for version in _versions(shape):
        encoded = _encode(shape, version, full_message)
        decode = codec(shape, version).decode
        if shape.is_open:
            assert decode(encoded + b"\0") == decode(encoded)
            continue
        with pytest.raises(DecodeError, match="follow the end"):
            decode(encoded + b"\0")


def test_the_metadata_request_of_librdkafka_for_all_topics_is_accepted() -> None:
    request = codec(MetadataRequest, 13).decode(bytes.fromhex("00 000000 01 00 00"))
    assert request.topics is None
    assert not request.include_topic_authorized_operations


def test_mutated_messages_raise_only_decode_errors(
    shape: type[Versioned], full_message: FullMessage
) -> None:
    for version in _versions(shape):
        random = Random(f"{shape.__name__} {version}")
        encoded = _encode(shape, version, full_message)
        outcomes = {_is_rejected(shape, version, each) for each in _mutations(encoded, random, 200)}
        assert True in outcomes or not encoded


def _mutations(encoded: bytes, random: Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        mutated = bytearray(encoded)
        for _ in range(random.choice((1, 1, 2, 8))):
            start = random.randrange(len(mutated) + 1)
            removed = random.choice((0, 1, 1, 4))
            inserted = random.choice((0, 1, 1, 4))
            byte = random.choice((b"\0", b"\x7f", b"\x80", b"\xff", random.randbytes(1)))
            mutated[start : start + removed] = byte * inserted
        yield bytes(mutated)


def test_a_huge_length_allocates_nothing(shape: type[Versioned], full_message: FullMessage) -> None:
    first, last = shape.versions
    for version in {first, min(max(first, shape.flexible_from), last), last}:
        encoded = _encode(shape, version, full_message)
        huge = HUGE_VARINT if version >= shape.flexible_from else HUGE_INT32
        tracemalloc.start()
        try:
            for position in range(len(encoded)):
                tail = encoded[position + len(huge) :]
                _is_rejected(shape, version, encoded[:position] + huge + tail)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 200_000


def test_unknown_tagged_fields_are_skipped(shape: type[Versioned]) -> None:
    short_tag = b"\x63\x03abc"
    long_tag = b"\xff\xff\x03" + b"\x80\x01" + bytes(128)
    for version in _versions(shape, shape.flexible_from):
        decode = codec(shape, version).decode
        encoded = b"".join(codec(shape, version).encode(shape()))
        assert encoded[-1] == 0, "no tagged field differs from its default"
        assert decode(encoded[:-1] + b"\x01" + short_tag) == shape()
        assert decode(encoded[:-1] + b"\x02" + short_tag + long_tag) == shape()
        assert decode(encoded[:-1] + b"\x80\x01" + short_tag * 128) == shape()
        assert _is_rejected(shape, version, encoded[:-1] + b"\x01" + short_tag[:-1])


def test_records_are_a_view_of_the_input() -> None:
    partition = ProduceRequest.Topic.Partition(records=b"batch")
    request = ProduceRequest(topic_data=[ProduceRequest.Topic(partition_data=[partition])])
    frame = bytearray(b"".join(codec(ProduceRequest, 9).encode(request)))
    records = codec(ProduceRequest, 9).decode(frame).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    records[0:1] = b"B"
    assert b"Batch" in frame


def test_other_messages_have_no_view_of_the_input() -> None:
    request = FetchRequest(topics=[FetchRequest.Topic(topic_id=b"0123456789abcdef")])
    frame = bytearray(b"".join(codec(FetchRequest, 17).encode(request)))
    decoded = codec(FetchRequest, 17).decode(memoryview(frame))
    frame[:] = bytes(len(frame))
    assert decoded == request


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80"])
def test_text_that_is_not_utf8_is_rejected(text: bytes) -> None:
    head = b"\x02" + bytes(16) + bytes([len(text) + 1])
    with pytest.raises(DecodeError, match="not a valid MetadataRequest version 12"):
        codec(MetadataRequest, 12).decode(head + text + b"\0" + b"\1\1" + b"\0")


def test_a_too_long_compact_string_is_rejected() -> None:
    text = b"x" * 0x8000
    head = b"\x02" + bytes(16) + b"\x81\x80\x02"
    with pytest.raises(DecodeError, match="32768 bytes is longer"):
        codec(MetadataRequest, 12).decode(head + text + b"\0" + b"\1\1" + b"\0")


def test_null_is_rejected_in_versions_that_do_not_allow_it() -> None:
    assert codec(MetadataRequest, 1).decode(b"\xff\xff\xff\xff").topics is None
    with pytest.raises(DecodeError, match="null"):
        codec(MetadataRequest, 0).decode(b"\xff\xff\xff\xff")
