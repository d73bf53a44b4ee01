"""Replication on this broker: serves its followers and fetches from its leaders.

Builds, starts and stops the leader's side and the follower's side. Both apply metadata after the
partitions have applied it.
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
    """Bytes a second of throttled replicas: those that topic settings name, and those that a
    reassignment adds (`moving`)."""

    leader: int = UNLIMITED
    follower: int = UNLIMITED
    leader_moving: int = UNLIMITED
    follower_moving: int = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatorOptions:
    """Settings of replication on one broker."""

    #: The listener for connections between brokers.
    listener_name: str
    lag_ms_max: int = 30_000
    #: Number of fetchers for each leader.
    fetchers_per_source: int = 1
    #: Bytes a second for a follower that catches up while producers write.
    catch_up_rate: int = 64 * 1024 * 1024
    fetcher: FetcherOptions = field(default_factory=FetcherOptions)
    rates: ReplicationRates = field(default_factory=ReplicationRates)


class Replicator:
    """Both sides of replication, between `start` and `stop`. Event loop only."""

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
        #: The fetch sessions of this broker's followers.
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
        """Start both sides. Called when this broker is registered and `image` shows it."""
        self._is_started = True
        self._isr.start(image)
        self._pool.start(image)

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Apply a delta. Called after the partitions have applied it."""
        if not self._is_started:
            return
        self._isr.apply_delta(image, delta)
        self.sessions.apply_delta(image, delta)
        self._pool.apply_delta(image, delta)

    def log_failed(self, topic_partition: TopicPartition) -> None:
        """Handle a log that went offline: propose another leader, and stop fetching into it."""
        partition = self._replicas.get(*topic_partition)
        if self._is_started and partition is not None:
            self._isr.review_soon(partition)
            self._pool.assign_soon(partition)

    def _retried(self, partition: Partition) -> None:
        """Fetch a partition whose role was applied by a retry, if it follows."""
        if self._is_started:
            self._pool.assign_soon(partition)

    def lost_leaders(self) -> list[int]:
        """Return the leaders that have just closed their connections; most of them are dead."""
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
