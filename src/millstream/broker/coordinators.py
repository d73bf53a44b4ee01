"""The coordinators of this broker, and the links to the coordinators of other brokers.

Groups, transactions, the markers that end transactions, and the admission of partitions depend on
each other. Of the rest of the broker they need only its partitions and the metadata.
"""

from __future__ import annotations

from millstream.broker import feature
from millstream.broker.audit.audited import BROKER_CLIENT_ID
from millstream.broker.config import group_override
from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.lifecycle.runtime import Runtime
from millstream.broker.peer_link import PeerConnector, PeerLinks
from millstream.broker.transaction.local_marker import LocalMarkers
from millstream.broker.transaction.remote_admission import (
    AdmissionApi,
    AdmissionLinks,
    TransactionCoordinators,
    WaitingAdmissionApi,
)
from millstream.broker.transaction.remote_marker import ClusterMarkers, MarkerApi
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
    """Builds the coordinators, connects them, and passes metadata changes on. Event loop only."""

    __slots__ = (
        "_admission_links",
        "_marker_links",
        "_waiting_links",
        "groups",
        "markers",
        "transaction_coordinators",
        "transactions",
    )

    def __init__(
        self, runtime: Runtime, config: BrokerConfig, catalog: Catalog, replicas: Replicas
    ) -> None:
        node_id, image = config.node_id, catalog.image
        environment, supervisor = runtime.environment, runtime.supervisor
        clock = environment.clock
        connector = peer_connector(runtime, config)
        # Markers wait for replicas, and some admissions wait for the end of a transaction. Other
        # admissions must not queue behind them, so each kind has its own links.
        self._admission_links = PeerLinks(AdmissionApi(), connector, image)
        self._waiting_links = PeerLinks(WaitingAdmissionApi(), connector, image)
        self._marker_links = PeerLinks(MarkerApi(), connector, image)
        self.groups = GroupCoordinator(
            GroupShards(
                replicas,
                clock,
                supervisor,
                environment.random,
                options.coordinator_options(config),
            )
        )
        #: Writes the markers of partitions led here.
        self.markers = LocalMarkers(catalog, replicas, self.groups)
        self.transactions = TransactionCoordinator(
            TransactionShards(
                replicas,
                clock,
                supervisor,
                ClusterMarkers(node_id, catalog, self.markers, self._marker_links),
                options.transaction_options(config),
            )
        )
        self.transaction_coordinators = TransactionCoordinators(
            node_id,
            catalog,
            self.transactions,
            AdmissionLinks(self._admission_links, self._waiting_links),
            replicas.failures,
        )

    def start(self, config: BrokerConfig, image: ClusterImage) -> None:
        """Begin to serve the groups and transactions whose partitions this broker leads."""
        shards, configs = self.groups.shards, image.group_configs
        shards.configure(group_override.changes(configs, configs, config, shards.options.groups))
        shards.start(image)
        self._set_transaction_version(config, image)
        self.transactions.shards.start(image)

    def apply_delta(self, config: BrokerConfig, image: ClusterImage, delta: ImageDelta) -> None:
        """Apply a change of the metadata. The caller has applied it to the partitions before."""
        self._admission_links.apply_delta(image, delta)
        self._waiting_links.apply_delta(image, delta)
        self._marker_links.apply_delta(image, delta)
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
        """Apply settings that changed at run time."""
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
        """Stop all coordinators; pending requests fail. May be called twice."""
        await self.transactions.shards.stop()
        await self.groups.shards.stop()
        self._admission_links.close()
        self._waiting_links.close()
        self._marker_links.close()


def peer_connector(runtime: Runtime, config: BrokerConfig) -> PeerConnector:
    """Return how this broker connects to others."""
    return PeerConnector(
        runtime.peer_network,
        config.network.inter_broker_listener,
        f"{BROKER_CLIENT_ID}{config.node_id}",
        runtime.supervisor,
        runtime.failures,
    )
