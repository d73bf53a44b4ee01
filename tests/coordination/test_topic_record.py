"""Keys of coordinators' topics: known kinds, unknown kinds, damage."""

from __future__ import annotations

import pytest

from millstream.coordination.topic_record import DamagedRecordError, decode_key
from millstream.wire.field import string
from millstream.wire.schema import Versioned, encode_prefixed, versioned


@versioned(versions=(3, 4))
class ExampleKey(Versioned):
    name: str = string()


KEY_OF_KIND = {3: ExampleKey, 4: ExampleKey}


@pytest.mark.parametrize("kind", [3, 4])
def test_a_key_of_a_known_kind(kind: int) -> None:
    encoded = encode_prefixed(ExampleKey(name="a"), kind)
    assert decode_key(encoded, KEY_OF_KIND) == ExampleKey(name="a")


def test_the_fields_of_an_unknown_kind_are_not_read() -> None:
    assert decode_key(b"\x00\x05\xff", KEY_OF_KIND) == 5


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "a key of 0 bytes is too short"),
        (b"\x00", "a key of 1 bytes is too short"),
        (b"\x00\x03", "a key of kind 3 is damaged"),
        (b"\x00\x03\x00\x05ab", "a key of kind 3 is damaged"),
    ],
)
def test_damaged_keys_are_rejected(encoded: bytes, reason: str) -> None:
    with pytest.raises(DamagedRecordError, match=reason):
        decode_key(encoded, KEY_OF_KIND)
