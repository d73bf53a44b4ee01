"""This broker's part in replication: it serves its followers and follows its leaders.

Builds and connects the two sides and starts and stops them; each is documented in its own module.
Both follow the metadata after the partitions have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.env.clock import Clock
from millstream.env.network import Network
from millstream.env.random import Random
from millstream.env.supervisor import Supervisor
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.model.topic import TopicPartition
from millstream.replication.follower.fetcher import FetcherContext, FetcherOptions
from millstream.replication.follower.fetcher_pool import FetcherPool
from millstream.replication.leader.follower_session import LeaderContext
from millstream.replication.leader.follower_sessions import FollowerSessions
from millstream.replication.leader.isr_change import IsrChanges, Update
from millstream.replication.partition import Partition
from millstream.replication.replicas import Replicas
from millstream.replication.stats import ReplicationStats
from millstream.replication.throttle import UNLIMITED, ReplicaLimit


class ReplicationRates(NamedTuple):
    """Bytes a second for replicas that are throttled: those that topics name, and those that a
    reassignment adds."""

    leader: int = UNLIMITED
    follower: int = UNLIMITED
    leader_moving: int = UNLIMITED
    follower_moving: int = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatorOptions:
    #: The listener through which brokers reach each other.
    listener_name: str
    lag_ms_max: int = 30_000
    #: For each broker that this one follows.
    fetchers_per_source: int = 1
    #: Bytes a second for a follower that catches up while producers write.
    catch_up_rate: int = 64 * 1024 * 1024
    fetcher: FetcherOptions = field(default_factory=FetcherOptions)
    rates: ReplicationRates = field(default_factory=ReplicationRates)


class Replicator:
    """Runs between `start` and `stop`. Event loop only."""

    __slots__ = (
        "_follower_limit",
        "_is_started",
        "_isr",
        "_leader_limit",
        "_pool",
        "_replicas",
        "sessions",
        "stats",
    )

    def __init__(
        self,
        broker_id: int,
        replicas: Replicas,
        update_partition: Update,
        options: ReplicatorOptions,
        *,
        clock: Clock,
        network: Network,
        random: Random,
        supervisor: Supervisor,
    ) -> None:
        self.stats = ReplicationStats()
        self._replicas = replicas
        self._leader_limit = ReplicaLimit()
        self._follower_limit = ReplicaLimit()
        self._set_rates(options.rates)
        self._isr = IsrChanges(
            update_partition, replicas, clock, options.lag_ms_max, self.stats, supervisor
        )
        #: Of the brokers that follow this one.
        self.sessions = FollowerSessions(
            LeaderContext(
                replicas,
                self._isr,
                clock,
                self.stats,
                self._leader_limit,
                options.catch_up_rate,
            ),
            random,
        )
        context = FetcherContext(
            broker_id,
            network,
            clock,
            replicas,
            options.fetcher,
            self.stats,
            self._follower_limit,
            supervisor,
        )
        self._pool = FetcherPool(context, options.listener_name, options.fetchers_per_source)
        self._is_started = False
        replicas.on_retried = self._retried

    def start(self, image: ClusterImage) -> None:
        """To be called when this broker is registered and `image` shows it."""
        self._is_started = True
        self._isr.start(image)
        self._pool.start(image)

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """To be called after the partitions have followed."""
        if not self._is_started:
            return
        self._isr.apply_delta(image, delta)
        self.sessions.apply_delta(image, delta)
        self._pool.apply_delta(image, delta)

    def log_failed(self, topic_partition: TopicPartition) -> None:
        """A log went offline: let another replica lead, and do not follow with it."""
        partition = self._replicas.get(*topic_partition)
        if self._is_started and partition is not None:
            self._isr.review_soon(partition)
            self._pool.assign_soon(partition)

    def _retried(self, partition: Partition) -> None:
        """A partition took its role after all: fetch it from its leader if it follows."""
        if self._is_started:
            self._pool.assign_soon(partition)

    def lost_leaders(self) -> list[int]:
        """Leaders that have just hung up: dead, as likely as not."""
        return self._pool.lost()

    def configure(self, options: ReplicatorOptions) -> None:
        """Apply the rates and the number of fetchers, which may change at run time."""
        self._set_rates(options.rates)
        self._pool.set_fetchers_per_source(options.fetchers_per_source)

    def _set_rates(self, rates: ReplicationRates) -> None:
        self._leader_limit.set_rates(rates.leader, rates.leader_moving)
        self._follower_limit.set_rates(rates.follower, rates.follower_moving)

    async def stop(self) -> None:
        self._is_started = False
        await self._pool.stop()
        await self._isr.stop()
        self.sessions.close()
