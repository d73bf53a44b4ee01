"""Spreads keys that are too hot for one partition over several.

    salting = Salting({b"celebrity"}, spread=4)
    place = salting.place(key, partitions=12)
    producer.produce(topic, value, key, partition=place.partition, headers=place.headers)

A key keeps its home partition unless it is hot. Then its records rotate through `spread`
partitions, starting with its home. The key itself does not change. A header holds the record's
turn: the producer, the record's number among that producer's records of the key, and the number of
partitions. `merging` is the consumer's side.

Where no order is needed, a `Salting` also works as the partitioner of a `Producer`.

Pure: it does no I/O and knows no client. Not thread-safe.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Container, Iterable
from typing import Final, NamedTuple, TypeAlias

from millstream.client.hot_keys.heavy_hitter import HeavyHitters
from millstream.client.producer.partitioner import by_key
from millstream.model.error import UsageError

#: Returns the partition of a key, given the number of partitions.
PartitionFunction: TypeAlias = Callable[[bytes, int], int]
Header: TypeAlias = tuple[str, bytes]

HEADER: Final = "millstream-turn"
SPREAD_MAX: Final = 1024
_SESSION_BYTES: Final = 8


class SaltedPlacement(NamedTuple):
    """The partition of a record, and the headers that it needs."""

    partition: int
    headers: list[Header]


class Turn(NamedTuple):
    """The number of a hot key's record."""

    #: The producer that numbers the records.
    session: str
    number: int
    #: The number of partitions in the rotation.
    spread: int

    @property
    def slot(self) -> int:
        """The position of the record's partition in the rotation."""
        return self.number % self.spread

    def encode(self) -> bytes:
        """Return the value of the header."""
        return f"{self.session}:{self.number}:{self.spread}".encode()

    @classmethod
    def decode(cls, data: bytes) -> Turn:
        """Return the turn of a header value. Raises ValueError if it is malformed."""
        session, number, spread = data.decode("ascii").split(":")
        turn = cls(session, int(number), int(spread))
        if turn.number < 0 or not 1 <= turn.spread <= SPREAD_MAX:
            raise ValueError(f"{data!r} is not a turn")
        return turn


def turn_of(headers: Iterable[tuple[str, bytes | None]] | None) -> Turn | None:
    """Return the turn in a record's headers; None if its key was not hot."""
    for name, value in headers or ():
        if name == HEADER and value is not None:
            return Turn.decode(value)
    return None


class HotKeys:
    """Learns which keys have at least `share` of the records, as far as that is certain.

    >>> hot = HotKeys(share=0.5, records_min=4)
    >>> [hot.observe(b"a") for _ in range(6)]
    [False, False, False, True, True, True]
    >>> hot.observe(b"b")
    False
    """

    def __init__(self, share: float = 0.05, records_min: int = 1000, window: int = 100_000) -> None:
        if not 0 < share <= 1:
            raise UsageError(f"share={share}: must be above 0 and at most 1")
        self._share = share
        self._records_min = records_min
        #: The number of records after which counting restarts.
        self._window = window
        #: Enough counters to be certain of every key with twice the share.
        self._capacity = int(1 / share) + 1
        self._counts: HeavyHitters[bytes] = HeavyHitters(self._capacity)

    def observe(self, key: bytes) -> bool:
        """Count a record. Returns whether its key is hot."""
        if self._counts.total >= self._window:
            self._counts = HeavyHitters(self._capacity)
        counts = self._counts
        counts.add(key)
        if counts.total < self._records_min:
            return False
        return counts.bounds(key).at_least >= self._share * counts.total


class Salting:
    """Chooses partitions for the records of one producer in one topic, and numbers those of hot
    keys.

    `hot` are keys, or `HotKeys`. A key that has become hot stays hot. `home` returns the partition
    of other keys. Its default is the rule of `Producer` and of Java's client; librdkafka uses the
    same rule with `partitioner=murmur2_random`. When the topic gets more partitions, keys get other
    homes. The order of records before and after that is lost, as for every key.
    """

    def __init__(
        self,
        hot: Container[bytes] | HotKeys,
        spread: int,
        home: PartitionFunction = by_key,
    ) -> None:
        if not 1 <= spread <= SPREAD_MAX:
            raise UsageError(f"spread={spread}: must be from 1 to {SPREAD_MAX}")
        self._is_hot = hot.observe if isinstance(hot, HotKeys) else hot.__contains__
        self._spread = spread
        self._home = home
        self._session = ""
        self._partitions = 0
        #: The number of each hot key's next record.
        self._next: dict[bytes, int] = {}
        self._keyless = itertools.count()

    def place(self, key: bytes | None, partitions: int) -> SaltedPlacement:
        """Return where a key's next record goes. Records without a key use all partitions in
        turn."""
        if partitions < 1:
            raise UsageError(f"partitions={partitions}: must be at least 1")
        if partitions != self._partitions:
            self._begin_session(partitions)
        if key is None:
            return SaltedPlacement(next(self._keyless) % partitions, [])
        home = self._home(key, partitions)
        is_hot = self._is_hot(key)
        number = self._next.get(key, 0)
        if not is_hot and not number:
            return SaltedPlacement(home, [])
        self._next[key] = number + 1
        turn = Turn(self._session, number, min(self._spread, partitions))
        # The first turn is at home, after the records from before the key was hot.
        return SaltedPlacement((home + turn.slot) % partitions, [(HEADER, turn.encode())])

    def __call__(self, key: bytes | None, partitions: int) -> int:
        """Return only the partition, for records that need no order."""
        return self.place(key, partitions).partition

    def _begin_session(self, partitions: int) -> None:
        self._partitions = partitions
        self._session = secrets.token_hex(_SESSION_BYTES)
        self._next.clear()
