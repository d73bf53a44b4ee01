from __future__ import annotations

import io
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioHeaderV2
from kio.serial import entity_writer

from millstream.wire.api import ApiKey
from millstream.wire.framing import (
    LENGTH_BYTES,
    frame_request,
    frame_response,
    parse_request_header,
    parse_response_header,
)
from millstream.wire.primitive import DecodeError, EncodeError
from millstream.wire.schema import Segment

int32 = st.integers(-(2**31), 2**31 - 1)
clients = st.none() | st.text(max_size=300)


def _join(segments: list[Segment]) -> bytes:
    return b"".join(segments)


@given(correlation_id=int32, client_id=clients, version=st.sampled_from([8, 9]))
def test_a_request_header_equals_that_of_kafka(
    correlation_id: int, client_id: str | None, version: int
) -> None:
    kio_shape = KioHeaderV2 if version >= 9 else KioHeaderV1
    theirs = io.BytesIO()
    header = kio_shape(
        request_api_key=0,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    entity_writer(kio_shape)(theirs, header)
    frame = _join(frame_request(0, version, correlation_id, client_id, [bytearray(b"body")]))
    assert int.from_bytes(frame[:LENGTH_BYTES]) == len(frame) - LENGTH_BYTES
    assert frame[LENGTH_BYTES:] == theirs.getvalue() + b"body"
    for view in (frame[LENGTH_BYTES:], memoryview(frame)[LENGTH_BYTES:]):
        parsed = parse_request_header(view)
        assert parsed[:4] == (0, version, correlation_id, client_id)
        assert view[parsed.body_position :] == b"body"
    assert parse_request_header(frame, LENGTH_BYTES).body_position == len(frame) - 4


def test_tags_in_a_request_header_are_skipped() -> None:
    header = b"\x00\x00\x00\x09\x00\x00\x00\x01\x00\x01c"
    assert parse_request_header(header + b"\x01\x07\x02ab" + b"body").body_position == 16
    with pytest.raises(DecodeError):
        parse_request_header(header + b"\x01\x07\x02a")


def test_the_header_of_an_unknown_version_is_parsed() -> None:
    header = b"\x00\x12\x7f\xff\x00\x00\x00\x01\xff\xff\x00"
    assert parse_request_header(header) == (18, 0x7FFF, 1, None, 11)


@pytest.mark.parametrize("version", [8, 9])
def test_a_damaged_request_header_is_rejected(version: int) -> None:
    frame = _join(frame_request(0, version, 1, "client", []))[LENGTH_BYTES:]
    for size in range(len(frame)):
        with pytest.raises(DecodeError):
            parse_request_header(frame[:size])
    random = Random(version)
    for _ in range(500):
        mutated = bytearray(frame)
        mutated[random.randrange(len(frame))] = random.randrange(256)
        try:
            parse_request_header(mutated)
        except DecodeError:
            continue


@pytest.mark.parametrize(
    ("api_key", "version", "header"),
    [
        (ApiKey.PRODUCE, 8, b"\x00\x00\x00\x07"),
        (ApiKey.PRODUCE, 9, b"\x00\x00\x00\x07\x00"),
        (ApiKey.API_VERSIONS, 4, b"\x00\x00\x00\x07"),
        (ApiKey.SASL_HANDSHAKE, 1, b"\x00\x00\x00\x07"),
        (ApiKey.DESCRIBE_CLUSTER, 0, b"\x00\x00\x00\x07\x00"),
    ],
)
def test_a_response_header_has_the_version_of_its_response(
    api_key: ApiKey, version: int, header: bytes
) -> None:
    records = memoryview(b"records")
    segments = frame_response(api_key, version, 7, [bytearray(b"body"), records])
    assert segments[0] == (len(header) + 11).to_bytes(4) + header + b"body"
    assert segments[1] is records
    frame = _join(segments)[LENGTH_BYTES:]
    assert parse_response_header(frame, api_key, version) == (7, len(header))
    for size in range(len(header)):
        with pytest.raises(DecodeError):
            parse_response_header(frame[:size], api_key, version)


def test_an_empty_body_can_be_framed() -> None:
    assert _join(frame_response(ApiKey.HEARTBEAT, 0, 1, [])) == b"\0\0\0\4\0\0\0\1"


def test_a_frame_longer_than_an_int32_length_is_rejected() -> None:
    class Gigabytes:
        def __len__(self) -> int:
            return 2**31 - 4

    with pytest.raises(EncodeError):
        frame_response(ApiKey.FETCH, 4, 1, [bytearray(b""), Gigabytes()])
