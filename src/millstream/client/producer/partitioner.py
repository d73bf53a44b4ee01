"""Which partition a record goes to.

`by_key` is the default and librdkafka's work: Java's murmur2 of the key, so that all clients agree
where a key lives; records without a key stay together for a while and move on. `round_robin` and
functions of the application are asked here, with the key's bytes and the number of partitions.
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

#: What librdkafka calls the rule of `by_key`.
BY_KEY: Final = "murmur2_random"

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_WORD: Final = struct.Struct("<I")
#: As long as librdkafka keeps what it knows of a topic.
_COUNT_SECONDS_MAX: Final = 300.0


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Java's client, unsigned.

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
    """The partition of a key, as Java's client and librdkafka's `murmur2` choose it.

    >>> by_key(b"abc", 100)
    7
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def round_robin() -> PartitionFunction:
    """A function that gives each partition its turn, whatever the key."""
    turns = itertools.count()
    return lambda _key, partitions: next(turns) % partitions


def function_of(partitioner: Partitioner) -> PartitionFunction | None:
    """The function to ask, or None where librdkafka decides."""
    if partitioner == "key":
        return None
    if partitioner == "round_robin":
        return round_robin()
    if callable(partitioner):
        return partitioner
    raise UsageError(
        f"partitioner={partitioner!r} is unknown: give 'key', 'round_robin' or a function of the "
        "key's bytes and the number of partitions."
    )


class PartitionCounts:
    """How many partitions topics have, asked again when the response is old."""

    def __init__(self, ask: Callable[[str], int]) -> None:
        self._ask = ask
        self._known: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def known(self, topic: str) -> int | None:
        """The count, or None if it has to be asked for. Never waits."""
        known = self._known.get(topic)
        return known[0] if known is not None and time.monotonic() < known[1] else None

    def of(self, topic: str) -> int:
        """The count; waits for the brokers if it has to be asked for."""
        known = self.known(topic)
        if known is not None:
            return known
        with self._lock:
            # Another thread may have asked meanwhile.
            known = self.known(topic)
            if known is not None:
                return known
            count = self._ask(topic)
            self._known[topic] = (count, time.monotonic() + _COUNT_SECONDS_MAX)
        return count


def checked(chosen: int, topic: str, partitions: int) -> int:
    """What a partition function returned, if the topic has it."""
    if isinstance(chosen, int) and 0 <= chosen < partitions:
        return chosen
    raise UsageError(
        f"The partitioner chose {chosen!r} for topic {topic!r}, which has the partitions 0 to "
        f"{partitions - 1}."
    )
