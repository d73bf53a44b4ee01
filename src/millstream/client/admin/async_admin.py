"""`AsyncAdmin`: the methods of `Admin` for asyncio.

librdkafka's calls wait, so threads of the admin's own pool make them. The event loop never waits.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, ParamSpec, Self, TypeVar, Unpack

from millstream.client.admin.acl import Acl, AclFilter
from millstream.client.admin.admin import TIMEOUT_S, Admin, missing_method
from millstream.client.admin.group_result import (
    GroupDescription,
    GroupListing,
    GroupState,
    GroupType,
    OffsetChange,
)
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
from millstream.client.connection import ConnectionOptions
from millstream.client.error import ClosedError
from millstream.client.record import OffsetAndMetadata, Partition

P = ParamSpec("P")
T = TypeVar("T")

#: The number of calls that wait at the same time. Further calls queue.
_CALLS_MAX: Final = 8


class AsyncAdmin:
    """Manages topics, groups, settings and offsets with asyncio; see `Admin`.

    A cancelled call stops waiting. The brokers may still execute its request.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        timeout: float = TIMEOUT_S,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        self._admin = Admin(bootstrap_servers, timeout=timeout, **options)
        self._threads = ThreadPoolExecutor(_CALLS_MAX, thread_name_prefix="millstream-admin")
        self._is_closed = False

    @property
    def timeout(self) -> float:
        """How long each call waits for its responses, in seconds."""
        return self._admin.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._admin.timeout = seconds

    # Topics

    async def create_topic(
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
        return await self._run(
            self._admin.create_topic,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            config=config,
            if_missing=if_missing,
        )

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, Outcome[None]]:
        """Create topics, or with `validate_only` only let the brokers check the request."""
        return await self._run(self._admin.create_topics, topics, validate_only=validate_only)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""
        await self._run(self._admin.delete_topic, name)

    async def delete_topics(self, names: Iterable[str]) -> dict[str, Outcome[None]]:
        """Delete topics with all their records."""
        return await self._run(self._admin.delete_topics, names)

    async def create_partitions(
        self, topic: str, total: int, *, validate_only: bool = False
    ) -> None:
        """Raise a topic's number of partitions to `total`.

        New records of a key may go to another partition than its older records.
        """
        await self._run(self._admin.create_partitions, topic, total, validate_only=validate_only)

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, with `internal` also those of the brokers."""
        return await self._run(self._admin.list_topics, internal=internal)

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic's partitions with their leaders and replicas."""
        return await self._run(self._admin.describe_topic, name)

    async def describe_topics(
        self, names: Iterable[str], *, elr: bool = True
    ) -> dict[str, Outcome[TopicDescription]]:
        """Return the partitions of topics with their leaders and replicas.

        Without `elr`, the eligible leader replicas are not fetched, which saves a connection.
        """
        return await self._run(self._admin.describe_topics, names, elr=elr)

    async def delete_records(
        self, offsets: Mapping[Partition, int]
    ) -> dict[Partition, Outcome[int]]:
        """Delete the records of each partition before its offset; -1 means all records.

        Returns the new start offset of each partition.
        """
        return await self._run(self._admin.delete_records, offsets)

    # Offsets of partitions

    async def list_offsets(
        self, partitions: Mapping[Partition, OffsetAt], *, read_committed: bool = False
    ) -> dict[Partition, Outcome[int]]:
        """Return an offset of each partition: "earliest", "latest", or at a time.

        A time is a datetime or milliseconds since 1970. It stands for the first record at or after
        it, and for -1 if there is none. With `read_committed` the latest offset is the end of the
        last transaction that is not open.
        """
        return await self._run(self._admin.list_offsets, partitions, read_committed=read_committed)

    async def list_topic_offsets(self, topic: str, at: OffsetAt = "latest") -> dict[Partition, int]:
        """Return an offset of every partition of a topic; see `list_offsets`."""
        return await self._run(self._admin.list_topic_offsets, topic, at)

    # The cluster

    async def describe_cluster(self) -> ClusterDescription:
        """Return the brokers that are alive, and the controller."""
        return await self._run(self._admin.describe_cluster)

    async def elect_leaders(
        self, partitions: Iterable[Partition] | None = None, *, unclean: bool = False
    ) -> dict[Partition, Outcome[bool]]:
        """Elect leaders of these partitions, or of all. Return whether each has a new leader.

        The preferred replica becomes the leader if it is in sync. With `unclean`, partitions
        without a leader get a live replica that may lack acknowledged records: these are lost. The
        result is False for a partition that needs no election. An election for all partitions
        leaves those out.
        """
        return await self._run(self._admin.elect_leaders, partitions, unclean=unclean)

    async def alter_partition_reassignments(
        self, targets: Mapping[Partition, Sequence[int] | None]
    ) -> dict[Partition, Outcome[None]]:
        """Start to move each partition to these brokers. None cancels its reassignment.

        The brokers copy the records and change the replicas once the new ones are in sync.
        """
        return await self._run(self._admin.alter_partition_reassignments, targets)

    async def list_partition_reassignments(
        self, topics: Iterable[str] | None = None
    ) -> dict[Partition, Reassignment]:
        """Return the partitions that are moving, of these topics or of all."""
        return await self._run(self._admin.list_partition_reassignments, topics)

    # Users

    async def create_user(
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
        await self._run(
            self._admin.create_user, name, password, mechanisms=mechanisms, iterations=iterations
        )

    async def list_users(self) -> dict[str, dict[ScramMechanism, int]]:
        """Return the iterations of each user's credentials, by user and mechanism."""
        return await self._run(self._admin.list_users)

    async def alter_user(self, name: str, password: str, *, iterations: int | None = None) -> None:
        """Change the password of a user, for all mechanisms that the user has."""
        await self._run(self._admin.alter_user, name, password, iterations=iterations)

    async def delete_user(self, name: str) -> None:
        """Delete a user. Connections that are logged in stay open."""
        await self._run(self._admin.delete_user, name)

    # Quotas

    async def alter_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
    ) -> dict[QuotaEntity, Outcome[None]]:
        """Set these quotas of each entity and no others. None removes a quota.

        The quotas are Kafka's: producer_byte_rate, consumer_byte_rate, request_percentage,
        controller_mutation_rate, and for an address connection_creation_rate.
        """
        return await self._run(self._admin.alter_quotas, changes, validate_only=validate_only)

    async def list_quotas(self) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of all users, client ids and addresses that have any."""
        return await self._run(self._admin.list_quotas)

    # ACLs

    async def create_acls(self, acls: Iterable[Acl]) -> dict[Acl, Outcome[None]]:
        """Create ACLs. An ACL that exists already stays as it is."""
        return await self._run(self._admin.create_acls, acls)

    async def list_acls(self, wanted: AclFilter | None = None) -> list[Acl]:
        """Return the ACLs that a filter matches, or all."""
        return await self._run(self._admin.list_acls, wanted)

    async def delete_acls(
        self, filters: Iterable[AclFilter]
    ) -> dict[AclFilter, Outcome[list[Acl]]]:
        """Delete the ACLs that filters match. Returns the deleted ACLs of each filter."""
        return await self._run(self._admin.delete_acls, filters)

    # Settings

    async def describe_config(self, resource: ConfigResource) -> dict[str, ConfigEntry]:
        """Return all settings of a topic, broker or group that are in force."""
        return await self._run(self._admin.describe_config, resource)

    async def describe_configs(
        self, resources: Iterable[ConfigResource]
    ) -> dict[ConfigResource, Outcome[dict[str, ConfigEntry]]]:
        """Return all settings of topics, brokers and groups that are in force."""
        return await self._run(self._admin.describe_configs, resources)

    async def alter_config(
        self,
        resource: ConfigResource,
        changes: Mapping[str, str | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change these settings and no others. None resets a setting to its default."""
        await self._run(self._admin.alter_config, resource, changes, validate_only=validate_only)

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
    ) -> dict[ConfigResource, Outcome[None]]:
        """Change these settings of each resource and no others. None resets a setting."""
        return await self._run(self._admin.alter_configs, changes, validate_only=validate_only)

    # Groups

    async def list_groups(
        self, *, states: Collection[GroupState] = (), types: Collection[GroupType] = ()
    ) -> list[GroupListing]:
        """Return the groups in these states and of these types, by default all.

        Raises IncompleteListing if a broker does not respond.
        """
        return await self._run(self._admin.list_groups, states=states, types=types)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """Return a group's state, its coordinator, and its members with their partitions."""
        return await self._run(self._admin.describe_group, group_id)

    async def describe_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, Outcome[GroupDescription]]:
        """Return the state, the coordinator and the members of groups."""
        return await self._run(self._admin.describe_groups, group_ids)

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its offsets."""
        await self._run(self._admin.delete_group, group_id)

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, Outcome[None]]:
        """Delete groups without members, and their offsets."""
        return await self._run(self._admin.delete_groups, group_ids)

    async def list_group_offsets(self, group_id: str) -> dict[Partition, OffsetAndMetadata]:
        """Return a group's committed offsets. Each is an int with the attribute `metadata`."""
        return await self._run(self._admin.list_group_offsets, group_id)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[Partition, int]
    ) -> dict[Partition, Outcome[None]]:
        """Commit these offsets for a group without members, which is created if it is missing."""
        return await self._run(self._admin.alter_group_offsets, group_id, offsets)

    async def reset_group_offsets(
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
        return await self._run(
            self._admin.reset_group_offsets,
            group_id,
            topics=topics,
            to=to,
            duration=duration,
            shift_by=shift_by,
            dry_run=dry_run,
        )

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[Partition]
    ) -> dict[Partition, Outcome[None]]:
        """Delete a group's committed offsets of partitions to which no member subscribes."""
        return await self._run(self._admin.delete_group_offsets, group_id, partitions)

    async def close(self) -> None:
        """Close the client. Further calls raise ClosedError; calls in progress end later."""
        self._is_closed = True
        self._threads.shutdown(wait=False)
        await asyncio.to_thread(self._admin.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    if not TYPE_CHECKING:  # Type checkers would accept any name.

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_method(type(self).__name__, name)

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._is_closed:
            raise ClosedError("The admin client is closed: create another one.")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(call, *args, **kwargs))
