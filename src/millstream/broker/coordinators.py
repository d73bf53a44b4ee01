"""The coordinators of this broker, and its ways to those of others: built, connected, kept in step.

Groups, transactions, the markers that end transactions, and the desks where they are admitted
depend on each other and on nothing else of the broker but its partitions and metadata.
"""

from __future__ import annotations

from millstream.broker import feature
from millstream.broker.config import group_override
from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.link import Links
from millstream.broker.transaction.local_marker import LocalMarkers
from millstream.broker.transaction.remote_admission import (
    Desks,
    Question,
    Questions,
    WaitingQuestions,
)
from millstream.broker.transaction.remote_marker import Deliveries, Delivery, Markers
from millstream.env.clock import Clock
from millstream.env.network import Network
from millstream.env.random import Random
from millstream.env.supervisor import Supervisor
from millstream.groups.group_coordinator import GroupCoordinator
from millstream.groups.group_shards import GroupShards
from millstream.metadata.catalog import Catalog
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.model.feature import TRANSACTION_VERSION
from millstream.replication.replicas import Replicas
from millstream.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from millstream.transactions.transaction_shards import TransactionShards


class Coordinators:
    """Run between `start` and `stop`. Event loop only."""

    __slots__ = (
        "_admission_links",
        "_marker_links",
        "_waiting_links",
        "desks",
        "groups",
        "markers",
        "transactions",
    )

    def __init__(
        self,
        config: BrokerConfig,
        catalog: Catalog,
        replicas: Replicas,
        *,
        clock: Clock,
        network: Network,
        random: Random,
        supervisor: Supervisor,
    ) -> None:
        node_id, image = config.node_id, catalog.image
        listener, client_id = config.network.inter_broker_listener, f"broker-{node_id}"
        # Markers wait for replicas, and some admissions for the end of a transaction. Other
        # admissions must not wait behind them.
        self._admission_links: Links[Question] = Links(
            Questions(), network, listener, client_id, image, supervisor, replicas.failures
        )
        self._waiting_links: Links[Question] = Links(
            WaitingQuestions(), network, listener, client_id, image, supervisor, replicas.failures
        )
        self._marker_links: Links[Delivery] = Links(
            Deliveries(), network, listener, client_id, image, supervisor, replicas.failures
        )
        self.groups = GroupCoordinator(
            GroupShards(replicas, clock, supervisor, random, options.coordinator_options(config))
        )
        #: For partitions of this broker.
        self.markers = LocalMarkers(catalog, replicas, self.groups)
        self.transactions = TransactionCoordinator(
            TransactionShards(
                replicas,
                clock,
                supervisor,
                Markers(node_id, catalog, self.markers, self._marker_links),
                options.transaction_options(config),
            )
        )
        self.desks = Desks(
            node_id,
            catalog,
            self.transactions,
            self._admission_links,
            self._waiting_links,
            replicas.failures,
        )

    def start(self, config: BrokerConfig, image: ClusterImage) -> None:
        shards, configs = self.groups.shards, image.group_configs
        shards.configure(group_override.changes(configs, configs, config, shards.options.groups))
        shards.start(image)
        self._set_transaction_version(config, image)
        self.transactions.shards.start(image)

    def follow(self, config: BrokerConfig, image: ClusterImage, delta: ImageDelta) -> None:
        """The metadata changed. To be called after the partitions have followed."""
        self._admission_links.follow(image, delta)
        self._waiting_links.follow(image, delta)
        self._marker_links.follow(image, delta)
        shards = self.groups.shards
        shards.apply_delta(image, delta)
        self.transactions.shards.apply_delta(image, delta)
        if delta.group_configs:
            shards.configure(
                group_override.changes(
                    image.group_configs, delta.group_configs, config, shards.options.groups
                )
            )
        if delta.features:
            self._set_transaction_version(config, image)

    def configure(self, config: BrokerConfig, image: ClusterImage) -> None:
        """Apply settings that were changed at run time."""
        shards, configs = self.groups.shards, image.group_configs
        consumer = options.coordinator_options(config).groups.consumer
        if consumer != shards.options.groups.consumer:
            shards.set_consumer(consumer)
            shards.configure(
                group_override.changes(configs, configs, config, shards.options.groups)
            )

    def _set_transaction_version(self, config: BrokerConfig, image: ClusterImage) -> None:
        self.transactions.shards.set_version(feature.level(TRANSACTION_VERSION, image, config))

    async def stop(self) -> None:
        """Whoever waits for a coordinator is told to look elsewhere. May be called twice."""
        await self.transactions.shards.stop()
        await self.groups.shards.stop()
        self._admission_links.close()
        self._waiting_links.close()
        self._marker_links.close()
