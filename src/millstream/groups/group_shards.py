"""All group shards of this broker: the partitions of `__consumer_offsets` that it leads.

Adds to `coordination.shards`: offsets of deleted topics are deleted, and a background task deletes
expired offsets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from millstream.coordination.effects import TimerKey
from millstream.coordination.journal import JournalOptions
from millstream.coordination.shard import LedPartition, ShardState
from millstream.coordination.shards import CoordinatorShards
from millstream.env.clock import Clock
from millstream.env.random import Random
from millstream.env.supervisor import Supervisor, Work
from millstream.groups.consumer.consumer_settings import ConsumerGroupSettings
from millstream.groups.group import Group
from millstream.groups.group_settings import GroupSettings
from millstream.groups.group_shard import GroupShard
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.groups.subscription.topic_view import ImageTopicView, TopicView
from millstream.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from millstream.model.failure import CallbackKind
from millstream.replication.replicas import Replicas

_logger = logging.getLogger(__name__)

#: Groups checked for expired offsets before the event loop runs other tasks.
_GROUPS_PER_TURN: Final = 200


@dataclass(frozen=True, slots=True)
class GroupCoordinatorOptions:
    """The broker's settings for groups and their coordinator."""

    session_timeout_ms_min: int = 6000
    session_timeout_ms_max: int = 1_800_000
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_check_interval_ms: int = 600_000
    #: Bytes per read while a partition is loaded.
    load_bytes: int = 1024 * 1024
    groups: GroupSettings = field(default_factory=GroupSettings)
    journal: JournalOptions = field(default_factory=JournalOptions)


class GroupShards(CoordinatorShards[GroupShard]):
    """The group shards of this broker. Event loop only."""

    __slots__ = ("_random", "options", "topics")

    topic = OFFSETS_TOPIC
    kind = "group"

    def __init__(
        self,
        replicas: Replicas,
        clock: Clock,
        supervisor: Supervisor,
        random: Random,
        options: GroupCoordinatorOptions,
    ) -> None:
        super().__init__(replicas, clock, supervisor)
        self._random = random
        #: Replaced by `configure` and `set_consumer`.
        self.options = options
        #: The topics of the last image.
        self.topics: TopicView = ImageTopicView(EMPTY_IMAGE)

    @property
    def _journal_options(self) -> JournalOptions:
        return self.options.journal

    @property
    def _load_bytes(self) -> int:
        return self.options.load_bytes

    def start(self, image: ClusterImage) -> None:
        self.topics = ImageTopicView(image)
        super().start(image)

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        if self._is_stopped:
            return
        self.topics = ImageTopicView(image)
        failures = self._replicas.failures
        for topic in delta.deleted:
            for shard in self._shards.values():
                if shard.state is ShardState.ACTIVE:
                    about = f"partition {shard.index} deletes offsets of {topic.name}"
                    failures.run(CallbackKind.SHARD, about, shard.forget_topic, topic.name)
        super().apply_delta(image, delta)

    def configure(self, changes: Mapping[str, ConsumerGroupSettings | None]) -> None:
        """Change the settings of single groups; None removes a group's own settings."""
        own = self.options.groups.own.mutate()
        for group_id, settings in changes.items():
            if settings is None:
                own.pop(group_id, None)
            else:
                own[group_id] = settings
        groups = replace(self.options.groups, own=own.finish())
        self.options = replace(self.options, groups=groups)
        for shard in self._shards.values():
            shard.configure(groups, changes)

    def set_consumer(self, settings: ConsumerGroupSettings) -> None:
        """Change the settings of consumer groups that have none of their own."""
        groups = replace(self.options.groups, consumer=settings)
        self.options = replace(self.options, groups=groups)
        for shard in self._shards.values():
            shard.configure(groups, shard.groups)

    def _make(self, led: LedPartition) -> GroupShard:
        return GroupShard(led, self._set_timer, self.options.groups, self._random)

    def _expire_timer(self, shard: GroupShard, owner: str, key: TimerKey) -> None:
        shard.expire_timer(self.now_ms, owner, key, self.topics)

    def all_groups(self) -> Iterator[Group]:
        """Yield all groups; raise COORDINATOR_LOAD_IN_PROGRESS if a shard is not loaded."""
        for shard in self.all():
            yield from shard.groups.values()

    # Expiry

    def _background(self) -> dict[str, Work]:
        return {"offset-expiry": self._expire_regularly}

    async def _expire_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.options.offsets_check_interval_ms / 1000)
            await self.expire_offsets()

    async def expire_offsets(self) -> int:
        """Delete expired offsets and empty groups without offsets; return the number of offsets."""
        count = checked = 0
        for shard in list(self._shards.values()):
            for group_id in list(shard.groups):
                if shard.state is not ShardState.ACTIVE:
                    break
                count += self._expire_offsets_of(shard, group_id)
                checked += 1
                if checked % _GROUPS_PER_TURN == 0:
                    await asyncio.sleep(0)
        if count:
            _logger.info("%d committed offsets expired", count)
        return count

    def _expire_offsets_of(self, shard: GroupShard, group_id: str) -> int:
        retention_ms = self.options.offsets_retention_ms
        try:
            return shard.expire_offsets(self.now_ms, retention_ms, group_id)
        except Exception as error:  # noqa: BLE001  # reported; the loop continues with other groups
            self._supervisor.report("offset-expiry", error, f"group {group_id}")
            return 0

    def serving(self) -> list[GroupShard]:
        """Return the shards that are ACTIVE."""
        return [shard for shard in self._shards.values() if shard.state is ShardState.ACTIVE]

    def is_serving(self, index: int) -> bool:
        """Whether the shard of this partition is ACTIVE."""
        shard = self._shards.get(index)
        return shard is not None and shard.state is ShardState.ACTIVE
