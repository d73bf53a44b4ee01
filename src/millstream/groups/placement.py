"""Which partition of `__consumer_offsets` a group lives in: the same as in Kafka."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"

#: Only ids of ordinary length are remembered.
_CACHED_CHARACTERS_MAX: Final = 128


def partition_of(group_id: str, partition_count: int) -> int:
    """The group id's hash code as Java defines it, without its sign, modulo the count."""
    if len(group_id) <= _CACHED_CHARACTERS_MAX:
        return _cached_hash(group_id) % partition_count
    return _hash(group_id) % partition_count


def _hash(text: str) -> int:
    code = 0
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    for unit in units:
        code = (31 * code + unit) & 0xFFFFFFFF
    if code < 1 << 31:
        return code
    # The absolute value of a negative 32-bit number; the smallest has none and counts as 0.
    return (1 << 32) - code if code != 1 << 31 else 0


_cached_hash = lru_cache(maxsize=4096)(_hash)
