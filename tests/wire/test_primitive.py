from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.wire.primitive import (
    DecodeError,
    EncodeError,
    encode_uvarint,
    read_uvarint,
    skip_tags,
)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3))
def test_a_varint_is_decoded_to_its_value(value: int, around: bytes) -> None:
    encoded = encode_uvarint(value)
    assert read_uvarint(around + encoded + around, len(around)) == (
        value,
        len(around) + len(encoded),
    )


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (2**32 - 1, b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_the_bytes_of_a_varint(value: int, encoded: bytes) -> None:
    assert encode_uvarint(value) == encoded


@pytest.mark.parametrize("encoded", [b"", b"\x80", b"\xff\xff\xff\xff", b"\x80" * 5 + b"\x00"])
def test_an_incomplete_varint_is_rejected(encoded: bytes) -> None:
    with pytest.raises(DecodeError):
        read_uvarint(encoded, 0)


@pytest.mark.parametrize("value", [-1, 2**32])
def test_a_number_out_of_range_of_a_varint_is_rejected(value: int) -> None:
    with pytest.raises(EncodeError):
        encode_uvarint(value)


def test_a_tag_section_is_skipped() -> None:
    section = b"\x02" + b"\x00\x01a" + b"\x81\x01\x02bc"
    assert skip_tags(section + b"rest", 1, 2) == len(section)


@pytest.mark.parametrize("section", [b"\x01", b"\x01\x00", b"\x01\x00\x02a", b"\x02\x00\x01a"])
def test_a_tag_section_past_the_end_is_rejected(section: bytes) -> None:
    with pytest.raises(DecodeError):
        skip_tags(section, 1, section[0])
