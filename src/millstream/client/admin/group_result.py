"""What `Admin` returns for consumer groups. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from millstream.client.admin.result import BrokerNode
from millstream.client.error import BrokerError
from millstream.client.record import Partition


class GroupState(StrEnum):
    """The states of a group by their Kafka names."""

    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    EMPTY = "Empty"
    DEAD = "Dead"
    UNKNOWN = "Unknown"


class GroupType(StrEnum):
    """The protocol of a group's members."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    UNKNOWN = "Unknown"


class GroupListing(NamedTuple):
    """A group in the list of all groups."""

    group_id: str
    state: GroupState
    type: GroupType


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group and its partitions."""

    member_id: str
    #: The static member's id, or None.
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[Partition, ...]
    #: The assignment that the member is moving to. None with the classic protocol.
    target_assignment: tuple[Partition, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group, its coordinator and its members."""

    group_id: str
    state: GroupState
    type: GroupType
    #: The name of the assignor, such as `cooperative-sticky`. None if the group has none.
    assignor: str | None
    coordinator: BrokerNode | None
    members: tuple[GroupMember, ...]

    @property
    def is_active(self) -> bool:
        """Whether the group has members, which would overwrite changed offsets."""
        return bool(self.members) or self.state is not GroupState.EMPTY


class OffsetChange(NamedTuple):
    """The change of a group's committed offset in one partition."""

    topic: str
    partition: int
    #: None without a committed offset.
    current: int | None
    #: May lie outside of the partition; `new` is then the nearest offset inside.
    requested: int
    new: int

    @property
    def key(self) -> Partition:
        """The partition that the change applies to."""
        return Partition(self.topic, self.partition)

    @property
    def difference(self) -> int | None:
        """How far the offset moves; None without a committed offset."""
        return None if self.current is None else self.new - self.current

    @property
    def is_changed(self) -> bool:
        """Whether the new offset differs from the committed one."""
        return self.new != self.current


class IncompleteListing(BrokerError):  # noqa: N818
    """Some brokers did not list their groups. `groups` has the groups of the other brokers."""

    def __init__(self, error: BrokerError, groups: list[GroupListing]) -> None:
        super().__init__(str(error), error.name, error.code)
        self.groups = groups
