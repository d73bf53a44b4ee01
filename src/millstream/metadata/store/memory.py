"""A metadata store in memory, for several brokers in one process: a store without durability.

It is deterministic: it uses the given clock and the running loop's timers, nothing is random, and
waiters wake in order. Simulated clusters use it, and tests that need no store on disk.

`MemoryStore` has the data. `connect` returns a connection for one broker, which is the
`MetadataStore`. Its `Link` stands between broker and store: a simulator's link delays or fails
calls and responses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from itertools import count
from typing import Final, Protocol

from millstream.env.clock import Clock
from millstream.metadata.store.port import (
    Change,
    CompactedError,
    Condition,
    Delete,
    KeyValue,
    LeaseExpiredError,
    LeaseId,
    MetadataStoreError,
    Put,
    RangeResult,
    StoreClosedError,
    TransactResult,
    ValueIs,
    WatchEvent,
    WatchEvents,
)

CHANGES_MAX: Final = 20_000
#: Number of transactions that are kept for watches.
HISTORY_MAX: Final = 50_000


class Link(Protocol):
    """The link between a broker and the store. The caller gets what either method raises."""

    async def request(self) -> None:
        """Called before a call reaches the store; UnavailableError prevents it."""
        ...

    async def respond(self, changed: bool) -> None:
        """Called when the store has finished a call, or has changes for a watch.

        UncertainError loses the response of a call that changed something."""
        ...


class DirectLink:
    """A link that takes one turn of the loop, so that calls can overtake each other."""

    __slots__ = ()

    async def request(self) -> None:
        await asyncio.sleep(0)

    async def respond(self, changed: bool) -> None:
        await asyncio.sleep(0)


class MemoryStore:
    """The data, leases and watches."""

    __slots__ = (
        "_clock",
        "_compacted",
        "_deadlines",
        "_history",
        "_history_max",
        "_keys",
        "_lease_keys",
        "_leases",
        "_news",
        "_ttls",
        "changes_max",
        "revision",
    )

    def __init__(
        self, clock: Clock, *, history_max: int = HISTORY_MAX, changes_max: int = CHANGES_MAX
    ) -> None:
        self._clock = clock
        self.changes_max = changes_max
        self.revision = 0
        self._keys: dict[str, KeyValue] = {}
        #: One list of changes for each revision after `_compacted`.
        self._history: deque[list[WatchEvent]] = deque()
        self._history_max = history_max
        self._compacted = 0
        #: Watchers that wait for the next revision.
        self._news: list[asyncio.Future[None]] = []
        # Lifetime and end of each lease, in seconds of the clock, and its keys.
        self._leases = count(1)
        self._ttls: dict[LeaseId, float] = {}
        self._deadlines: dict[LeaseId, float] = {}
        self._lease_keys: dict[LeaseId, dict[str, None]] = {}

    def connect(self, link: Link | None = None) -> MemoryConnection:
        return MemoryConnection(self, link or DirectLink())

    def get(self, key: str) -> KeyValue | None:
        self._expire()
        return self._keys.get(key)

    def range(self, prefix: str) -> RangeResult:
        self._expire()
        found = [item for key, item in self._keys.items() if key.startswith(prefix)]
        return RangeResult(self.revision, sorted(found))

    def transact(self, compares: Sequence[Condition], changes: Sequence[Change]) -> TransactResult:
        self._expire()
        if len(changes) > self.changes_max:
            raise MetadataStoreError(
                f"a transaction may hold {self.changes_max} changes, this one has {len(changes)}"
            )
        for change in changes:
            if isinstance(change, Put) and change.lease and change.lease not in self._ttls:
                raise LeaseExpiredError(change.lease)
        if not all(map(self._holds, compares)):
            return TransactResult(False, self.revision)
        self._apply([change for change in changes if self._has_effect(change)])
        return TransactResult(True, self.revision)

    def events(self, prefix: str, from_revision: int) -> WatchEvents:
        """Return all changes from this revision on."""
        self._expire()
        if from_revision <= self._compacted:
            raise CompactedError(from_revision, self._compacted + 1)
        first = max(0, from_revision - self._compacted - 1)
        found = [
            event
            for index in range(first, len(self._history))
            for event in self._history[index]
            if event.key.startswith(prefix)
        ]
        return WatchEvents(self.revision, found)

    async def reached(self, revision: int) -> None:
        """Return when the store is at this revision, or its leases must be checked."""
        if self.revision < revision:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._news.append(waiter)
            await waiter

    def wake(self) -> None:
        """Wake every waiter."""
        waiters, self._news = self._news, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def grant(self, ttl_s: float) -> LeaseId:
        lease = next(self._leases)
        self._ttls[lease] = ttl_s
        self._lease_keys[lease] = {}
        self._prolong(lease)
        asyncio.get_running_loop().call_later(ttl_s, self._expire_when_due, lease)
        return lease

    def keep_alive(self, lease: LeaseId) -> None:
        self._expire()
        if lease not in self._ttls:
            raise LeaseExpiredError(lease)
        self._prolong(lease)

    def revoke(self, lease: LeaseId) -> None:
        self._expire()
        self._end(lease)

    def compact(self) -> None:
        """Delete the history of changes."""
        self._history.clear()
        self._compacted = self.revision

    def _prolong(self, lease: LeaseId) -> None:
        self._deadlines[lease] = self._clock.monotonic() + self._ttls[lease]

    def _expire_when_due(self, lease: LeaseId) -> None:
        """End the lease if it has expired; check again later if it was renewed."""
        self._expire()
        deadline = self._deadlines.get(lease)
        if deadline is not None:
            remaining = max(deadline - self._clock.monotonic(), 0.001)
            asyncio.get_running_loop().call_later(remaining, self._expire_when_due, lease)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for lease in [lease for lease, end in self._deadlines.items() if end <= now]:
            self._end(lease)

    def _end(self, lease: LeaseId) -> None:
        self._ttls.pop(lease, None)
        self._deadlines.pop(lease, None)
        self._apply([Delete(key) for key in self._lease_keys.pop(lease, ())])

    def _holds(self, compare: Condition) -> bool:
        found = self._keys.get(compare.key)
        if isinstance(compare, ValueIs):
            return found is not None and found.value == compare.value
        return (found.revision if found else 0) == compare.revision

    def _has_effect(self, change: Change) -> bool:
        return isinstance(change, Put) or change.key in self._keys

    def _apply(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        self.revision += 1
        for change in changes:
            for keys in self._lease_keys.values():
                keys.pop(change.key, None)
            if isinstance(change, Put):
                self._keys[change.key] = KeyValue(change.key, change.value, self.revision)
                if change.lease:
                    self._lease_keys[change.lease][change.key] = None
            else:
                del self._keys[change.key]
        self._history.append(
            [
                WatchEvent(
                    change.key, change.value if isinstance(change, Put) else None, self.revision
                )
                for change in changes
            ]
        )
        if len(self._history) > self._history_max:
            self._history.popleft()
            self._compacted += 1
        self.wake()


class MemoryConnection:
    """One broker's connection to the store."""

    __slots__ = ("_closed", "_link", "_store")

    def __init__(self, store: MemoryStore, link: Link) -> None:
        self._store = store
        self._link = link
        self._closed = False

    @property
    def changes_max(self) -> int:
        return self._store.changes_max

    async def get(self, key: str) -> KeyValue | None:
        await self._request()
        found = self._store.get(key)
        await self._link.respond(changed=False)
        return found

    async def range(self, prefix: str) -> RangeResult:
        await self._request()
        found = self._store.range(prefix)
        await self._link.respond(changed=False)
        return found

    async def transact(
        self, compares: Sequence[Condition], changes: Sequence[Change]
    ) -> TransactResult:
        await self._request()
        before = self._store.revision
        outcome = self._store.transact(compares, changes)
        await self._link.respond(changed=self._store.revision != before)
        return outcome

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchEvents, None]:
        while True:
            self._check_open()
            found = self._store.events(prefix, from_revision)
            if found.events:
                await self._link.respond(changed=False)
                self._check_open()
                yield found
            from_revision = max(from_revision, found.revision + 1)
            await self._store.reached(from_revision)

    async def grant(self, ttl_ms: int) -> LeaseId:
        await self._request()
        lease = self._store.grant(ttl_ms / 1000)
        await self._link.respond(changed=False)
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._request()
        self._store.keep_alive(lease)
        await self._link.respond(changed=False)

    async def revoke(self, lease: LeaseId) -> None:
        await self._request()
        self._store.revoke(lease)
        await self._link.respond(changed=False)

    async def close(self) -> None:
        """Close the connection. Its watches end with StoreClosedError; the data stay."""
        self._closed = True
        self._store.wake()

    async def _request(self) -> None:
        self._check_open()
        await self._link.request()
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the metadata store is closed")
