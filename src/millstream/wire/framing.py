"""Frames and headers of requests and responses.

    frame            length (int32), then that many bytes: header, body
    request header   api_key int16, api_version int16, correlation_id int32,
                     client_id nullable string with a 16-bit length in every version,
                     and, if the request is flexible (header version 2), a tag section
    response header  correlation_id int32 and, if the response is flexible (header version 1),
                     a tag section; for ApiVersions the header version is always 0

`net.connection` splits the stream of bytes into frames.
"""

from __future__ import annotations

from codecs import utf_8_decode
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

from millstream.model.sentinel import INT32_MAX
from millstream.wire.api import ApiKey, flexible_from
from millstream.wire.primitive import Buffer, DecodeError, EncodeError, fail_length, skip_tags
from millstream.wire.schema import Segment

#: Size of the length of a frame, which the length does not include.
LENGTH_BYTES: Final = 4

#: The shortest header: key, version, correlation id, null client id.
_HEADER_BYTES_MIN: Final = 10

_REQUEST_HEADER: Final = Struct(">hhih")
_RESPONSE_PREFIX: Final = Struct(">ii")
_RESPONSE_PREFIX_TAGGED: Final = Struct(">iix")
_INT32: Final = Struct(">i")


class RequestHeader(NamedTuple):
    """The header of a request, and the position of the body in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def parse_request_header(frame: Buffer, position: int = 0) -> RequestHeader:
    """Parse the header of a request, whose frame without its length starts at `position`."""
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame, position)
        position += _HEADER_BYTES_MIN
        client_id = None
        if length >= 0:
            end = position + length
            if end > len(frame):
                fail_length(length, position, len(frame))
            client_id, _ = utf_8_decode(frame[position:end], "strict", True)
            position = end
        if api_version >= flexible_from(api_key):
            tag_count = frame[position]
            position += 1
            if tag_count:
                position = skip_tags(frame, position, tag_count)
    except (StructError, IndexError, UnicodeDecodeError) as problem:
        raise DecodeError(f"not a valid request header: {problem}") from problem
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def frame_response(
    api_key: int, api_version: int, correlation_id: int, body: list[Segment]
) -> list[Segment]:
    """Return the encoded `body` with the length and header of the frame in front.

    The list is modified in place: the header becomes part of the first segment.
    """
    if api_version >= flexible_from(api_key) and api_key != ApiKey.API_VERSIONS:
        prefix = _RESPONSE_PREFIX_TAGGED
    else:
        prefix = _RESPONSE_PREFIX
    length = sum(map(len, body)) + prefix.size - LENGTH_BYTES
    return _prepend(prefix.pack(_checked(length), correlation_id), body)


def frame_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, body: list[Segment]
) -> list[Segment]:
    """Return the encoded `body` of a request with the length and header of the frame in front."""
    name = b"" if client_id is None else client_id.encode()
    name_length = -1 if client_id is None else len(name)
    header = _REQUEST_HEADER.pack(api_key, api_version, correlation_id, name_length) + name
    if api_version >= flexible_from(api_key):
        header += b"\0"
    length = sum(map(len, body)) + len(header)
    return _prepend(_INT32.pack(_checked(length)) + header, body)


def parse_response_header(frame: Buffer, api_key: int, api_version: int) -> tuple[int, int]:
    """Return the correlation id of a response frame and the position of its body."""
    try:
        (correlation_id,) = _INT32.unpack_from(frame)
        position = _INT32.size
        if api_version >= flexible_from(api_key) and api_key != ApiKey.API_VERSIONS:
            tag_count = frame[position]
            position += 1
            if tag_count:
                position = skip_tags(frame, position, tag_count)
    except (StructError, IndexError) as problem:
        raise DecodeError(f"not a valid response header: {problem}") from problem
    return correlation_id, position


def _prepend(prefix: bytes, body: list[Segment]) -> list[Segment]:
    if body and isinstance(body[0], bytearray):
        body[0] = prefix + body[0]
    else:
        body.insert(0, prefix)
    return body


def _checked(length: int) -> int:
    if length > INT32_MAX:
        raise EncodeError(f"a frame of {length} bytes is longer than the protocol allows")
    return length
