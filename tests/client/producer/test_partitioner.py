"""Keys go to the partitions that the Java client chooses."""

from __future__ import annotations

import pytest

from millstream.client.producer.partitioner import by_key, murmur2


@pytest.mark.parametrize(
    ("key", "digest"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_matches_the_java_client(key: bytes, digest: int) -> None:
    assert murmur2(key) == digest & 0xFFFFFFFF
    assert by_key(key, 7) == (digest & 0x7FFFFFFF) % 7
