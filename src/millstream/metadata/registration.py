"""A broker's registration: a leased key with its addresses, which exists while it is alive.

Owns the lease and the task that renews it. A broker that was paused or cut off from the store for
too long loses its lease and registers again; other brokers see it leave and return. An unreachable
store is retried. After any other error the broker shuts down (`Policy.STOP`), because its lease is
no longer renewed.

A broker whose lease may have expired, because the store is unreachable, is fenced: another broker
may have replaced it as leader. `on_fenced` is called when the fence is set and when it is lifted. A
process that was paused may find requests before its timers run, so code that acts as a leader calls
`check` first.

A second process with the same broker id is rejected, because the two would overwrite each other's
changes. The first one may be dead with a lease that has not expired yet: a start waits for that.

A process that was unregistered (`controller/unregistration`) does not register again. It stays
fenced until it is stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millstream.env.clock import Clock
from millstream.env.supervisor import Policy, SupervisedTask, Supervisor
from millstream.metadata import cluster_record as records
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import BrokerRecord
from millstream.metadata.store.port import (
    Compare,
    Delete,
    LeaseExpiredError,
    LeaseId,
    MetadataStore,
    MetadataStoreError,
    Put,
    UnavailableError,
    UncertainError,
)
from millstream.model.error import BrokerError

_logger = logging.getLogger(__name__)

#: Renewals within the lifetime of a lease; all but one may fail.
_RENEWALS: Final = 3
#: Pause after an error of the store.
_RETRY_S: Final = 0.05
#: Checks, within the lifetime of a lease, for an earlier process of the same broker.
_ATTEMPTS_PER_LEASE: Final = 20
#: Checks in all: a lease may expire somewhat late.
_ATTEMPTS: Final = _ATTEMPTS_PER_LEASE + _ATTEMPTS_PER_LEASE // 2


@dataclass(slots=True)
class LeaseStats:
    """Totals since the start."""

    #: Renewals that failed, and times the broker had to register anew.
    renewal_failures: int = 0
    losses: int = 0


class _UnregisteredError(Exception):
    """This process was unregistered."""


class Registration:
    """The registration of this broker, between `start` and `close`."""

    __slots__ = (
        "_catalog",
        "_clock",
        "_is_gone",
        "_record",
        "_renewed_at",
        "_store",
        "_task",
        "_ttl_ms",
        "is_fenced",
        "lease",
        "on_fenced",
        "stats",
    )

    def __init__(
        self,
        catalog: Catalog,
        store: MetadataStore,
        record: BrokerRecord,
        ttl_ms: int,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._clock = clock
        self._store = store
        self._record = record
        self._ttl_ms = ttl_ms
        self._task: SupervisedTask | None = None
        #: Lease of the last registration.
        self.lease: LeaseId = 0
        #: Monotonic time at which the last successful renewal started. The clock also runs while
        #: the process is paused.
        self._renewed_at = 0.0
        #: Set when the registration was deleted and must be made again.
        self._is_gone = asyncio.Event()
        self.is_fenced = True
        self.stats = LeaseStats()
        self.on_fenced: Callable[[bool], None] = lambda _: None

    async def start(self, supervisor: Supervisor) -> None:
        """Register; return when the broker is in the catalog's image.

        DUPLICATE_BROKER_REGISTRATION if another process keeps this broker id registered."""
        await self._register_after_others()
        self._task = supervisor.start("broker-registration", self._keep_alive, policy=Policy.STOP)

    async def close(self) -> None:
        """Leave the cluster."""
        if self._task is None:
            return
        await self._task.stop()
        self._task = None
        try:
            await self._store.revoke(self.lease)
        except MetadataStoreError as error:
            _logger.warning("the lease could not be revoked and will expire: %s", error)

    async def _register_after_others(self) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                await self._register()
            except (BrokerError, UncertainError, LeaseExpiredError) as error:
                if attempt == _ATTEMPTS - 1:
                    raise
                if attempt == 0 and isinstance(error, BrokerError):
                    _logger.warning("%s; waiting for its lease to expire", error.message)
            else:
                return
            await asyncio.sleep(self._ttl_ms / 1000 / _ATTEMPTS_PER_LEASE)

    async def announce_leaving(self) -> None:
        """Announce that this broker is shutting down: it gets no new roles from then on."""
        put = Put(records.leaving_key(self._record.node_id), b"{}", self.lease)
        await self._catalog.transact([], [put])

    def deleted(self) -> None:
        """Handle the deletion of the registration: other brokers consider this one dead."""
        self._is_gone.set()

    async def _register(self) -> None:
        begun_at = self._clock.monotonic()
        lease = await self._store.grant(self._ttl_ms)
        try:
            await self._catalog.register_broker(self._record, lease)
        except BrokerError:
            await self._store.revoke(lease)
            raise
        self.lease = lease
        self._is_gone.clear()
        self._confirmed(begun_at)

    async def _keep_alive(self) -> None:
        try:
            while True:
                await self._rest(self._ttl_ms / 1000 / _RENEWALS)
                try:
                    async with asyncio.timeout(self._left_s()):
                        await self._renew()
                except (
                    UnavailableError,
                    UncertainError,
                    LeaseExpiredError,
                    TimeoutError,
                ) as error:
                    self.stats.renewal_failures += 1
                    _logger.warning("the broker's lease was not renewed: %s", error)
                    self.check()
                    await asyncio.sleep(_RETRY_S)
        except _UnregisteredError:
            _logger.critical(
                "broker %d was unregistered: it serves no requests until it is restarted",
                self._record.node_id,
            )

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._is_gone.wait()
        except TimeoutError:
            return

    @property
    def renewed_ago_s(self) -> float:
        """Time since the last successful renewal."""
        return self._clock.monotonic() - self._renewed_at

    def _left_s(self) -> float | None:
        """Return the time until the lease may have expired; None once the broker is fenced."""
        if self.is_fenced:
            return None
        return self._renewed_at + self._ttl_ms / 1000 - self._clock.monotonic()

    def check(self) -> None:
        """Fence the broker now if its lease may have expired."""
        left_s = self._left_s()
        if left_s is not None and left_s <= 0:
            self._fence(True)

    async def _renew(self) -> None:
        if self._is_gone.is_set():
            _logger.warning("the broker's registration was deleted; registering again")
            await self._register_anew()
            return
        begun_at = self._clock.monotonic()
        try:
            await self._store.keep_alive(self.lease)
        except LeaseExpiredError:
            _logger.warning("the broker's lease expired; registering again")
            await self._register_anew()
        else:
            self._confirmed(begun_at)

    async def _register_anew(self) -> None:
        self._fence(True)
        found = await self._store.get(records.unregistered_key(self._record.node_id))
        if (
            found is not None
            and records.decode_unregistered(found.value) == self._record.incarnation
        ):
            raise _UnregisteredError
        await self._register()
        self.stats.losses += 1

    def _confirmed(self, begun_at: float) -> None:
        self._renewed_at = begun_at
        self._fence(False)

    def _fence(self, is_fenced: bool) -> None:
        if is_fenced != self.is_fenced:
            self.is_fenced = is_fenced
            if is_fenced:
                _logger.warning("the broker is fenced: it may have been replaced as leader")
            self.on_fenced(is_fenced)


async def until_gone(catalog: Catalog, broker_id: int, ttl_ms: int) -> None:
    """Return when no earlier process of this broker is registered, or after a lease's lifetime.

    While one is registered, leaders may add the broker to an ISR because of records that the
    earlier process had before it died."""
    for attempt in range(_ATTEMPTS):
        if broker_id not in catalog.image.brokers:
            return
        if attempt == 0:
            _logger.warning(
                "broker %d is still registered; waiting for its lease to expire", broker_id
            )
        await asyncio.sleep(ttl_ms / 1000 / _ATTEMPTS_PER_LEASE)


async def expel(catalog: Catalog, store: MetadataStore, broker: BrokerRecord) -> None:
    """Delete the registration of a dead broker before its lease expires."""
    keys = [(records.broker_key(broker.node_id), broker.epoch)]
    if catalog.image.controller == broker.node_id:
        found = await store.get(records.CONTROLLER_KEY)
        if found is not None and records.decode_controller(found.value) == broker.node_id:
            keys.append((found.key, found.revision))
    compares = [Compare(key, revision) for key, revision in keys]
    if await catalog.transact(compares, [Delete(key) for key, _ in keys]) is not None:
        _logger.info("broker %d is dead: its registration was deleted", broker.node_id)
