"""Frames with schema ids."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.schema_registry.frame import joined, message_indexes, parsed

GUID = uuid.UUID("5f3cb6f1-0f42-4b1d-9a4c-7a4e1f5d0b11")


@given(st.integers(0, 2**31 - 1), st.binary())
def test_ids_in_values(number: int, payload: bytes) -> None:
    assert parsed(b"\0" + number.to_bytes(4) + payload) == (number, payload)


def test_ids_in_headers() -> None:
    headers = [
        ("color", b"red"),
        ("__key_schema_id", b"k"),
        ("__value_schema_id", b"\1" + GUID.bytes),
    ]
    assert parsed(joined(b"payload", headers, "value")) == (GUID, b"payload")
    assert joined(b"payload", headers, "key") == b"kpayload"
    assert joined(b"payload", None, "value") == b"payload"
    assert joined(b"payload", [("__value_schema_id", None)], "value") == b"payload"


@pytest.mark.parametrize("data", [b"", b"\0\0\0\1", b"\1" + bytes(15), b"{}", b"\2" + bytes(30)])
def test_bytes_without_a_frame(data: bytes) -> None:
    with pytest.raises(ValueError, match="no schema id"):
        parsed(data)


def test_message_indexes() -> None:
    assert message_indexes(b"\0rest") == ([0], b"rest")
    assert message_indexes(b"\2\4rest") == ([2], b"rest")
    assert message_indexes(b"\4\2\0rest") == ([1, 0], b"rest")


@pytest.mark.parametrize("body", [b"", b"\4\2", b"\x80\x80", b"\xff\xff\xff\xff\xff\xff", b"\1"])
def test_message_indexes_that_are_not_complete(body: bytes) -> None:
    with pytest.raises(ValueError, match="message indexes"):
        message_indexes(body)
