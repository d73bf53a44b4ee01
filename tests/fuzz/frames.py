"""Request frames for every API in every version, valid and damaged.

A frame is built from its schema with values that are likely to matter, encoded, and in most cases
damaged. `is_fatal` returns whether the broker can only close the connection, so that the sender
knows which frames of a pipeline the broker handles.
"""

from __future__ import annotations

import random
from typing import Any

from fuzz.batches import BatchSource
from harness.raw.raw_client import encode_frame
from millstream.broker.handlers import ENTRIES, TELEMETRY_ENTRIES
from millstream.model.config import definitions
from millstream.wire.field import Array, Bytes, Fixed, Kind, Spec, String, Struct, specs_of
from millstream.wire.framing import parse_request_header
from millstream.wire.schema import codec

REQUESTS = {int(entry.request.api_key): entry.request for entry in ENTRIES + TELEMETRY_ENTRIES}
TOPICS = [f"fuzz-{n}" for n in range(8)]
COMPACTED_TOPIC = TOPICS[0]

_EACH = 6
_INTS = (0, 0, 1, 1, 2, 3, 5, 100, -1, -2, -3, -4, 1000, 65_536, 2**31 - 1, -(2**31))
_LONGS = (*_INTS, 2**63 - 1, -(2**63), 1_700_000_000_000)
_TEXTS = (
    "",
    "a b",
    "\0",
    "x" * 300,
    "ż" * 40,
    "../..",
    "__consumer_offsets",
    "-1",
    "true",
    "compact",
)
_SPLICES = (b"\xff", b"\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\xff" * 10, b"\x80" * 5)
_FIXED = {"b": 8, "h": 16, "i": 32, "q": 64, "H": 16, "I": 32}


class FrameSource:
    """Creates frames without end; `seed` and the topic ids alone decide."""

    def __init__(self, seed: int, topic_ids: list[bytes]) -> None:
        self._chance = random.Random(seed)
        self._batches = BatchSource(self._chance)
        self._topic_ids = [*topic_ids, bytes(16), b"\xff" * 16]
        self._corpus = [
            encode_frame(self._message(shape, version), version, 7, "fuzz")
            for shape in REQUESTS.values()
            for version in range(shape.versions[0], shape.versions[1] + 1)
            for _ in range(_EACH)
        ]

    def next(self) -> bytes:
        """Return a frame with its length; most frames are damaged."""
        chance = self._chance
        if chance.random() < 0.15:
            return self._fresh_produce()
        frame = chance.choice(self._corpus)
        damage = chance.random()
        if damage < 0.30:
            return frame
        if damage < 0.60:
            return self._flip(bytearray(frame))
        if damage < 0.75:
            return self._splice(frame)
        if damage < 0.87:
            body = frame[4:]
            return _framed(body[: chance.randrange(len(body))])
        if damage < 0.93:
            return _framed(frame[4:] + chance.randbytes(chance.randint(1, 40)))
        if damage < 0.97:
            return _framed(chance.randbytes(chance.randint(1, 200)))
        return self._lying_length(frame)

    def _fresh_produce(self) -> bytes:
        shape = REQUESTS[0]
        version = self._chance.randint(*shape.versions)
        message = self._message(shape, version)
        message.acks = self._chance.choice((1, 1, 1, -1, 0, 5))
        message.transactional_id = None
        return encode_frame(message, version, 7, "fuzz")

    def _flip(self, frame: bytearray) -> bytes:
        """Flip a few bits after the length and the API key."""
        chance = self._chance
        for _ in range(chance.randint(1, 3)):
            position = chance.randrange(min(6, len(frame) - 1), len(frame))
            frame[position] ^= 1 << chance.randrange(8)
        return bytes(frame)

    def _splice(self, frame: bytes) -> bytes:
        chance = self._chance
        body = frame[4:]
        position = chance.randrange(len(body))
        new = chance.choice((*_SPLICES, chance.randbytes(4), chance.choice(self._corpus)[8:40]))
        skip = chance.choice((0, len(new)))
        return _framed(body[:position] + new + body[position + skip :])

    def _lying_length(self, frame: bytes) -> bytes:
        size = self._chance.choice((0, -1, -(2**31), 2**31 - 1, 1 << 27, 3))
        return size.to_bytes(4, signed=True) + frame[4:]

    # Messages from their schemas

    def _message(self, shape: Any, version: int) -> Any:
        fields = {
            name: self._field(shape, name, spec, version)
            for name, spec in specs_of(shape)
            if spec.is_in(version)
        }
        return shape(**fields)

    def _field(self, shape: Any, name: str, spec: Spec, version: int) -> Any:
        chance = self._chance
        is_optional = spec.default is None and (spec.is_nullable(version) or spec.tag is not None)
        if is_optional and chance.random() < 0.25:
            return None
        if name in ("max_wait_ms", "timeout_ms"):
            return chance.choice((0, 0, 1, 5, 50, -1, 2**31 - 1))
        if name in ("partition", "partition_index", "index"):
            return chance.choice((0, 0, 0, 1, 2, -1, 2**31 - 1))
        if name in ("num_partitions", "count", "replication_factor", "resource_type"):
            return chance.choice((1, 1, 2, 3, 4, -1, 0, 127))
        if name == "name" and "Config" in shape.__qualname__:
            return chance.choice((*definitions, "", "nonsense"))
        if name in ("validate_only", "allow_auto_topic_creation"):
            return chance.random() < 0.5
        return self._value(spec.kind, version)

    def _value(self, kind: Kind, version: int) -> Any:
        chance = self._chance
        match kind:
            case Fixed("?", _):
                return chance.random() < 0.5
            case Fixed("d", _):
                return chance.random()
            case Fixed("16s", _):
                return chance.choice(self._topic_ids)
            case Fixed(letter, _):
                return self._integer(letter)
            case String():
                is_topic = chance.random() < 0.7
                return chance.choice(TOPICS if is_topic else _TEXTS)
            case Bytes():
                return self._batches.next()
            case Array(element):
                count = chance.choice((0, 1, 1, 1, 2, 3, 12))
                return [self._value(element, version) for _ in range(count)]
            case Struct(shape):
                return self._message(shape, version)

    def _integer(self, letter: str) -> int:
        bits = _FIXED[letter]
        value = self._chance.choice(_LONGS if bits == 64 else _INTS)
        if letter.isupper():
            return value % (1 << bits)
        return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def is_fatal(frame: bytes) -> bool:
    """Return whether no later frame of the connection can get a response."""
    if int.from_bytes(frame[:4], signed=True) != len(frame) - 4 or len(frame) == 4:
        return True
    try:
        header = parse_request_header(frame[4:])
        request = REQUESTS.get(header.api_key)
        if request is None:
            return True
        if not request.versions[0] <= header.api_version <= request.versions[1]:
            return bool(header.api_key != 18)
        message = codec(request, header.api_version).decode(frame[4:], header.body_position)
    except ValueError:
        return True
    return header.api_key == 0 and message.acks == 0
