"""What `Admin` takes and returns for topics, brokers and settings. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias, TypeVar

from millstream.client.error import MillstreamError

T = TypeVar("T")

#: The outcome for one item of a call with several items: its result, or the error.
Outcome: TypeAlias = T | MillstreamError
ResourceKind: TypeAlias = Literal["topic", "broker", "group"]
ScramMechanism: TypeAlias = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """Who has a quota: a user, a client id, both together, or an address.

    `QuotaEntity.DEFAULT` instead of a name means all users (client ids, addresses) that have no
    quota of their own.
    """

    #: No user, client id or address has an empty name.
    DEFAULT: ClassVar[str] = ""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


class BrokerNode(NamedTuple):
    """A broker of the cluster."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers that are alive, and the controller among them."""

    cluster_id: str
    controller: BrokerNode | None
    brokers: tuple[BrokerNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to be created. -1 leaves a number to the brokers."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """One partition of a topic. Replicas are node ids."""

    partition: int
    #: None while no broker leads the partition.
    leader: int | None
    #: The first replica is the preferred leader.
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    #: The eligible leader replicas. None if the brokers do not report them.
    elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic with its partitions, in the order of their numbers."""

    name: str
    #: URL-safe base64, as Kafka's tools print it.
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]

    @property
    def replication_factor(self) -> int:
        """The number of replicas of the partition that has the fewest."""
        return min((len(each.replicas) for each in self.partitions), default=0)


class ConfigResource(NamedTuple):
    """A topic, a broker or a group that has settings."""

    kind: ResourceKind
    name: str

    @classmethod
    def topic(cls, name: str) -> Self:
        """Return the resource of a topic."""
        return cls("topic", name)

    @classmethod
    def broker(cls, node_id: int | None = None) -> Self:
        """Return the resource of a broker, or without a node id of all brokers together."""
        return cls("broker", "" if node_id is None else str(node_id))

    @classmethod
    def group(cls, group_id: str) -> Self:
        """Return the resource of a consumer group."""
        return cls("group", group_id)

    def __str__(self) -> str:
        return "all brokers" if self == ("broker", "") else f"{self.kind} {self.name!r}"


class ConfigSource(StrEnum):
    """Where a setting's value comes from."""

    TOPIC = "topic"
    GROUP = "group"
    BROKER = "broker"
    ALL_BROKERS = "all brokers"
    BROKER_FILE = "broker's file"
    DEFAULT = "default"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting that is in force. A sensitive setting has no value."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool = False
    is_sensitive: bool = False

    @property
    def is_default(self) -> bool:
        """Whether the value is the built-in default."""
        return self.source is ConfigSource.DEFAULT


class Reassignment(NamedTuple):
    """A partition that is moving to other brokers. Replicas are node ids."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
