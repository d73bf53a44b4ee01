"""Creates topics and partitions: defaults, placement and limits, for every caller.

Decides where replicas go (`controller.replica_placement`), and stores it through the catalog. Knows
which topic names are internal.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from millstream.broker.config import replication_default
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.config.cluster_size import ClusterSize
from millstream.controller import decommission
from millstream.controller.replica_placement import PlacementBroker, place_partitions
from millstream.env.random import Random
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.metadata.catalog import Catalog, TopicResult
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.metadata.topic_change import NewPartitions, NewTopic
from millstream.model.durability import effective_min_isr
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import validate_topic_name
from millstream.security.audit_event import AUDIT_TOPIC
from millstream.transactions.state_topic import TRANSACTIONS_TOPIC

_logger = logging.getLogger(__name__)

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, AUDIT_TOPIC})

#: A partition count or replication factor that the broker's settings decide.
DEFAULT: Final = -1


def is_internal(name: str) -> bool:
    """Return whether the topic holds the broker's own records."""
    return name in INTERNAL_TOPICS


class TopicAdmin:
    """Creates topics and partitions. `config` is replaced when settings change at run time."""

    __slots__ = ("_announced", "_catalog", "_random", "config", "size")

    def __init__(
        self, catalog: Catalog, config: BrokerConfig, random: Random, size: ClusterSize
    ) -> None:
        self._catalog = catalog
        self.config = config
        self._random = random
        #: The number of brokers, on which default replication factors depend.
        self.size = size
        #: The defaults logged last; empty before the broker is ready.
        self._announced: list[int] = []

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Count the brokers again, and log the defaults if they changed."""
        self.size.apply_delta(image, delta)
        if self._announced and (delta.brokers or delta.broker_configs):
            self.announce_defaults()

    def announce_defaults(self) -> None:
        """Log the default replication factors, unless they were logged last."""
        brokers = self.size.count
        defaults = replication_default.all_values(self.config, brokers)
        if defaults != self._announced:
            self._announced = defaults
            _logger.info("%s", replication_default.describe(self.config, brokers))

    def close(self) -> None:
        """Reject requests that wait for brokers to join: this broker stops."""
        self.size.close()

    def validate_name(self, name: str) -> None:
        validate_topic_name(name)

    async def plan(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
    ) -> NewTopic:
        """Return a new topic with its replicas placed. May wait if the factor is DEFAULT."""
        if partitions == DEFAULT:
            partitions = self.config.topics.num_partitions
        if replication_factor == DEFAULT:
            replication_factor = await self._default(replication_default.FACTOR)
        self._check_count(partitions)
        return NewTopic(name, self._place(partitions, replication_factor), configs)

    def check_brokers(self, assignment: Sequence[Sequence[int]]) -> None:
        """Raise INVALID_REPLICA_ASSIGNMENT if a replica is assigned to an unknown broker, which
        would count as a broker that is down."""
        alive = self._catalog.image.brokers
        unknown = {each for replicas in assignment for each in replicas if each not in alive}
        if unknown and (unknown := unknown.difference(self.size.absent())):
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"there is no broker {min(unknown)}: it is not alive and has no replicas",
            )

    async def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        return await self._catalog.create_topics(topics, validate_only=validate_only)

    async def create_missing(self, names: Sequence[str]) -> dict[str, BrokerError]:
        """Create topics with the broker's defaults, internal topics with their own.

        Return the failures by name. A topic that exists by now is not a failure."""
        failures: dict[str, BrokerError] = {}
        planned: list[NewTopic] = []
        for name in dict.fromkeys(names):
            try:
                planned.append(await self._plan_default(name))
            except BrokerError as error:
                failures[name] = error
        for new, result in zip(planned, await self.create(planned), strict=True):
            if isinstance(result, BrokerError) and result.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                failures[new.name] = result
        return failures

    async def _plan_default(self, name: str) -> NewTopic:
        if name == OFFSETS_TOPIC:
            return await self._plan_offsets()
        if name == TRANSACTIONS_TOPIC:
            return await self._plan_transactions()
        if name == AUDIT_TOPIC:
            retention_ms = self.config.audit.audit_topic_retention_ms
            configs = {"cleanup.policy": "delete", "retention.ms": str(retention_ms)}
            return await self.plan(name, 1, DEFAULT, configs)
        return await self.plan(name, DEFAULT, DEFAULT, {})

    async def _plan_offsets(self) -> NewTopic:
        config = self.config
        return await self.plan(
            OFFSETS_TOPIC,
            config.groups.offsets_topic_num_partitions,
            await self._internal_replicas(replication_default.OFFSETS_FACTOR),
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.groups.offsets_topic_segment_bytes),
            },
        )

    async def _plan_transactions(self) -> NewTopic:
        config = self.config
        replicas = await self._internal_replicas(replication_default.TRANSACTIONS_FACTOR)
        return await self.plan(
            TRANSACTIONS_TOPIC,
            config.transactions.transaction_state_log_num_partitions,
            replicas,
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(
                    effective_min_isr(config.transactions.transaction_state_log_min_isr, replicas)
                ),
                "segment.bytes": str(config.transactions.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )

    async def _internal_replicas(self, setting: str) -> int:
        """Return the replication factor of an internal topic.

        In a cluster, a configured factor is never lowered: the topic would keep fewer replicas for
        ever, only because some brokers were not up when it was created."""
        return 1 if self.size.is_alone else await self._default(setting)

    async def _default(self, setting: str) -> int:
        """Return the value of a replication setting, once no more brokers are about to join."""
        if replication_default.is_derived(self.config, setting):
            await self.size.wait_until_settled()
        return replication_default.value(self.config, setting, self.size.count)

    def plan_growth(
        self, name: str, count: int, assignment: Sequence[Sequence[int]] | None
    ) -> NewPartitions:
        """Return more partitions for a topic, on the given replicas or placed by the broker."""
        topic = self._catalog.image.topic(name)
        if topic is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:249]!r}"
            )
        self._check_count(count)
        present = len(topic.partitions)
        if assignment is None:
            factor = len(topic.partitions[0].replicas)
            assignment = self._place(max(count - present, 0), factor)
        else:
            self.check_brokers(assignment)
        return NewPartitions(name, count, assignment)

    async def grow(
        self, requests: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicResult]:
        return await self._catalog.create_partitions(requests, validate_only=validate_only)

    def _check_count(self, partitions: int) -> None:
        partitions_max = self.config.topics.max_partitions_per_topic
        if not 1 <= partitions <= partitions_max:
            raise BrokerError(
                ErrorCode.INVALID_PARTITIONS,
                f"{partitions} partitions were requested; a topic has between 1 and "
                f"{partitions_max} (max.partitions.per.topic)",
            )

    def _place(self, partitions: int, replication_factor: int) -> list[tuple[int, ...]]:
        brokers = self._places(replication_factor)
        start = self._random.randrange(max(len(brokers), 1))
        absent = self.size.absent() if len(brokers) < replication_factor else ()
        return place_partitions(brokers, partitions, replication_factor, start, absent)

    def _places(self, replication_factor: int) -> list[PlacementBroker]:
        """Return the live brokers for new replicas; brokers about to stop only if necessary."""
        image = self._catalog.image
        decommissioned = decommission.named(image.default_broker_configs)
        places = [
            PlacementBroker(broker.node_id, broker.rack)
            for broker in image.brokers.values()
            if broker.node_id not in decommissioned
        ]
        staying = [place for place in places if place.broker_id in image.eligible]
        return staying if len(staying) >= replication_factor else places
