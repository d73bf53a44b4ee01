"""The interface of the metadata store: a small, strongly consistent key-value store with watches.

Owns the interface and the guarantees of every implementation. It does not know topics or brokers.
Keys are text relative to the cluster (`topics/orders`), values are opaque bytes.

Guarantees:
- Revisions: each transaction that changes something gets the next revision, which is also the
  revision of every key that it puts. A new store is at revision 0 or 1.
- `transact` is atomic, and durable when it returns. If a condition fails, nothing is changed.
- `get` and `range` see every transaction that returned before the call. `range` sees one revision.
- `watch` yields every change from a revision on, in order. No transaction is split or repeated. If
  the changes are no longer kept, it raises `CompactedError`, and the caller calls `range` again.
- A key put with a lease is deleted when the lease is revoked or expires. A store may round the
  lease's lifetime up, and may restart it after a fault of its own. It never shortens it.
- If the store is unreachable, calls fail after a bounded time with `UnavailableError`, or with
  `UncertainError` if the transaction may have been stored. A watch waits and then continues.
- Cancelling a call stops the wait. The transaction may still be stored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

LeaseId: TypeAlias = int


class MetadataStoreError(Exception):
    """A call of the store failed; the message says why."""


class UnavailableError(MetadataStoreError):
    """The store is unreachable, and nothing was changed. A retry may succeed."""


class UncertainError(MetadataStoreError):
    """The connection to the store was lost during a transaction, which may be stored or not."""


class StoreClosedError(MetadataStoreError):
    """The store was closed before or during the call."""


class LeaseExpiredError(MetadataStoreError):
    """The lease has expired, and its keys are deleted."""

    def __init__(self, lease: LeaseId) -> None:
        super().__init__(f"lease {lease} has expired or was revoked")
        self.lease = lease


class CompactedError(MetadataStoreError):
    """The changes from the requested revision on are no longer kept."""

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


class RangeResult(NamedTuple):
    #: The store's revision of `items`.
    revision: int
    #: In order of the keys.
    items: list[KeyValue]


class Compare(NamedTuple):
    """Holds if the key has this revision; 0 holds if the key does not exist."""

    key: str
    revision: int


class ValueIs(NamedTuple):
    """Holds if the key exists with exactly this value, whatever its revision."""

    key: str
    value: bytes


Condition: TypeAlias = Compare | ValueIs


class Put(NamedTuple):
    key: str
    value: bytes
    #: Deletes the key when this lease ends; a put without one detaches the key.
    lease: LeaseId | None = None


class Delete(NamedTuple):
    """Delete a key, if it exists."""

    key: str


Change: TypeAlias = Put | Delete


class TransactResult(NamedTuple):
    #: Whether every condition held. If not, nothing was changed.
    succeeded: bool
    #: The transaction's revision; if it changed nothing, the store's revision.
    revision: int


class WatchEvent(NamedTuple):
    key: str
    #: None if the key was deleted.
    value: bytes | None
    revision: int


class WatchEvents(NamedTuple):
    """All changes up to `revision` since the previous `WatchEvents`, in order.

    `events` may be empty: then nothing has changed up to `revision`."""

    revision: int
    events: list[WatchEvent]


class MetadataStore(Protocol):
    @property
    def changes_max(self) -> int:
        """Largest number of changes, and of conditions, in one transaction."""
        ...

    async def get(self, key: str) -> KeyValue | None: ...

    async def range(self, prefix: str) -> RangeResult: ...

    async def transact(
        self, compares: Sequence[Condition], changes: Sequence[Change]
    ) -> TransactResult:
        """Store all of `changes` if all of `compares` hold. A key may be changed only once."""
        ...

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchEvents, None]:
        """Yield changes of keys with this prefix from a revision on, without an end."""
        ...

    async def grant(self, ttl_ms: int) -> LeaseId: ...

    async def keep_alive(self, lease: LeaseId) -> None:
        """Renew the lease; LeaseExpiredError if it has expired."""
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """End the lease, if it exists."""
        ...

    async def close(self) -> None: ...
