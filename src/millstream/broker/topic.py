"""Making topics: defaults, placement and limits, for everybody who creates or grows one.

Decides where replicas go (`controller.placement`) and has the catalog store it. Knows which names
are the broker's own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from millstream.broker.config import replication_default
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.config.cluster_size import ClusterSize
from millstream.controller import decommission
from millstream.controller.replica_placement import Place, place_partitions
from millstream.env.random import Random
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.metadata.catalog import Catalog, TopicResult
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.metadata.topic_change import NewPartitions, NewTopic
from millstream.model.durability import effective_min_isr
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import validate_topic_name
from millstream.transactions.state_topic import TRANSACTIONS_TOPIC

_log = logging.getLogger(__name__)

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})

#: "As the broker is configured", for a partition count or a replication factor.
DEFAULT: Final = -1


def is_internal(name: str) -> bool:
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
        #: How many brokers there are, which default numbers of replicas depend on.
        self.size = size
        #: The defaults that the log has named last; empty before the broker is ready.
        self._announced: list[int] = []

    def follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        """The metadata changed: count brokers anew, and log it if that changes the defaults."""
        self.size.apply_delta(image, delta)
        if self._announced and (delta.brokers or delta.broker_configs):
            self.announce_defaults()

    def announce_defaults(self) -> None:
        """Log the defaults for replicas, unless they are those that the log has named last."""
        brokers = self.size.count
        defaults = replication_default.all_values(self.config, brokers)
        if defaults != self._announced:
            self._announced = defaults
            _log.info("%s", replication_default.describe(self.config, brokers))

    def close(self) -> None:
        """Reject what waits for brokers to join: this broker stops."""
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
        """A new topic with replicas placed by the broker. May wait where the factor is DEFAULT."""
        if partitions == DEFAULT:
            partitions = self.config.topics.num_partitions
        if replication_factor == DEFAULT:
            replication_factor = await self._default(replication_default.FACTOR)
        self._check_count(partitions)
        return NewTopic(name, self._place(partitions, replication_factor), configs)

    def check_brokers(self, assignment: Sequence[Sequence[int]]) -> None:
        """INVALID_REPLICA_ASSIGNMENT if replicas are assigned to a broker that is not of this
        cluster. It would count as one that is down from then on."""
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
        """Create topics with the broker's defaults, internal ones with their own.

        Returns what failed, by name. One that somebody else made meanwhile is not a failure."""
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
        """The replicas of an internal topic. A number that is set is never lowered among several
        brokers: the topic would keep fewer replicas for good, because some brokers were not up yet
        when somebody first asked."""
        return 1 if self.size.is_alone else await self._default(setting)

    async def _default(self, setting: str) -> int:
        """The value in force of a setting for replicas, once no more brokers are about to join."""
        if replication_default.is_derived(self.config, setting):
            await self.size.wait_until_settled()
        return replication_default.value(self.config, setting, self.size.count)

    def plan_growth(
        self, name: str, count: int, assignment: Sequence[Sequence[int]] | None
    ) -> NewPartitions:
        """More partitions for a topic, on the given replicas or placed by the broker."""
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
        most = self.config.topics.max_partitions_per_topic
        if not 1 <= partitions <= most:
            raise BrokerError(
                ErrorCode.INVALID_PARTITIONS,
                f"{partitions} partitions were asked for; a topic has between 1 and {most} "
                "(max.partitions.per.topic)",
            )

    def _place(self, partitions: int, replication_factor: int) -> list[tuple[int, ...]]:
        brokers = self._places(replication_factor)
        start = self._random.randrange(max(len(brokers), 1))
        absent = self.size.absent() if len(brokers) < replication_factor else ()
        return place_partitions(brokers, partitions, replication_factor, start, absent)

    def _places(self, replication_factor: int) -> list[Place]:
        """Live brokers that new replicas may go to; those about to stop only if need be."""
        image = self._catalog.image
        emptied = decommission.named(image.default_broker_configs)
        places = [
            Place(broker.node_id, broker.rack)
            for broker in image.brokers.values()
            if broker.node_id not in emptied
        ]
        staying = [place for place in places if place.broker_id in image.eligible]
        return staying if len(staying) >= replication_factor else places
