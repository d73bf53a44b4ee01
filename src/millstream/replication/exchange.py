"""This broker's part in replication: it serves its followers and follows its leaders.

Builds and connects the two sides and starts and stops them; each is documented in its own module.
Both follow the metadata after the partitions have.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.env.clock import Clock
from millstream.env.network import Network
from millstream.env.random import Random
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.replication.fetcher import FetcherOptions, Follower
from millstream.replication.follower_session import Leader
from millstream.replication.follower_sessions import FollowerSessions
from millstream.replication.following import Following
from millstream.replication.isr_change import IsrChanges, Update
from millstream.replication.replica import Replicas
from millstream.replication.stats import ReplicationStats
from millstream.replication.throttle import UNLIMITED, Throttle


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeOptions:
    #: The listener through which brokers reach each other.
    listener_name: str
    lag_ms_max: int = 30_000
    fetcher: FetcherOptions = field(default_factory=FetcherOptions)
    #: Bytes a second for replicas that are throttled.
    leader_rate: int = UNLIMITED
    follower_rate: int = UNLIMITED


class ReplicaExchange:
    """Runs between `start` and `stop`. Event loop only."""

    __slots__ = (
        "_follower_throttle",
        "_following",
        "_is_started",
        "_isr",
        "_leader_throttle",
        "sessions",
        "stats",
    )

    def __init__(
        self,
        broker_id: int,
        replicas: Replicas,
        update_partition: Update,
        options: ExchangeOptions,
        *,
        clock: Clock,
        network: Network,
        random: Random,
    ) -> None:
        self.stats = ReplicationStats()
        self._leader_throttle = Throttle(options.leader_rate)
        self._follower_throttle = Throttle(options.follower_rate)
        self._isr = IsrChanges(update_partition, replicas, clock, options.lag_ms_max, self.stats)
        #: Of the brokers that follow this one.
        self.sessions = FollowerSessions(
            Leader(replicas, self._isr, clock, self.stats, self._leader_throttle), random
        )
        follower = Follower(
            broker_id,
            network,
            clock,
            replicas,
            options.fetcher,
            self.stats,
            self._follower_throttle,
        )
        self._following = Following(follower, options.listener_name)
        self._is_started = False

    def start(self, image: ClusterImage) -> None:
        """To be called when this broker is registered and `image` shows it."""
        self._is_started = True
        self._isr.start(image)
        self._following.start(image)

    def follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        """To be called after the partitions have followed."""
        if not self._is_started:
            return
        self._isr.follow(image, delta)
        self.sessions.follow(image, delta)
        self._following.follow(image, delta)

    def lost_leaders(self) -> list[int]:
        """Leaders that have just hung up: dead, as likely as not."""
        return self._following.lost()

    def set_rates(self, leader_rate: int, follower_rate: int) -> None:
        """Settings changed at run time."""
        self._leader_throttle.bytes_per_second = leader_rate
        self._follower_throttle.bytes_per_second = follower_rate

    async def stop(self) -> None:
        self._is_started = False
        await self._following.stop()
        await self._isr.stop()
        self.sessions.close()
