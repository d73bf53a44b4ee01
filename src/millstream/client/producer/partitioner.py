"""Which partition a record goes to.

librdkafka applies the default, `by_key`: Java's murmur2 of the key, so that all clients choose the
same partition. Records without a key stay in one partition for a while and then change to another.
`round_robin` and functions of the application are called here, with the key's bytes and the number
of partitions.
"""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from millstream.client.error import UsageError

PartitionFunction: TypeAlias = Callable[[bytes | None, int], int]
Partitioner: TypeAlias = Literal["key", "round_robin"] | PartitionFunction

#: librdkafka's name of the rule of `by_key`.
BY_KEY: Final = "murmur2_random"

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_WORD: Final = struct.Struct("<I")
#: As long as librdkafka caches topic metadata.
_COUNT_S_MAX: Final = 300.0


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash of Java's client, unsigned.

    >>> murmur2(b"abc")
    479470107
    """
    length = len(data)
    digest = _SEED ^ length
    whole = length & ~3
    for (word,) in _WORD.iter_unpack(data[:whole]):
        word = word * _MULTIPLIER & _MASK
        word ^= word >> 24
        digest = (digest * _MULTIPLIER & _MASK) ^ (word * _MULTIPLIER & _MASK)
    if length > whole:
        digest ^= int.from_bytes(data[whole:], "little")
        digest = digest * _MULTIPLIER & _MASK
    digest ^= digest >> 13
    digest = digest * _MULTIPLIER & _MASK
    return digest ^ digest >> 15


def by_key(key: bytes, partitions: int) -> int:
    """Return the partition of a key, as Java's client and librdkafka's `murmur2` choose it.

    >>> by_key(b"abc", 100)
    7
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def round_robin() -> PartitionFunction:
    """Return a function that cycles through the partitions."""
    turns = itertools.count()
    return lambda _key, partitions: next(turns) % partitions


def function_of(partitioner: Partitioner) -> PartitionFunction | None:
    """Return the function that chooses partitions, or None where librdkafka chooses."""
    if partitioner == "key":
        return None
    if partitioner == "round_robin":
        return round_robin()
    if callable(partitioner):
        return partitioner
    raise UsageError(
        f"partitioner={partitioner!r} is unknown: use 'key', 'round_robin' or a function of the "
        "key's bytes and the number of partitions."
    )


class PartitionCounts:
    """Caches the number of partitions of topics."""

    def __init__(self, fetch: Callable[[str], int]) -> None:
        self._fetch = fetch
        self._known: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def known(self, topic: str) -> int | None:
        """Return the cached count, or None if it has to be fetched. Never waits."""
        known = self._known.get(topic)
        return known[0] if known is not None and time.monotonic() < known[1] else None

    def of(self, topic: str) -> int:
        """Return the count; wait for the brokers if it is not cached."""
        known = self.known(topic)
        if known is not None:
            return known
        with self._lock:
            # Another thread may have fetched it meanwhile.
            known = self.known(topic)
            if known is not None:
                return known
            count = self._fetch(topic)
            self._known[topic] = (count, time.monotonic() + _COUNT_S_MAX)
        return count


def checked_partition(chosen: int, topic: str, partitions: int) -> int:
    """Return a partition function's result if the topic has that partition; raise otherwise."""
    if isinstance(chosen, int) and 0 <= chosen < partitions:
        return chosen
    raise UsageError(
        f"The partitioner chose {chosen!r} for topic {topic!r}, which has the partitions 0 to "
        f"{partitions - 1}."
    )
