"""The settings of groups of both kinds."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.groups.classic.classic_settings import ClassicGroupSettings
from millstream.groups.consumer.consumer_settings import ConsumerGroupSettings
from millstream.model.map import Map


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The broker's settings for groups, and the overrides of single groups."""

    classic: ClassicGroupSettings = field(default_factory=ClassicGroupSettings)
    consumer: ConsumerGroupSettings = field(default_factory=ConsumerGroupSettings)
    #: By group id: settings of consumer groups that override the broker's.
    own: Map[str, ConsumerGroupSettings] = field(default_factory=Map)
    #: Whether a group with members may change to the consumer protocol, and back.
    allows_upgrade: bool = True
    allows_downgrade: bool = True

    def consumer_of(self, group_id: str) -> ConsumerGroupSettings:
        """Return the settings of one consumer group."""
        return self.own.get(group_id, self.consumer)
