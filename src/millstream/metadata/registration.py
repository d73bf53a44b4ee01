"""A broker's presence in the cluster: a leased key that says it is alive and where.

Owns the lease and the task that keeps it alive. A broker that was silent for too long (stopped in
a debugger, cut off from the store) finds its lease gone, and registers anew; others have then seen
it leave and come back. A store that cannot be reached is tried again; if it refuses for another
reason, `failed` is resolved with that.

Two processes with one broker id would write over each other's work, so the second one is refused.
The first may also be a dead one whose lease has not run out yet: a start waits for that.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millstream.metadata.catalog import Catalog
from millstream.metadata.record import BrokerRecord
from millstream.metadata.store import (
    LeaseExpiredError,
    LeaseId,
    MetadataStore,
    StoreError,
    UnavailableError,
    UncertainError,
)
from millstream.model.error import BrokerError

_logger = logging.getLogger(__name__)

#: Renewals in the life of a lease; all but one may be lost.
_RENEWALS: Final = 3
#: Looks, in the time of a lease, whether an earlier process of the same broker is gone.
_ATTEMPTS_PER_LEASE: Final = 20


class Registration:
    """Between `start` and `close` the broker is in the image of every broker."""

    __slots__ = ("_catalog", "_lease", "_record", "_store", "_task", "_ttl_ms", "failed")

    def __init__(
        self, catalog: Catalog, store: MetadataStore, record: BrokerRecord, ttl_ms: int
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._record = record
        self._ttl_ms = ttl_ms
        self._lease: LeaseId = 0
        self._task: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Register; returns when the broker is in the catalog's image.

        DUPLICATE_BROKER_REGISTRATION if another process goes on being this broker."""
        await self._register_after_others()
        self._task = asyncio.create_task(self._keep_alive(), name="broker-registration")

    async def close(self) -> None:
        """Leave the cluster."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        try:
            await self._store.revoke(self._lease)
        except StoreError as error:
            _logger.warning("left without revoking the lease, which will run out: %s", error)

    async def _register_after_others(self) -> None:
        attempts = _ATTEMPTS_PER_LEASE + _ATTEMPTS_PER_LEASE // 2
        for attempt in range(attempts):
            try:
                await self._register()
            except (BrokerError, UncertainError) as error:
                if attempt == attempts - 1:
                    raise
                if attempt == 0 and isinstance(error, BrokerError):
                    _logger.warning("%s; waiting for its lease to run out", error.message)
            else:
                return
            await asyncio.sleep(self._ttl_ms / 1000 / _ATTEMPTS_PER_LEASE)

    async def _register(self) -> None:
        lease = await self._store.grant(self._ttl_ms)
        try:
            await self._catalog.register_broker(self._record, lease)
        except BrokerError:
            await self._store.revoke(lease)
            raise
        self._lease = lease

    async def _keep_alive(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._ttl_ms / 1000 / _RENEWALS)
                try:
                    await self._renew()
                except (UnavailableError, UncertainError) as error:
                    _logger.warning("the broker's lease was not renewed: %s", error)
        except Exception as error:
            _logger.exception("the broker's registration is no longer kept alive")
            self.failed.set_result(error)

    async def _renew(self) -> None:
        try:
            await self._store.keep_alive(self._lease)
        except LeaseExpiredError:
            _logger.warning("the broker's lease ran out; registering again")
            await self._register()
