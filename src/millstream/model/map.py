"""A persistent map: an immutable mapping whose changed copies share nearly all of its memory.

The items are distributed over buckets by the hashes of their keys. A bucket is a dict. A changed
copy has new buckets where items changed, and shares the other buckets. The number of buckets grows
with the map. So one change of a map with 100,000 items copies a few hundred items, and a lookup is
two steps.

    later = map.set(key, value)         # `map` does not change
    mutation = map.mutate()             # many changes at once
    mutation[key] = value
    del mutation[other]
    later = mutation.finish()

Iteration goes bucket by bucket. Its order depends on the hashes of the keys and on the order of the
changes. With a fixed PYTHONHASHSEED, two runs that make the same changes iterate in the same order.
"""

from __future__ import annotations

from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    ValuesView,
)
from itertools import chain
from typing import Any, Final, TypeVar, overload

_K = TypeVar("_K")
_V = TypeVar("_V")
_D = TypeVar("_D")

#: Largest average number of items per bucket. A change copies one bucket and the list of buckets.
_BUCKET_ITEMS_MAX: Final = 256


class Map(Mapping[_K, _V]):
    """An immutable mapping. Keys must be hashable; `hash(map)` also needs hashable values."""

    __slots__ = ("_buckets", "_count", "_hash")

    #: Their number is a power of two. The low bits of a key's hash select the bucket.
    _buckets: tuple[dict[_K, _V], ...]

    def __init__(self, items: Mapping[_K, _V] | Iterable[tuple[_K, _V]] = ()) -> None:
        given = dict(items)
        count = 1
        while len(given) > _BUCKET_ITEMS_MAX * count:
            count *= 2
        self._set_buckets(tuple(_spread([given], count)), len(given))

    def _set_buckets(self, buckets: tuple[dict[_K, _V], ...], count: int) -> None:
        self._buckets = buckets
        self._count = count
        self._hash: int | None = None

    @classmethod
    def _of(cls, buckets: tuple[dict[_K, _V], ...], count: int) -> Map[_K, _V]:
        made = cls.__new__(cls)
        made._set_buckets(buckets, count)  # noqa: SLF001
        return made

    # Reading

    def __getitem__(self, key: _K) -> _V:
        buckets = self._buckets
        return buckets[hash(key) & (len(buckets) - 1)][key]

    @overload
    def get(self, key: _K, /) -> _V | None: ...
    @overload
    def get(self, key: _K, /, default: _V | _D) -> _V | _D: ...
    def get(self, key: _K, /, default: Any = None) -> Any:
        buckets = self._buckets
        return buckets[hash(key) & (len(buckets) - 1)].get(key, default)

    def __contains__(self, key: object) -> bool:
        buckets = self._buckets
        return key in buckets[hash(key) & (len(buckets) - 1)]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_K]:
        return chain.from_iterable(self._buckets)

    def keys(self) -> KeysView[_K]:
        return KeysView(self)

    def values(self) -> ValuesView[_V]:
        return _Values(self)

    def items(self) -> ItemsView[_K, _V]:
        return _Items(self)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Map):
            return NotImplemented
        if self._count != other._count:
            return False
        if len(self._buckets) == len(other._buckets):
            # Shared buckets are the same object, so comparing them is cheap.
            return self._buckets == other._buckets
        return all(key in other and other[key] == value for key, value in self.items())

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.items()))
        return self._hash

    def __repr__(self) -> str:
        return f"Map({dict(self)!r})"

    # Changed copies

    def set(self, key: _K, value: _V) -> Map[_K, _V]:
        """Return a copy in which `key` has `value`."""
        mutation = self.mutate()
        mutation[key] = value
        return mutation.finish()

    def delete(self, key: _K) -> Map[_K, _V]:
        """Return a copy without `key`; KeyError if `key` is not in the map."""
        mutation = self.mutate()
        del mutation[key]
        return mutation.finish()

    def mutate(self) -> MapMutation[_K, _V]:
        """Return a mutable mapping with the items of this map; its `finish` returns the new map."""
        return MapMutation(self, self._buckets, self._count)


class _Values(ValuesView[_V]):
    _mapping: Map[Any, _V]

    def __iter__(self) -> Iterator[_V]:
        return chain.from_iterable(map(dict.values, self._mapping._buckets))  # noqa: SLF001


class _Items(ItemsView[_K, _V]):
    _mapping: Map[_K, _V]

    def __iter__(self) -> Iterator[tuple[_K, _V]]:
        return chain.from_iterable(map(dict.items, self._mapping._buckets))  # noqa: SLF001


class MapMutation(MutableMapping[_K, _V]):
    """A mutable mapping that collects changes to a map. It must not be used after `finish`."""

    __slots__ = ("_before", "_buckets", "_count", "_owned")

    def __init__(self, before: Map[_K, _V], buckets: tuple[dict[_K, _V], ...], count: int) -> None:
        self._before = before
        self._buckets = list(buckets)
        self._count = count
        #: Numbers of the buckets that no map shares. Only these may be changed in place.
        self._owned: set[int] = set()

    def __getitem__(self, key: _K) -> _V:
        return self._buckets[hash(key) & (len(self._buckets) - 1)][key]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_K]:
        return chain.from_iterable(self._buckets)

    def __setitem__(self, key: _K, value: _V) -> None:
        bucket = self._own(key)
        before = len(bucket)
        bucket[key] = value
        if len(bucket) != before:
            self._count += 1
            if self._count > _BUCKET_ITEMS_MAX * len(self._buckets):
                self._grow()

    def __delitem__(self, key: _K) -> None:
        del self._own(key)[key]
        self._count -= 1

    def _own(self, key: _K) -> dict[_K, _V]:
        number = hash(key) & (len(self._buckets) - 1)
        if number not in self._owned:
            self._owned.add(number)
            self._buckets[number] = dict(self._buckets[number])
        return self._buckets[number]

    def _grow(self) -> None:
        """Distribute the items over twice as many buckets."""
        self._buckets = _spread(self._buckets, 2 * len(self._buckets))
        self._owned = set(range(len(self._buckets)))

    def finish(self) -> Map[_K, _V]:
        """Return the changed map, or the original map if nothing was changed."""
        if not self._owned:
            return self._before
        return Map._of(tuple(self._buckets), self._count)  # noqa: SLF001


def _spread(buckets: list[dict[_K, _V]], count: int) -> list[dict[_K, _V]]:
    """Distribute the items of `buckets` over `count` new buckets."""
    spread: list[dict[_K, _V]] = [{} for _ in range(count)]
    for bucket in buckets:
        for key, value in bucket.items():
            spread[hash(key) & (count - 1)][key] = value
    return spread
