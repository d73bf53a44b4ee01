"""`Admin`: manages topics, groups, settings and offsets. Each call waits for its response."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn, Self, Unpack

from millstream.client.admin import (
    config_request,
    group_request,
    offset_request,
    offset_reset,
    topic_request,
)
from millstream.client.admin.acl import Acl, AclFilter
from millstream.client.admin.group_result import (
    GroupDescription,
    GroupListing,
    GroupState,
    GroupType,
    OffsetChange,
)
from millstream.client.admin.handle import AdminHandle, single
from millstream.client.admin.offset_request import OffsetAt
from millstream.client.admin.offset_reset import ResetTo
from millstream.client.admin.result import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    Outcome,
    QuotaEntity,
    Reassignment,
    ScramMechanism,
    TopicDescription,
)
from millstream.client.connection import ConnectionOptions, ConnectionSettings
from millstream.client.error import BrokerError, UsageError, is_existing
from millstream.client.record import OffsetAndMetadata, Partition
from millstream.client.setting import at_least

TIMEOUT_S: Final = 30.0
#: Methods of earlier versions, and the methods that replace them.
_RENAMED: Final = {
    "topics": "list_topics()",
    "topic": "describe_topic(name)",
    "topic_config": "describe_config(ConfigResource.topic(name))",
    "alter_topic": "alter_config(ConfigResource.topic(name), {...})",
    "add_partitions": "create_partitions(topic, total)",
    "offsets": "list_topic_offsets(topic, 'latest')",
    "groups": "list_groups()",
    "group_offsets": "list_group_offsets(group_id)",
}


class _AdminSettings(ConnectionSettings):
    arguments: ClassVar[tuple[str, ...]] = ("bootstrap_servers", "timeout")


class Admin:
    """Manages topics, groups, settings and offsets.

    >>> with Admin() as admin:
    ...     admin.create_topic("fruit", partitions=3, config={"retention.ms": "3600000"})
    ...     print(len(admin.describe_topic("fruit").partitions))
    ...     print(admin.describe_config(ConfigResource.topic("fruit"))["retention.ms"].value)
    ...     admin.delete_topic("fruit")
    True
    3
    3600000

    A method for one item raises its error. A method for several items returns the outcome of each:
    its result, or the error. `timeout` is in seconds and applies to each call. The keywords are
    those of `ConnectionSettings`. Methods may be called from any thread. `AsyncAdmin` has the same
    methods for asyncio.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        timeout: float = TIMEOUT_S,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        self.timeout = timeout
        settings = _AdminSettings.of(options)
        properties = settings.connection_properties(bootstrap_servers)
        self._handle = AdminHandle(properties | dict(settings.config))

    @property
    def timeout(self) -> float:
        """How long each call waits for its responses, in seconds."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        at_least("timeout", seconds, 0)
        self._timeout = seconds

    # Topics

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        if_missing: bool = False,
    ) -> bool:
        """Create a topic; -1 leaves a number to the brokers.

        With `if_missing` an existing topic stays as it is, and the call returns False.
        """
        topic = NewTopic(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            config=config or {},
        )
        try:
            single(self.create_topics([topic])[name])
        except BrokerError as error:
            if if_missing and is_existing(error.code):
                return False
            raise
        return True

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, Outcome[None]]:
        """Create topics, or with `validate_only` only let the brokers check the request."""
        return topic_request.create_topics(
            self._handle, list(topics), self.timeout, validate_only=validate_only
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""
        single(self.delete_topics([name])[name])

    def delete_topics(self, names: Iterable[str]) -> dict[str, Outcome[None]]:
        """Delete topics with all their records."""
        return topic_request.delete_topics(self._handle, _names(names, "names"), self.timeout)

    def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        """Raise a topic's number of partitions to `total`.

        New records of a key may go to another partition than its older records.
        """
        topic_request.create_partitions(
            self._handle, topic, total, self.timeout, validate_only=validate_only
        )

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, with `internal` also those of the brokers."""
        return topic_request.list_topics(self._handle, self.timeout, internal=internal)

    def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic's partitions with their leaders and replicas."""
        return single(self.describe_topics([name])[name])

    def describe_topics(
        self, names: Iterable[str], *, elr: bool = True
    ) -> dict[str, Outcome[TopicDescription]]:
        """Return the partitions of topics with their leaders and replicas.

        Without `elr`, the eligible leader replicas are not fetched, which saves a connection.
        """
        return topic_request.describe_topics(
            self._handle, _names(names, "names"), self.timeout, elr=elr
        )

    def delete_records(self, offsets: Mapping[Partition, int]) -> dict[Partition, Outcome[int]]:
        """Delete the records of each partition before its offset; -1 means all records.

        Returns the new start offset of each partition.
        """
        chosen = {Partition(*partition): offset for partition, offset in offsets.items()}
        return topic_request.delete_records(self._handle, chosen, self.timeout)

    # Offsets of partitions

    def list_offsets(
        self, partitions: Mapping[Partition, OffsetAt], *, read_committed: bool = False
    ) -> dict[Partition, Outcome[int]]:
        """Return an offset of each partition: "earliest", "latest", or at a time.

        A time is a datetime or milliseconds since 1970. It stands for the first record at or after
        it, and for -1 if there is none. With `read_committed` the latest offset is the end of the
        last transaction that is not open.
        """
        return offset_request.list_offsets(
            self._handle, partitions, self.timeout, read_committed=read_committed
        )

    def list_topic_offsets(self, topic: str, at: OffsetAt = "latest") -> dict[Partition, int]:
        """Return an offset of every partition of a topic; see `list_offsets`."""
        found = topic_request.partitions_of(self._handle, [topic], self.timeout)[topic]
        offsets = self.list_offsets(dict.fromkeys(found, at))
        return {partition: single(offset) for partition, offset in offsets.items()}

    # The cluster

    def describe_cluster(self) -> ClusterDescription:
        """Return the brokers that are alive, and the controller."""
        return topic_request.describe_cluster(self._handle, self.timeout)

    def elect_leaders(
        self, partitions: Iterable[Partition] | None = None, *, unclean: bool = False
    ) -> dict[Partition, Outcome[bool]]:
        """Elect leaders of these partitions, or of all. Return whether each has a new leader.

        The preferred replica becomes the leader if it is in sync. With `unclean`, partitions
        without a leader get a live replica that may lack acknowledged records: these are lost. The
        result is False for a partition that needs no election. An election for all partitions
        leaves those out.
        """
        from millstream.client.admin import protocol_request

        chosen = None if partitions is None else [Partition(*each) for each in partitions]
        return protocol_request.elect_leaders(self._handle, chosen, self.timeout, unclean=unclean)

    def alter_partition_reassignments(
        self, targets: Mapping[Partition, Sequence[int] | None]
    ) -> dict[Partition, Outcome[None]]:
        """Start to move each partition to these brokers. None cancels its reassignment.

        The brokers copy the records and change the replicas once the new ones are in sync.
        """
        from millstream.client.admin import protocol_request

        return protocol_request.alter_reassignments(self._handle, targets, self.timeout)

    def list_partition_reassignments(
        self, topics: Iterable[str] | None = None
    ) -> dict[Partition, Reassignment]:
        """Return the partitions that are moving, of these topics or of all."""
        from millstream.client.admin import protocol_request

        names = None if topics is None else _names(topics, "topics")
        return protocol_request.list_reassignments(self._handle, names, self.timeout)

    # Users

    def create_user(
        self,
        name: str,
        password: str,
        *,
        mechanisms: Sequence[ScramMechanism] = ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        iterations: int = 4096,
    ) -> None:
        """Create a user that logs in with a password.

        The password is not sent: the brokers get what SCRAM derives from it.
        """
        from millstream.client.admin import user_request

        user_request.create_user(self._handle, name, password, mechanisms, iterations, self.timeout)

    def list_users(self) -> dict[str, dict[ScramMechanism, int]]:
        """Return the iterations of each user's credentials, by user and mechanism."""
        from millstream.client.admin import user_request

        return user_request.list_users(self._handle, self.timeout)

    def alter_user(self, name: str, password: str, *, iterations: int | None = None) -> None:
        """Change the password of a user, for all mechanisms that the user has."""
        from millstream.client.admin import user_request

        user_request.alter_user(self._handle, name, password, iterations, self.timeout)

    def delete_user(self, name: str) -> None:
        """Delete a user. Connections that are logged in stay open."""
        from millstream.client.admin import user_request

        user_request.delete_user(self._handle, name, self.timeout)

    # Quotas

    def alter_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
    ) -> dict[QuotaEntity, Outcome[None]]:
        """Set these quotas of each entity and no others. None removes a quota.

        The quotas are Kafka's: producer_byte_rate, consumer_byte_rate, request_percentage,
        controller_mutation_rate, and for an address connection_creation_rate.
        """
        from millstream.client.admin import protocol_request

        return protocol_request.alter_quotas(
            self._handle, changes, self.timeout, validate_only=validate_only
        )

    def list_quotas(self) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of all users, client ids and addresses that have any."""
        from millstream.client.admin import protocol_request

        return protocol_request.list_quotas(self._handle, self.timeout)

    # ACLs

    def create_acls(self, acls: Iterable[Acl]) -> dict[Acl, Outcome[None]]:
        """Create ACLs. An ACL that exists already stays as it is."""
        from millstream.client.admin import acl_request

        return acl_request.create_acls(self._handle, list(dict.fromkeys(acls)), self.timeout)

    def list_acls(self, wanted: AclFilter | None = None) -> list[Acl]:
        """Return the ACLs that a filter matches, or all."""
        from millstream.client.admin import acl_request

        return acl_request.list_acls(self._handle, wanted or AclFilter(), self.timeout)

    def delete_acls(self, filters: Iterable[AclFilter]) -> dict[AclFilter, Outcome[list[Acl]]]:
        """Delete the ACLs that filters match. Returns the deleted ACLs of each filter."""
        from millstream.client.admin import acl_request

        return acl_request.delete_acls(self._handle, list(dict.fromkeys(filters)), self.timeout)

    # Settings

    def describe_config(self, resource: ConfigResource) -> dict[str, ConfigEntry]:
        """Return all settings of a topic, broker or group that are in force."""
        return single(self.describe_configs([resource])[resource])

    def describe_configs(
        self, resources: Iterable[ConfigResource]
    ) -> dict[ConfigResource, Outcome[dict[str, ConfigEntry]]]:
        """Return all settings of topics, brokers and groups that are in force."""
        return config_request.describe_configs(self._handle, resources, self.timeout)

    def alter_config(
        self,
        resource: ConfigResource,
        changes: Mapping[str, str | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change these settings and no others. None resets a setting to its default."""
        found = self.alter_configs({resource: changes}, validate_only=validate_only)
        for outcome in found.values():
            single(outcome)

    def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
    ) -> dict[ConfigResource, Outcome[None]]:
        """Change these settings of each resource and no others. None resets a setting."""
        return config_request.alter_configs(
            self._handle, changes, self.timeout, validate_only=validate_only
        )

    # Groups

    def list_groups(
        self, *, states: Collection[GroupState] = (), types: Collection[GroupType] = ()
    ) -> list[GroupListing]:
        """Return the groups in these states and of these types, by default all.

        Raises IncompleteListing if a broker does not respond.
        """
        return group_request.list_groups(self._handle, states, types, self.timeout)

    def describe_group(self, group_id: str) -> GroupDescription:
        """Return a group's state, its coordinator, and its members with their partitions."""
        return single(self.describe_groups([group_id])[group_id])

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, Outcome[GroupDescription]]:
        """Return the state, the coordinator and the members of groups."""
        return group_request.describe_groups(
            self._handle, _names(group_ids, "group_ids"), self.timeout
        )

    def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its offsets."""
        single(self.delete_groups([group_id])[group_id])

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, Outcome[None]]:
        """Delete groups without members, and their offsets."""
        return group_request.delete_groups(
            self._handle, _names(group_ids, "group_ids"), self.timeout
        )

    def list_group_offsets(self, group_id: str) -> dict[Partition, OffsetAndMetadata]:
        """Return a group's committed offsets. Each is an int with the attribute `metadata`."""
        return group_request.list_group_offsets(self._handle, group_id, self.timeout)

    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[Partition, int]
    ) -> dict[Partition, Outcome[None]]:
        """Commit these offsets for a group without members, which is created if it is missing."""
        return group_request.alter_group_offsets(self._handle, group_id, offsets, self.timeout)

    def reset_group_offsets(
        self,
        group_id: str,
        *,
        topics: Iterable[str | Partition] | None = None,
        to: ResetTo | None = None,
        duration: dt.timedelta | float | None = None,
        shift_by: int | None = None,
        dry_run: bool = False,
    ) -> list[OffsetChange]:
        """Change the committed offsets of a group without members. Return each change.

        `to` is "earliest", "latest", an offset, a datetime, or an offset for each partition.
        `duration` goes back by seconds or a timedelta from now. `shift_by` moves each offset,
        backwards if negative. Applies to the committed partitions, or to those of `topics`. An
        offset outside of a partition becomes the nearest one inside. With `dry_run` nothing
        changes.
        """
        target = offset_reset.target_of(to, duration, shift_by)
        changes = offset_reset.plan(self._handle, group_id, topics, target, self.timeout)
        if not dry_run:
            offsets = {each.key: each.new for each in changes if each.is_changed}
            for outcome in self.alter_group_offsets(group_id, offsets).values():
                single(outcome)
        return changes

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[Partition]
    ) -> dict[Partition, Outcome[None]]:
        """Delete a group's committed offsets of partitions to which no member subscribes."""
        from millstream.client.admin import protocol_request

        group_request.check_names([group_id])
        chosen = [Partition(*each) for each in partitions]
        return protocol_request.delete_group_offsets(self._handle, group_id, chosen, self.timeout)

    def close(self) -> None:
        """Close the client. Further calls raise ClosedError."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    if not TYPE_CHECKING:  # Type checkers would accept any name.

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_method(type(self).__name__, name)


def missing_method(owner: str, name: str) -> AttributeError:
    """Return the error for a method that does not exist, with the new name of an old one."""
    if name in _RENAMED:
        return AttributeError(f"{owner}.{name}() no longer exists: use {owner}.{_RENAMED[name]}.")
    return AttributeError(f"{owner!r} object has no attribute {name!r}")


def _names(names: Iterable[str], argument: str) -> list[str]:
    """Return the names, each once. A single string would count as its letters."""
    if isinstance(names, str):
        raise UsageError(f"{argument}={names!r}: pass a list of names, for example [{names!r}].")
    return list(dict.fromkeys(names))
