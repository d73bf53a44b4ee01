"""A broker's presence in the cluster: a leased key that says it is alive and where.

Owns the lease and the task that keeps it alive. A broker that was silent for too long (stopped in
a debugger, cut off from the store) finds its lease gone, and registers anew; others have then seen
it leave and come back. A store that cannot be reached is tried again; if it refuses for another
reason, the broker shuts down (`Policy.STOP`): nobody would notice a lease that is not renewed.

A broker whose lease may have run out unseen, because the store can't be reached, is fenced: others
may have taken over from it. `on_fenced` is told when that begins and when it ends. A process that
was stopped for a while finds work waiting before its timers run, so whoever is about to act on the
broker's behalf calls `check` first.

Two processes with one broker id would write over each other's work, so the second one is refused.
The first may also be a dead one whose lease has not run out yet: a start waits for that.

A process that was unregistered (`controller/unregistration`) does not register anew: it stays
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
    Put,
    StoreError,
    UnavailableError,
    UncertainError,
)
from millstream.model.error import BrokerError

_logger = logging.getLogger(__name__)

#: Renewals in the life of a lease; all but one may be lost.
_RENEWALS: Final = 3
#: Rest after the store refused something, or was not reached.
_RETRY_S: Final = 0.05
#: Looks, in the time of a lease, whether an earlier process of the same broker is gone.
_ATTEMPTS_PER_LEASE: Final = 20
#: Looks in all: a lease may live somewhat longer than its time.
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
    """Between `start` and `close` the broker is in the image of every broker."""

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
        #: Of the registration that was made last.
        self.lease: LeaseId = 0
        #: When the store last began to confirm that the lease lives, by the monotonic clock, which
        #: goes on while the process is stopped.
        self._renewed_at = 0.0
        #: Set when the registration was found to be deleted, so that it must be made anew.
        self._is_gone = asyncio.Event()
        self.is_fenced = True
        self.stats = LeaseStats()
        self.on_fenced: Callable[[bool], None] = lambda _: None

    async def start(self, supervisor: Supervisor) -> None:
        """Register; returns when the broker is in the catalog's image.

        DUPLICATE_BROKER_REGISTRATION if another process goes on being this broker."""
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
        except StoreError as error:
            _logger.warning("left without revoking the lease, which will run out: %s", error)

    async def _register_after_others(self) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                await self._register()
            except (BrokerError, UncertainError, LeaseExpiredError) as error:
                if attempt == _ATTEMPTS - 1:
                    raise
                if attempt == 0 and isinstance(error, BrokerError):
                    _logger.warning("%s; waiting for its lease to run out", error.message)
            else:
                return
            await asyncio.sleep(self._ttl_ms / 1000 / _ATTEMPTS_PER_LEASE)

    async def announce_leaving(self) -> None:
        """Tell that this broker is about to stop: nobody gives it anything new from then on."""
        put = Put(records.leaving_key(self._record.node_id), b"{}", self.lease)
        await self._catalog.transact([], [put])

    def deleted(self) -> None:
        """The registration is gone from the image: others take this broker for dead."""
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
                "broker %d was unregistered: it serves nobody until it is started again",
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
        """Since the store last confirmed that the lease lives."""
        return self._clock.monotonic() - self._renewed_at

    def _left_s(self) -> float | None:
        """Until the lease may have run out; None once it may have, when haste is pointless."""
        if self.is_fenced:
            return None
        return self._renewed_at + self._ttl_ms / 1000 - self._clock.monotonic()

    def check(self) -> None:
        """Fence the broker now if its lease may have run out."""
        left_s = self._left_s()
        if left_s is not None and left_s <= 0:
            self._fence(True)

    async def _renew(self) -> None:
        if self._is_gone.is_set():
            _logger.warning("the broker was taken for dead; registering again")
            await self._register_anew()
            return
        begun_at = self._clock.monotonic()
        try:
            await self._store.keep_alive(self.lease)
        except LeaseExpiredError:
            _logger.warning("the broker's lease ran out; registering again")
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
    """Return when no earlier process of this broker is registered, or goes on being.

    As long as one is, what its leaders knew of it counts: they could take the broker back into an
    ISR for what the process had before it died."""
    for attempt in range(_ATTEMPTS):
        if broker_id not in catalog.image.brokers:
            return
        if attempt == 0:
            _logger.warning(
                "broker %d is still registered; waiting for its lease to run out", broker_id
            )
        await asyncio.sleep(ttl_ms / 1000 / _ATTEMPTS_PER_LEASE)


async def expel(catalog: Catalog, store: MetadataStore, broker: BrokerRecord) -> None:
    """Take a broker that is known to be dead out of the cluster before its lease runs out."""
    keys = [(records.broker_key(broker.node_id), broker.epoch)]
    if catalog.image.controller == broker.node_id:
        found = await store.get(records.CONTROLLER_KEY)
        if found is not None and records.decode_controller(found.value) == broker.node_id:
            keys.append((found.key, found.revision))
    compares = [Compare(key, revision) for key, revision in keys]
    if await catalog.transact(compares, [Delete(key) for key, _ in keys]) is not None:
        _logger.info("broker %d is dead and was taken out of the cluster", broker.node_id)
