from __future__ import annotations

import pytest

from millstream.coordination.key_partition import partition_of


@pytest.mark.parametrize(
    ("group_id", "code"),
    [
        ("", 0),
        ("a", 97),
        ("test", 3556498),
        ("console-consumer-1", None),
        # The hash code is the smallest 32-bit number; Kafka uses 0 as its absolute value.
        ("polygenelubricants", 0),
        ("\U0001f600", None),
        ("x" * 1000, None),
    ],
)
def test_partitions_are_those_of_java_hash_codes(group_id: str, code: int | None) -> None:
    if code is None:
        code = java_hash(group_id)
    for count in (1, 7, 50):
        assert partition_of(group_id, count) == code % count


def java_hash(text: str) -> int:
    """A second implementation: signed arithmetic on the units of big-endian UTF-16."""
    raw = text.encode("utf-16-be")
    code = 0
    for high, low in zip(raw[::2], raw[1::2], strict=True):
        code = (code * 31 + (high << 8 | low) + 2**31) % 2**32 - 2**31
    return abs(code)
