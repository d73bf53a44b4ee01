"""The port to the cluster's metadata: a small, strongly consistent, watchable key-value store.

Owns the interface and what every implementation promises; knows nothing of topics or brokers.
Keys are text relative to the cluster (`topics/orders`), values are opaque bytes.

What every store promises:
- Revisions: the store counts. Each transaction that changes something gets the next number and
  stamps it on every key it puts. A store that was never changed is at revision 0 or 1.
- `transact` is atomic, and durable when it returns; one whose compares fail changes nothing.
- `get` and `range` see every transaction that had returned before they were called, and `range`
  sees one instant.
- `watch` gives every change from a revision on, in order, no transaction split or repeated. One
  that asks for changes no longer kept raises `CompactedError`; the caller ranges again.
- A key put with a lease is deleted when the lease is revoked, or not kept alive for its time. A
  store may round that time up, and after a fault of its own it may begin anew: never sooner.
- A store that cannot be reached fails calls after a bounded time, with `UnavailableError`, or with
  `UncertainError` where the transaction may have been made all the same. A watch waits instead,
  and goes on where it was.
- Cancelling a call gives up waiting for it. What it asked for may still happen.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

LeaseId: TypeAlias = int


class StoreError(Exception):
    """The store could not do what was asked; the message says why."""


class UnavailableError(StoreError):
    """The store could not be reached, and nothing was changed. Later it may work again."""


class UncertainError(StoreError):
    """The store was lost in the middle of a transaction, which may have been made or not."""


class StoreClosedError(StoreError):
    """The store was closed before or during the call."""


class LeaseExpiredError(StoreError):
    """The lease is gone, and the keys that were put with it."""

    def __init__(self, lease: LeaseId) -> None:
        super().__init__(f"lease {lease} has expired or was revoked")
        self.lease = lease


class CompactedError(StoreError):
    """Changes from the wanted revision on are no longer kept."""

    def __init__(self, wanted: int, oldest: int) -> None:
        super().__init__(
            f"changes from revision {wanted} on are no longer kept; the oldest kept is {oldest}"
        )
        self.wanted = wanted
        self.oldest = oldest


class KeyValue(NamedTuple):
    key: str
    value: bytes
    #: The revision of the transaction that put it last.
    revision: int


class Range(NamedTuple):
    #: The store's revision at the instant that `items` shows.
    revision: int
    #: In order of the keys.
    items: list[KeyValue]


class Compare(NamedTuple):
    """Holds if the key's last revision is this one; 0 holds if there is no such key."""

    key: str
    revision: int


class ValueIs(NamedTuple):
    """Holds if the key is there with exactly this value, whichever revision put it."""

    key: str
    value: bytes


Condition: TypeAlias = Compare | ValueIs


class Put(NamedTuple):
    key: str
    value: bytes
    #: Deletes the key when this lease ends; a put without one detaches the key.
    lease: LeaseId | None = None


class Delete(NamedTuple):
    """A missing key is fine."""

    key: str


Change: TypeAlias = Put | Delete


class Outcome(NamedTuple):
    #: Whether every compare held. If not, nothing was changed.
    succeeded: bool
    #: The transaction's own revision; if it changed nothing, the store's at that instant.
    revision: int


class Event(NamedTuple):
    key: str
    #: None where the key was deleted.
    value: bytes | None
    revision: int


class Events(NamedTuple):
    """A stretch of changes, in order; with it the watcher knows all up to `revision`.

    There may be none: then it is only news that nothing else has changed."""

    revision: int
    events: list[Event]


class MetadataStore(Protocol):
    @property
    def changes_max(self) -> int:
        """How many changes one transaction may hold, and how many compares."""
        ...

    async def get(self, key: str) -> KeyValue | None: ...

    async def range(self, prefix: str) -> Range: ...

    async def transact(self, compares: Sequence[Condition], changes: Sequence[Change]) -> Outcome:
        """Make all of `changes` if all of `compares` hold. No key may be changed twice."""
        ...

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Events, None]:
        """Changes of keys that begin with `prefix`, from that revision on, without an end."""
        ...

    async def grant(self, ttl_ms: int) -> LeaseId: ...

    async def keep_alive(self, lease: LeaseId) -> None:
        """Start the lease's time anew; LeaseExpiredError if it has run out."""
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """End the lease now; one that is gone is fine."""
        ...

    async def close(self) -> None: ...
