"""The metadata store of a cluster: `MetadataStore` on etcd.

Owns the keys under the cluster's prefix, and translates the port's calls to etcd's. `gateway` talks
to members, `watch` watches.

    <root><key>        a key of the port; its revision is etcd's mod_revision
    <root>~progress    written when a watch may miss something; no call of the port shows it

Revisions are those of the whole etcd. If other clients use it too, the cluster's revisions have
gaps, and a transaction that changed nothing may return a revision that no watch of the cluster
gets. If watches do not reach that revision soon, the store writes `~progress`.

If etcd's revision goes back, etcd was restored from a backup, and brokers have newer metadata. From
then on all calls fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from millstream.env.clock import Clock
from millstream.env.random import Random
from millstream.env.supervisor import Policy, SupervisedTask, Supervisor
from millstream.metadata.store.etcd import gateway_message as message
from millstream.metadata.store.etcd.address import EtcdOptions
from millstream.metadata.store.etcd.gateway import EtcdError, EtcdGateway
from millstream.metadata.store.etcd.watch import EtcdWatch
from millstream.metadata.store.port import (
    Change,
    Condition,
    KeyValue,
    LeaseExpiredError,
    LeaseId,
    MetadataStoreError,
    Put,
    RangeResult,
    TransactResult,
    WatchEvents,
)

_logger = logging.getLogger(__name__)

#: etcd's own default limit (--max-txn-ops).
CHANGES_MAX: Final = 128
PROGRESS_KEY: Final = "~progress"
#: Largest number of keys in one page of `range`.
_PAGE_KEYS: Final = 5_000
#: Attempts at a range whose revision is compacted between two pages.
_RANGE_ATTEMPTS_MAX: Final = 5
#: Time that watches have to reach a revision by themselves.
_NUDGE_AFTER_S: Final = 0.1


class EtcdStore:
    """The store on etcd. Created by `open`, on the loop that uses it."""

    __slots__ = ("_awaited", "_gateway", "_newest", "_nudging", "_root", "_supervisor", "_watches")

    def __init__(self, gateway: EtcdGateway, root: str, supervisor: Supervisor) -> None:
        self._gateway = gateway
        self._supervisor = supervisor
        self._root = root
        #: The newest revision of any response. A later call must not return an older revision.
        self._newest = 0
        self._watches: set[EtcdWatch] = set()
        #: A revision that was returned to a caller. The caller may wait until a watch reaches it.
        self._awaited = 0
        self._nudging: SupervisedTask | None = None

    @classmethod
    async def open(
        cls, options: EtcdOptions, clock: Clock, random: Random, supervisor: Supervisor
    ) -> EtcdStore:
        """Connect; MetadataStoreError with a sentence for the operator if that fails."""
        try:
            gateway = await EtcdGateway.open(options, clock, random)
        except OSError as error:
            raise MetadataStoreError(f"the files for TLS cannot be used: {error}") from error
        return cls(gateway, options.address.root, supervisor)

    @property
    def changes_max(self) -> int:
        return CHANGES_MAX

    async def get(self, key: str) -> KeyValue | None:
        since = self._newest
        body = message.range_request(self._bytes(key))
        response = await self._gateway.call("/v3/kv/range", body, message.RangeResponse)
        self._check(response.header, since)
        if not response.kvs:
            return None
        return KeyValue(key, response.kvs[0].value, response.kvs[0].mod_revision)

    async def range(self, prefix: str) -> RangeResult:
        for _ in range(_RANGE_ATTEMPTS_MAX):
            try:
                return await self._range(prefix)
            except EtcdError as error:
                # Compacted between two pages: a newer revision can still be read.
                if error.code != message.OUT_OF_RANGE:
                    raise
        raise MetadataStoreError(f"etcd is compacted too often to read all of {self._root}{prefix}")

    async def transact(
        self, compares: Sequence[Condition], changes: Sequence[Change]
    ) -> TransactResult:
        if max(len(changes), len(compares)) > CHANGES_MAX:
            raise MetadataStoreError(
                f"a transaction may hold {CHANGES_MAX} changes and as many conditions, this one has"
                f" {len(changes)} and {len(compares)}"
            )
        since = self._newest
        body = message.transaction_request(self._root, compares, changes)
        try:
            response = await self._gateway.call(
                "/v3/kv/txn", body, message.TransactionResponse, repeatable=not changes
            )
        except EtcdError as error:
            leases = [change.lease for change in changes if isinstance(change, Put)]
            lease = next(filter(None, leases), None)
            if lease is not None and error.code == message.NOT_FOUND:
                raise LeaseExpiredError(lease) from error
            raise
        self._check(response.header, since)
        if not (response.succeeded and any(isinstance(change, Put) for change in changes)):
            self._help_watches(response.header.revision)
        return TransactResult(response.succeeded, response.header.revision)

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchEvents, None]:
        watch = EtcdWatch(
            self._gateway, self, self._root, prefix, PROGRESS_KEY, max(0, from_revision - 1)
        )
        self._watches.add(watch)
        try:
            async with aclosing(watch.changes()) as changes:
                async for events in changes:
                    self._newest = max(self._newest, events.revision)
                    yield events
        finally:
            self._watches.discard(watch)

    async def grant(self, ttl_ms: int) -> LeaseId:
        # etcd counts in seconds, and raises a lifetime that is shorter than its own elections.
        body = message.grant_request(-(-ttl_ms // 1000))
        response = await self._gateway.call("/v3/lease/grant", body, message.LeaseResponse)
        return response.lease

    async def keep_alive(self, lease: LeaseId) -> None:
        body = message.lease_request(lease)
        response = await self._gateway.call("/v3/lease/keepalive", body, message.KeepAliveResponse)
        if response.result.ttl_s <= 0:
            raise LeaseExpiredError(lease)

    async def revoke(self, lease: LeaseId) -> None:
        try:
            body = message.lease_request(lease)
            await self._gateway.call("/v3/lease/revoke", body, message.EmptyResponse)
        except EtcdError as error:
            if error.code != message.NOT_FOUND:
                raise

    async def close(self) -> None:
        """Close the store. Watches and calls end with StoreClosedError."""
        if self._nudging is not None:
            await self._nudging.stop()
        await self._gateway.close()

    # Calls of watches

    async def revision(self) -> int:
        """Return the store's present revision."""
        since = self._newest
        body = message.range_request(self._bytes(PROGRESS_KEY))
        response = await self._gateway.call("/v3/kv/range", body, message.RangeResponse)
        self._check(response.header, since)
        return response.header.revision

    async def nudge(self) -> int:
        """Change a key that no watch shows; return the revision of the change."""
        body = message.transaction_request(self._root, [], [Put(PROGRESS_KEY, b"")])
        response = await self._gateway.call("/v3/kv/txn", body, message.TransactionResponse)
        return response.header.revision

    def _help_watches(self, revision: int) -> None:
        """Make watches reach `revision`, even if another client of etcd made that change."""
        self._awaited = max(self._awaited, revision)
        if self._nudging is None and self._is_awaited():
            self._nudging = self._supervisor.start(
                "etcd-nudge", self._nudge_later, policy=Policy.REPORT
            )

    async def _nudge_later(self) -> None:
        try:
            while self._is_awaited():
                await asyncio.sleep(_NUDGE_AFTER_S)
                if self._is_awaited():
                    self._awaited = await self.nudge()
        except MetadataStoreError as error:
            # The watch makes its own nudge once it has been idle for `IDLE_S`.
            _logger.warning("cannot write the progress key for watches of etcd: %s", error)
        finally:
            self._nudging = None

    def _is_awaited(self) -> bool:
        return any(watch.position < self._awaited for watch in self._watches)

    def _bytes(self, key: str) -> bytes:
        return f"{self._root}{key}".encode()

    def _check(self, header: message.Header, since: int) -> None:
        """Raise MetadataStoreError for a response of another etcd, or of an earlier revision."""
        self._gateway.check_cluster(header.cluster_id)
        if header.revision < since:
            raise MetadataStoreError(
                f"etcd is at revision {header.revision}, but was at {since} before: it seems to"
                " have been restored from a backup; restart all brokers"
            )
        self._newest = max(self._newest, header.revision)

    async def _range(self, prefix: str) -> RangeResult:
        start, end = self._bytes(prefix), message.after_prefix(self._bytes(prefix))
        since, revision = self._newest, 0
        items: list[KeyValue] = []
        while True:
            body = message.range_request(start, end, revision=revision, limit=_PAGE_KEYS)
            response = await self._gateway.call("/v3/kv/range", body, message.RangeResponse)
            self._check(response.header, since)
            revision = revision or response.header.revision
            items += map(self._item, response.kvs)
            if not response.more or not response.kvs:
                return RangeResult(revision, [item for item in items if item.key != PROGRESS_KEY])
            start = response.kvs[-1].key + b"\0"

    def _item(self, found: message.Item) -> KeyValue:
        return KeyValue(found.key.decode()[len(self._root) :], found.value, found.mod_revision)
