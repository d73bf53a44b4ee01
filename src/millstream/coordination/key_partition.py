"""The partition that holds a group or a transactional id. Kafka uses the same function."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

#: Hashes of longer keys are not cached.
_CACHED_CHARACTERS_MAX: Final = 128


def partition_of(key: str, partition_count: int) -> int:
    """Return the absolute value of the key's Java hash code, modulo the partition count."""
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
    # The smallest 32-bit number has no absolute value; it becomes 0, as in Kafka.
    return (1 << 32) - code if code != 1 << 31 else 0


_cached_hash = lru_cache(maxsize=4096)(_hash)
