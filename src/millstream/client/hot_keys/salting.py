"""Keys too hot for one partition: spread over several, and put in order again by who reads them.

    salting = Salting({b"celebrity"}, spread=4)
    place = salting.place(key, partitions=12)
    producer.produce(topic, value, key, partition=place.partition, headers=place.headers)

A key keeps its partition, its home, unless it is hot; then its records take turns in `spread`
partitions from its home on. The key itself stays as it is. A header tells the record's turn: which
producer wrote it, which number it has among that producer's records of the key, and over how many
partitions they are spread. `merging` has the reader's side.

Where no order is needed, a `Salting` is also a partitioner for `Producer`.

Pure: it does no I/O and knows no client. Not for several threads at once.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Container, Iterable
from typing import Final, NamedTuple, TypeAlias

from millstream.client.hot_keys.heavy_hitter import HeavyHitters
from millstream.client.producer.partitioner import by_key

#: The partition of a key among so many.
PartitionFunction: TypeAlias = Callable[[bytes, int], int]
Header: TypeAlias = tuple[str, bytes]

HEADER: Final = "millstream-turn"
SPREAD_MAX: Final = 1024
_SESSION_BYTES: Final = 8


class Place(NamedTuple):
    """Where a record goes, and the headers that it needs there."""

    partition: int
    headers: list[Header]


class Turn(NamedTuple):
    """Which of a hot key's records one is."""

    #: The producer that numbers them.
    session: str
    number: int
    #: How many partitions take turns.
    spread: int

    @property
    def lane(self) -> int:
        """Which of those partitions has the record."""
        return self.number % self.spread

    def encode(self) -> bytes:
        return f"{self.session}:{self.number}:{self.spread}".encode()

    @classmethod
    def decode(cls, data: bytes) -> Turn:
        """Raises ValueError for what `encode` did not make."""
        session, number, spread = data.decode("ascii").split(":")
        turn = cls(session, int(number), int(spread))
        if turn.number < 0 or not 1 <= turn.spread <= SPREAD_MAX:
            raise ValueError(f"{data!r} is no turn")
        return turn


def turn_of(headers: Iterable[tuple[str, bytes | None]] | None) -> Turn | None:
    """The turn among a record's headers; None of a record whose key was not hot."""
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
            raise ValueError(f"a share of {share}; it must be above 0 and at most 1")
        self._share = share
        self._records_min = records_min
        #: Records after which counting begins anew.
        self._window = window
        #: Counters enough to be certain of every key that has twice the share.
        self._capacity = int(1 / share) + 1
        self._counts: HeavyHitters[bytes] = HeavyHitters(self._capacity)

    def observe(self, key: bytes) -> bool:
        """Count a record; whether its key is hot."""
        if self._counts.total >= self._window:
            self._counts = HeavyHitters(self._capacity)
        counts = self._counts
        counts.add(key)
        if counts.total < self._records_min:
            return False
        return counts.bounds(key).at_least >= self._share * counts.total


class Salting:
    """Places the records of one producer in one topic: those of hot keys are numbered.

    `hot` are keys, or `HotKeys`. A key that has become hot stays so. `home` says where a key lives
    that is not. The default is the rule of `Producer` and of Java's client, so that they agree;
    bare librdkafka agrees with `partitioner=murmur2_random`. When the topic gets more partitions,
    keys get other homes, and the order of before and after is lost, as it is for every key."""

    def __init__(
        self,
        hot: Container[bytes] | HotKeys,
        spread: int,
        home: PartitionFunction = by_key,
    ) -> None:
        if not 1 <= spread <= SPREAD_MAX:
            raise ValueError(f"a spread of {spread}; it must be from 1 to {SPREAD_MAX}")
        self._is_hot = hot.observe if isinstance(hot, HotKeys) else hot.__contains__
        self._spread = spread
        self._home = home
        self._session = ""
        self._partitions = 0
        #: The number of the next record of each hot key.
        self._next: dict[bytes, int] = {}
        self._keyless = itertools.count()

    def place(self, key: bytes | None, partitions: int) -> Place:
        """Where the next record of a key goes. Records without a key take turns everywhere."""
        if partitions < 1:
            raise ValueError(f"{partitions} partitions; a topic has at least one")
        if partitions != self._partitions:
            self._begin_session(partitions)
        if key is None:
            return Place(next(self._keyless) % partitions, [])
        home = self._home(key, partitions)
        is_hot = self._is_hot(key)
        number = self._next.get(key, 0)
        if not is_hot and not number:
            return Place(home, [])
        self._next[key] = number + 1
        turn = Turn(self._session, number, min(self._spread, partitions))
        # The first turn is at home, behind the records from before the key was hot.
        return Place((home + turn.lane) % partitions, [(HEADER, turn.encode())])

    def __call__(self, key: bytes | None, partitions: int) -> int:
        """Only the partition, for who needs no order among a hot key's records."""
        return self.place(key, partitions).partition

    def _begin_session(self, partitions: int) -> None:
        self._partitions = partitions
        self._session = secrets.token_hex(_SESSION_BYTES)
        self._next.clear()
