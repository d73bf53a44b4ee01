"""The levels of the cluster's features that are in force.

UpdateFeatures writes a finalized level into the metadata store, for all brokers. Before that,
`group.version` has its highest level, and `transaction.version` the level that the broker's setting
of that name gives.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.context import Services
from millstream.metadata.image import ClusterImage
from millstream.model.feature import FEATURES, GROUP_VERSION, TRANSACTION_VERSION, Feature


def levels(finalized: Mapping[str, int], config: BrokerConfig) -> dict[str, int]:
    """Return the level of every feature, given the finalized levels."""
    initial = {
        GROUP_VERSION.name: GROUP_VERSION.level_max,
        TRANSACTION_VERSION.name: config.transactions.transaction_version,
    }
    return {name: finalized.get(name, initial[name]) for name in FEATURES}


def level(feature: Feature, image: ClusterImage, config: BrokerConfig) -> int:
    """Return the level of one feature."""
    return levels(image.features.levels, config)[feature.name]


def is_consumer_protocol_on(services: Services) -> bool:
    """Return whether groups may use the consumer protocol (KIP-848)."""
    return level(GROUP_VERSION, services.catalog.image, services.config) > 0
