"""Which partition of its topic a group or a transactional id lives in: the same as in Kafka."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

#: Only ids of ordinary length are remembered.
_CACHED_CHARACTERS_MAX: Final = 128


def partition_of(key: str, partition_count: int) -> int:
    """The key's hash code as Java defines it, without its sign, modulo the count."""
    if len(key) <= _CACHED_CHARACTERS_MAX:
        return _cached_hash(key) % partition_count
    return _hash(key) % partition_count


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
