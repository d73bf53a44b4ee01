"""A broker among brokers: its registration, its part as controller, and its eye on the others.

Owns the registration's lease, the controller (which acts only on the broker whose turn it is), and
the probes: the controller watches every other broker's process, and everybody watches the
controller's, so that a process that dies is replaced at once and not after its lease.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.environment import Environment
from millstream.controller import departure
from millstream.controller.controller import Controller
from millstream.controller.probe import Probe
from millstream.env.supervisor import Policy, SupervisedTask
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import BrokerRecord
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.metadata.registration import Registration, expel
from millstream.metadata.store.port import MetadataStore, StoreError

_log = logging.getLogger(__name__)

#: A stop does not wait longer for others to take over.
_HAND_OVER_S_MAX: Final = 10.0


class Membership:
    """Between `join` and `leave` the broker is part of the cluster."""

    __slots__ = (
        "_catalog",
        "_expulsions",
        "_is_leaving",
        "_network",
        "_probes",
        "_record",
        "_store",
        "_supervisor",
        "controller",
        "registration",
    )

    def __init__(
        self,
        catalog: Catalog,
        store: MetadataStore,
        record: BrokerRecord,
        config: BrokerConfig,
        environment: Environment,
    ) -> None:
        clock, supervisor = environment.clock, environment.supervisor
        self._supervisor = supervisor
        self._catalog = catalog
        self._store = store
        self._record = record
        self._network = environment.network
        self.registration = Registration(
            catalog, store, record, config.cluster.broker_session_timeout_ms, clock
        )
        self.controller = Controller(
            record.node_id,
            catalog,
            self.registration,
            clock,
            options.controller_options(config),
            supervisor,
        )
        self._probes: dict[int, Probe] = {}
        self._expulsions: dict[int, SupervisedTask] = {}
        self._is_leaving = False

    async def join(self) -> None:
        """Return when the broker is in the image. DUPLICATE_BROKER_REGISTRATION as `Registration`
        says."""
        await self.registration.start(self._supervisor)
        self._catalog.subscribe(self._follow)
        self.controller.start()
        self._watch_others(self._catalog.image)

    async def hand_over(self) -> None:
        """Let others lead what they can, before clients are turned away."""
        self._is_leaving = True
        try:
            async with asyncio.timeout(_HAND_OVER_S_MAX):
                if len(self._catalog.image.brokers) > 1:
                    await self.registration.announce_leaving()
                count = await departure.hand_over(self._catalog, self._record.node_id)
        except (StoreError, TimeoutError) as error:
            _log.warning("leadership was not handed over before the stop: %s", error)
        else:
            if count:
                _log.info("handed over %d partitions", count)

    async def leave(self) -> None:
        """Give up the registration, and with it the controller's part."""
        self._is_leaving = True
        await self.controller.stop()
        for probe in self._probes.values():
            probe.close()
        for task in self._expulsions.values():
            task.cancel()
        await self.registration.close()

    def _follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        if self._is_leaving or not (delta.brokers or delta.controller):
            return
        if self._record.node_id in delta.brokers and self._record.node_id not in image.brokers:
            self.registration.deleted()
        self._watch_others(image)

    def _watch_others(self, image: ClusterImage) -> None:
        own = self._record.node_id
        watched = image.brokers.keys() if image.controller == own else {image.controller}
        wanted = {
            broker_id: image.brokers[broker_id]
            for broker_id in watched
            if broker_id != own and broker_id in image.brokers
        }
        for broker_id, probe in list(self._probes.items()):
            if wanted.get(broker_id) != probe.broker:
                probe.close()
                del self._probes[broker_id]
        for broker_id, broker in wanted.items():
            if broker_id not in self._probes and broker.endpoints:
                endpoint = broker.endpoints[0]
                self._probes[broker_id] = Probe(
                    broker, endpoint, self._network, self._found_dead, self._supervisor
                )

    def _found_dead(self, broker: BrokerRecord) -> None:
        # One that fails is not repeated: the lease of a dead broker runs out.
        self._expulsions[broker.node_id] = self._supervisor.start(
            "broker-expulsion",
            partial(self._expel, broker),
            about=f"broker {broker.node_id}",
            policy=Policy.REPORT,
        )

    async def _expel(self, broker: BrokerRecord) -> None:
        try:
            await expel(self._catalog, self._store, broker)
        except StoreError as error:
            _log.warning("broker %d stays until its lease runs out: %s", broker.node_id, error)
