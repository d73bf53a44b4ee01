"""The latest offset of each key, in a hash table of fixed size.

A key is stored as a 16-byte BLAKE2b digest, so the memory depends only on the number of slots. Two
keys with the same digest would replace each other; with 128 bits of a collision-resistant hash that
is not expected to happen.

Table: an array of unsigned 64-bit words, three per slot: both halves of the digest, and the offset
plus one (0 marks a free slot). The number of slots is a prime. A collision moves the search on by a
step taken from the digest (double hashing), so that a table that is nine tenths full needs at most
ten probes on average. Nothing is ever removed.

Memory: the table starts small and grows fourfold when it is full, so a log with few keys costs
little. The last two sizes together are the whole budget, because both exist while keys move: at
most four fifths of the budget hold keys.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from struct import Struct
from typing import Final

SLOT_BYTES: Final = 24
_SLOTS_MIN: Final = 3
#: Tables up to this size are allocated at once and never grow.
_SLOTS_FIRST_MAX: Final = 4096
_GROWTH: Final = 4
_WORDS: Final = 3

_digest_words = Struct("<QQ").unpack


class OffsetMap:
    """Latest offset by key. `put` rejects a new key once the map holds `capacity` keys.

    `end_offset` is the first offset that was not added. The caller sets it.
    """

    __slots__ = ("_load_factor", "_room", "_sizes", "_slots", "_table", "end_offset", "size")

    def __init__(self, slots_max: int, load_factor: float = 0.9) -> None:
        if slots_max < _SLOTS_MIN or not 0 < load_factor <= 1:
            raise ValueError(
                f"an offset map of {slots_max} slots filled to {load_factor} cannot work"
            )
        self._load_factor = load_factor
        #: The sizes that the table may grow to, the next one last.
        self._sizes = _table_sizes(slots_max)
        self.size = 0
        self.end_offset = 0
        self._begin_table(self._sizes.pop())

    def _begin_table(self, slots: int) -> None:
        self._slots = slots
        self._room = _room(slots, self._load_factor)
        self._table = array("Q", (0,)) * (slots * _WORDS)

    @property
    def capacity(self) -> int:
        """Most keys that the map can hold."""
        return _room(self._sizes[0] if self._sizes else self._slots, self._load_factor)

    @property
    def is_full(self) -> bool:
        return self.size >= self.capacity

    @property
    def memory_bytes(self) -> int:
        return len(self._table) * self._table.itemsize

    def put(self, key: bytes, offset: int) -> bool:
        """Set the latest offset of `key`. Returns False and changes nothing if the map is full."""
        first, second = _digest_words(blake2b(key, digest_size=16).digest())
        table = self._table
        at = self._find(first, second)
        if table[at + 2] == 0:
            if self.size >= self._room:
                if not self._sizes:
                    return False
                self._grow()
                return self.put(key, offset)
            self.size += 1
            table[at] = first
            table[at + 1] = second
        table[at + 2] = offset + 1
        return True

    def get(self, key: bytes) -> int:
        """Return the latest offset of `key`; -1 for an unknown key."""
        at = self._find(*_digest_words(blake2b(key, digest_size=16).digest()))
        return self._table[at + 2] - 1

    def _grow(self) -> None:
        old = self._table
        self._begin_table(self._sizes.pop())
        table = self._table
        for at in range(0, len(old), _WORDS):
            if old[at + 2]:
                to = self._find(old[at], old[at + 1])
                table[to : to + _WORDS] = old[at : at + _WORDS]

    def _find(self, first: int, second: int) -> int:
        """Return the index of the slot with this digest, or of the free slot for it."""
        table = self._table
        slots = self._slots
        slot = first % slots
        at = slot * _WORDS
        if table[at + 2] == 0 or (table[at] == first and table[at + 1] == second):
            return at
        step = 1 + second % (slots - 1)
        while True:
            slot = (slot + step) % slots
            at = slot * _WORDS
            if table[at + 2] == 0 or (table[at] == first and table[at + 1] == second):
                return at


def slots_for(keys_max: int, buffer_bytes: int, load_factor: float) -> int:
    """Return the number of slots for `keys_max` keys within `buffer_bytes`."""
    # A quarter more for growth, and a sixteenth because the size must be a prime.
    wanted = int(keys_max / load_factor * (1 + 1 / _GROWTH) * (1 + 1 / 16)) + 16
    return max(_SLOTS_MIN, min(wanted, buffer_bytes // SLOT_BYTES))


def _room(slots: int, load_factor: float) -> int:
    # One slot stays free: it ends the search for an unknown key.
    return max(1, min(int(slots * load_factor), slots - 1))


def _table_sizes(slots_max: int) -> list[int]:
    """Return the sizes of a growing table, last first: primes, two neighbours within budget."""
    if slots_max <= _SLOTS_FIRST_MAX:
        return [_prime_up_to(slots_max)]
    sizes = [_prime_up_to(slots_max * _GROWTH // (_GROWTH + 1))]
    while sizes[-1] > _SLOTS_FIRST_MAX:
        sizes.append(_prime_up_to(sizes[-1] // _GROWTH))
    return sizes


def _prime_up_to(limit: int) -> int:
    """Return the greatest prime up to `limit`."""
    candidate = limit if limit % 2 or limit == 2 else limit - 1
    while not _is_prime(candidate):
        candidate -= 2
    return candidate


def _is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    if number % 2 == 0:
        return False
    divisor = 3
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 2
    return True
