"""Applies changes of the metadata and of settings to the parts of the broker.

Owns the order: partitions first, then replication, coordinators, and everything that reads them.
"""

from __future__ import annotations

from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.config.reconfiguration import Reconfiguration
from millstream.broker.context import Services
from millstream.broker.coordinators import Coordinators
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.model.config import TopicConfig


class MetadataUpdates:
    """Passes changes on to the parts. Event loop only."""

    __slots__ = ("_coordinators", "_services", "_settings")

    def __init__(
        self, services: Services, coordinators: Coordinators, settings: Reconfiguration
    ) -> None:
        self._services = services
        self._coordinators = coordinators
        self._settings = settings

    def start(self) -> None:
        """Apply settings that changed since the start began; from now on, apply every change."""
        self._subscribe_to_settings()
        # Settings may have changed while the logs were recovered.
        self._settings.update_image(self._services.catalog.image)
        self._services.catalog.subscribe(self.apply_delta)

    def _subscribe_to_settings(self) -> None:
        settings, config = self._settings, self._services.config
        settings.add(lambda config: config, self._set_config, config)
        settings.add(BrokerConfig.topic_defaults, self._set_topic_defaults, config)
        settings.add(lambda config: config, self._set_coordinators, config)
        settings.add(options.replicator_options, self._services.replicator.configure, config)

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Apply a change of the metadata to every part that depends on it."""
        services = self._services
        if services.authorizer is not None:
            services.authorizer.apply_delta(image, delta)
        services.replicas.apply_delta(image, delta)
        services.replicator.apply_delta(image, delta)
        self._coordinators.apply_delta(services.config, image, delta)
        for topic in delta.deleted:
            services.metrics.forget_topic(topic.name)
        if delta.client_metrics and services.telemetry is not None:
            services.telemetry.set_subscriptions(image)
        if delta.broker_configs:
            self._settings.update_image(image)
        services.topics.apply_delta(image, delta)

    def set_fenced(self, is_fenced: bool) -> None:
        """Stop leading partitions when the lease may have expired, or resume once it is renewed."""
        services = self._services
        services.replicas.fence(is_fenced)
        services.groups.shards.match_leadership(services.catalog.image)
        services.transactions.shards.match_leadership(services.catalog.image)

    def _set_config(self, config: BrokerConfig) -> None:
        self._services.config = self._services.topics.config = config

    def _set_topic_defaults(self, defaults: TopicConfig) -> None:
        self._services.catalog.topic_defaults = defaults
        self._services.replicas.set_defaults(defaults)

    def _set_coordinators(self, config: BrokerConfig) -> None:
        self._coordinators.configure(config, self._services.catalog.image)
