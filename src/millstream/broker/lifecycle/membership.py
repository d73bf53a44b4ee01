"""The broker as a member of the cluster: its registration, its controller, and probes of others.

Owns the registration's lease, the controller (active on one broker at a time), and the probes. The
controller probes the process of every other broker, and every broker probes the controller, so that
a dead process is replaced at once instead of when its lease expires.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.lifecycle.environment import Environment
from millstream.controller import departure
from millstream.controller.controller import Controller
from millstream.controller.probe import Probe
from millstream.env.network import Network
from millstream.env.supervisor import Policy, SupervisedTask
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import BrokerRecord
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.metadata.registration import Registration, expel
from millstream.metadata.store.port import MetadataStore, MetadataStoreError

_logger = logging.getLogger(__name__)

#: Longest wait at a stop for other brokers to take over leadership.
_HAND_OVER_S_MAX: Final = 10.0


class Membership:
    """The broker is a member of the cluster between `join` and `leave`."""

    __slots__ = (
        "_catalog",
        "_expulsions",
        "_is_leaving",
        "_listener_name",
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
        peer_network: Network,
    ) -> None:
        clock, supervisor = environment.clock, environment.supervisor
        self._supervisor = supervisor
        self._catalog = catalog
        self._store = store
        self._record = record
        self._network = peer_network
        self._listener_name = config.network.inter_broker_listener
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
        """Return when the broker is in the image. Raises as `Registration.start` does."""
        await self.registration.start(self._supervisor)
        self._catalog.subscribe(self._apply_delta)
        self.controller.start()
        self._update_probes(self._catalog.image)

    async def hand_over(self) -> None:
        """Move leadership to other brokers as far as possible. Clients are still served."""
        self._is_leaving = True
        try:
            async with asyncio.timeout(_HAND_OVER_S_MAX):
                if len(self._catalog.image.brokers) > 1:
                    await self.registration.announce_leaving()
                count = await departure.hand_over(self._catalog, self._record.node_id)
        except (MetadataStoreError, TimeoutError) as error:
            _logger.warning("leadership was not handed over before the shutdown: %s", error)
        else:
            if count:
                _logger.info("handed over %d partitions", count)

    async def leave(self) -> None:
        """Delete the registration, and with it the claim to be the controller."""
        self._is_leaving = True
        await self.controller.stop()
        for probe in self._probes.values():
            probe.close()
        for task in self._expulsions.values():
            task.cancel()
        await self.registration.close()

    def _apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        if self._is_leaving or not (delta.brokers or delta.controller):
            return
        if self._record.node_id in delta.brokers and self._record.node_id not in image.brokers:
            self.registration.deleted()
        self._update_probes(image)

    def _update_probes(self, image: ClusterImage) -> None:
        own = self._record.node_id
        probed = image.brokers.keys() if image.controller == own else {image.controller}
        wanted = {
            broker_id: image.brokers[broker_id]
            for broker_id in probed
            if broker_id != own and broker_id in image.brokers
        }
        for broker_id, probe in list(self._probes.items()):
            if wanted.get(broker_id) != probe.broker:
                probe.close()
                del self._probes[broker_id]
        for broker_id, broker in wanted.items():
            if broker_id not in self._probes and broker.endpoints:
                endpoint = broker.endpoint(self._listener_name) or broker.endpoints[0]
                self._probes[broker_id] = Probe(
                    broker, endpoint, self._network, self._on_dead, self._supervisor
                )

    def _on_dead(self, broker: BrokerRecord) -> None:
        # Not retried: the lease of a dead broker expires anyway.
        self._expulsions[broker.node_id] = self._supervisor.start(
            "broker-expulsion",
            partial(self._expel, broker),
            about=f"broker {broker.node_id}",
            policy=Policy.REPORT,
        )

    async def _expel(self, broker: BrokerRecord) -> None:
        try:
            await expel(self._catalog, self._store, broker)
        except MetadataStoreError as error:
            _logger.warning("broker %d stays until its lease expires: %s", broker.node_id, error)
