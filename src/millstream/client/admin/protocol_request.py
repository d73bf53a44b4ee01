"""The requests that librdkafka does not have, sent by Millstream's own protocol client.

Each call opens its own connections with the admin's properties, because a protocol client belongs
to one thread. `Admin` imports this module on first use: most programs do not need it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError

from millstream.client.admin.handle import AdminHandle
from millstream.client.admin.result import Outcome, QuotaEntity, Reassignment
from millstream.client.error import BrokerError, TimedOut, UsageError
from millstream.client.next_step import next_step
from millstream.client.record import Partition
from millstream.model.error import BrokerError as ProtocolRejection
from millstream.model.error import ErrorCode
from millstream.protocol.client_property import ClientProperties
from millstream.protocol.cluster_client import GROUP, ClusterClient
from millstream.protocol.connection_setting import ConnectionSettings, connection_settings
from millstream.protocol.error import ConnectionLost, SettingError, Unavailable
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from millstream.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from millstream.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from millstream.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from millstream.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse

_logger = logging.getLogger(__name__)

#: The type of brokers as resources, and the operations on their settings, in the protocol.
_BROKER: Final = 4
_SET, _DELETE = 0, 1
#: The types of elections in the protocol.
_PREFERRED, _UNCLEAN = 0, 1


@contextmanager
def connected(handle: AdminHandle, what: str, timeout: float) -> Iterator[ClusterClient]:
    """Connect a protocol client for the block. Its errors become the client's."""
    try:
        with ClusterClient(_settings(handle, timeout)) as cluster:
            yield cluster
    except SettingError as error:
        raise UsageError(f"{what}: {error}.") from error
    except Unavailable as error:
        raise TimedOut(f"{what}: {error}.") from error
    except ConnectionLost as error:
        code = KafkaError._TRANSPORT  # noqa: SLF001
        raise BrokerError(f"{what}: {error}.", "_TRANSPORT", code) from error
    except ProtocolRejection as error:
        raise rejection(error.code, what, error.message) from error


def _settings(handle: AdminHandle, timeout: float) -> ConnectionSettings:
    timeout_ms = str(max(1, int(timeout * 1000)))
    properties = {
        "request.timeout.ms": timeout_ms,
        "socket.connection.setup.timeout.ms": timeout_ms,
        "default.api.timeout.ms": timeout_ms,
    }
    for name, value in handle.properties.items():
        if isinstance(value, bool):
            properties[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            properties[name] = str(value)
    return connection_settings(ClientProperties(properties))


def rejection(code: int, what: str, message: str | None = None) -> BrokerError:
    """Return the exception for an error code of the protocol."""
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = str(code)
    reason = (message or str(KafkaError(code).str())).rstrip(".").removeprefix("Broker: ")
    step = next_step(code)
    sentence = f"{what}: {reason} ({name})." + (f" {step}" if step else "")
    return BrokerError(sentence, name, int(code))


# Eligible leaders


def eligible_leaders(
    handle: AdminHandle, names: Sequence[str], timeout: float
) -> dict[Partition, tuple[int, ...] | None]:
    """Return the eligible leader replicas by partition; nothing if they cannot be read.

    They are an addition to the description, which is complete without them: old brokers do not
    report them, and the protocol client does not have every login that librdkafka has."""
    try:
        with connected(handle, "Reading eligible leaders", timeout) as cluster:
            return _fetch_eligible_leaders(cluster, names)
    except (BrokerError, TimedOut, UsageError) as error:
        _logger.debug("The descriptions lack eligible leaders. %s", error)
        return {}


def _fetch_eligible_leaders(
    cluster: ClusterClient, names: Sequence[str]
) -> dict[Partition, tuple[int, ...] | None]:
    topics = [DescribeTopicPartitionsRequest.Topic(name=name) for name in sorted(names)]
    request = DescribeTopicPartitionsRequest(topics=topics)
    found: dict[Partition, tuple[int, ...] | None] = {}
    while True:
        response = cluster.any_connection().call(request, DescribeTopicPartitionsResponse)
        for topic in response.topics:
            for row in topic.partitions:
                eligible = row.eligible_leader_replicas
                found[Partition(topic.name or "", row.partition_index)] = (
                    None if eligible is None else tuple(eligible)
                )
        following = response.next_cursor
        if following is None:
            return found
        request.cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=following.topic_name, partition_index=following.partition_index
        )


# Offsets of groups


def delete_group_offsets(
    handle: AdminHandle, group: str, partitions: Iterable[Partition], timeout: float
) -> dict[Partition, Outcome[None]]:
    wanted = list(dict.fromkeys(partitions))
    if not wanted:
        return {}
    what = f"Deleting offsets of group {group!r}"
    request = OffsetDeleteRequest(group_id=group, topics=_offset_rows(wanted))
    with connected(handle, what, timeout) as cluster:
        response = cluster.attempt(
            "delete offsets",
            lambda: cluster.coordinator_connection(group, GROUP).call(
                request, OffsetDeleteResponse
            ),
        )
    if response.error_code:
        raise rejection(response.error_code, what)
    return {
        Partition(topic.name, row.partition_index): rejection(
            row.error_code, f"{what} for {topic.name}-{row.partition_index}"
        )
        if row.error_code
        else None
        for topic in response.topics
        for row in topic.partitions
    }


def _offset_rows(partitions: Iterable[Partition]) -> list[OffsetDeleteRequest.Topic]:
    shape = OffsetDeleteRequest.Topic
    rows: dict[str, OffsetDeleteRequest.Topic] = {}
    for topic, number in partitions:
        row = rows.setdefault(topic, shape(name=topic, partitions=[]))
        row.partitions.append(shape.Partition(partition_index=number))
    return list(rows.values())


# Quotas


def alter_quotas(
    handle: AdminHandle,
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
    timeout: float,
    *,
    validate_only: bool,
) -> dict[QuotaEntity, Outcome[None]]:
    """Set the quotas of each entity. None removes a quota."""
    if not changes:
        return {}
    what = "Altering quotas"
    request = AlterClientQuotasRequest(
        entries=[_quota_entry(entity, quotas) for entity, quotas in changes.items()],
        validate_only=validate_only,
    )
    with connected(handle, what, timeout) as cluster:
        response = cluster.attempt(
            "alter quotas",
            lambda: cluster.any_connection().call(request, AlterClientQuotasResponse),
        )
    return {
        _quota_entity(row.entity): rejection(row.error_code, what, row.error_message)
        if row.error_code
        else None
        for row in response.entries
    }


def list_quotas(handle: AdminHandle, timeout: float) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas of all entities."""
    what = "Listing quotas"
    with connected(handle, what, timeout) as cluster:
        response = cluster.attempt(
            "list quotas",
            lambda: cluster.any_connection().call(
                DescribeClientQuotasRequest(), DescribeClientQuotasResponse
            ),
        )
    if response.error_code:
        raise rejection(response.error_code, what, response.error_message)
    return {
        _quota_entity(row.entity): {each.key: each.value for each in row.values}
        for row in response.entries or ()
    }


def _quota_entry(
    entity: QuotaEntity, quotas: Mapping[str, float | None]
) -> AlterClientQuotasRequest.Entry:
    shape = AlterClientQuotasRequest.Entry
    named = {"user": entity.user, "client-id": entity.client_id, "ip": entity.ip}
    return shape(
        entity=[
            shape.Entity(entity_type=kind, entity_name=name or None)
            for kind, name in named.items()
            if name is not None
        ],
        ops=[
            shape.Op(key=key, value=value or 0.0, remove=value is None)
            for key, value in quotas.items()
        ],
    )


def _quota_entity(
    pairs: Iterable[AlterClientQuotasResponse.Entry.Entity]
    | Iterable[DescribeClientQuotasResponse.Entry.Entity],
) -> QuotaEntity:
    named = {each.entity_type: each.entity_name or QuotaEntity.DEFAULT for each in pairs}
    return QuotaEntity(user=named.get("user"), client_id=named.get("client-id"), ip=named.get("ip"))


# Reassignments


def alter_reassignments(
    handle: AdminHandle,
    targets: Mapping[Partition, Sequence[int] | None],
    timeout: float,
) -> dict[Partition, Outcome[None]]:
    """Move each partition to these brokers. None cancels its reassignment."""
    if not targets:
        return {}
    what = "Reassigning partitions"
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=int(timeout * 1000), topics=_alter_rows(targets)
    )
    with connected(handle, what, timeout) as cluster:
        response = cluster.attempt(
            "reassign partitions",
            lambda: cluster.any_connection().call(request, AlterPartitionReassignmentsResponse),
        )
    if response.error_code:
        raise rejection(response.error_code, what, response.error_message)
    return {
        Partition(topic.name, row.partition_index): rejection(
            row.error_code, f"Reassigning {topic.name}-{row.partition_index}", row.error_message
        )
        if row.error_code
        else None
        for topic in response.responses
        for row in topic.partitions
    }


def list_reassignments(
    handle: AdminHandle, topics: Iterable[str] | None, timeout: float
) -> dict[Partition, Reassignment]:
    """Return the partitions that are moving, of these topics or of all."""
    what = "Listing reassignments"
    request = ListPartitionReassignmentsRequest(timeout_ms=int(timeout * 1000), topics=None)
    with connected(handle, what, timeout) as cluster:
        response = cluster.attempt(
            "list reassignments",
            lambda: cluster.any_connection().call(request, ListPartitionReassignmentsResponse),
        )
    if response.error_code:
        raise rejection(response.error_code, what, response.error_message)
    names = None if topics is None else set(topics)
    return {
        Partition(topic.name, row.partition_index): Reassignment(
            tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
        )
        for topic in response.topics
        if names is None or topic.name in names
        for row in topic.partitions
    }


def _alter_rows(
    targets: Mapping[Partition, Sequence[int] | None],
) -> list[AlterPartitionReassignmentsRequest.Topic]:
    shape = AlterPartitionReassignmentsRequest.Topic
    rows: dict[str, AlterPartitionReassignmentsRequest.Topic] = {}
    for (topic, number), brokers in targets.items():
        row = rows.setdefault(topic, shape(name=topic, partitions=[]))
        replicas = None if brokers is None else list(brokers)
        row.partitions.append(shape.Partition(partition_index=number, replicas=replicas))
    return list(rows.values())


# Elections


def elect_leaders(
    handle: AdminHandle, partitions: Iterable[Partition] | None, timeout: float, *, unclean: bool
) -> dict[Partition, Outcome[bool]]:
    """Elect leaders of these partitions, or of all."""
    what = "Electing leaders"
    wanted = None if partitions is None else list(dict.fromkeys(partitions))
    if wanted is not None and not wanted:
        return {}
    request = ElectLeadersRequest(
        election_type=_UNCLEAN if unclean else _PREFERRED,
        topic_partitions=None if wanted is None else _election_rows(wanted),
        timeout_ms=int(timeout * 1000),
    )
    with connected(handle, what, timeout) as cluster:
        response = cluster.attempt(
            "elect leaders",
            lambda: cluster.any_connection().call(request, ElectLeadersResponse),
        )
    if response.error_code:
        raise rejection(response.error_code, what)
    return {
        Partition(topic.topic, row.partition_id): _election(topic.topic, row)
        for topic in response.replica_election_results
        for row in topic.partition_result
    }


def _election(topic: str, row: ElectLeadersResponse.Topic.Partition) -> Outcome[bool]:
    """Return whether a leader was elected, or the error."""
    if row.error_code in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
        return row.error_code == ErrorCode.NONE
    what = f"Electing a leader of {topic}-{row.partition_id}"
    return rejection(row.error_code, what, row.error_message)


def _election_rows(partitions: Iterable[Partition]) -> list[ElectLeadersRequest.Topic]:
    rows: dict[str, ElectLeadersRequest.Topic] = {}
    for topic, number in partitions:
        row = rows.setdefault(topic, ElectLeadersRequest.Topic(topic=topic, partitions=[]))
        row.partitions.append(number)
    return list(rows.values())


# Settings of all brokers


def describe_all_brokers(
    handle: AdminHandle, timeout: float
) -> list[DescribeConfigsResponse.Result.Config]:
    """Return the settings that apply to all brokers."""
    what = "Reading the settings of all brokers"
    resource = DescribeConfigsRequest.Resource(
        resource_type=_BROKER, resource_name="", configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource])
    with connected(handle, what, timeout) as cluster:
        response = cluster.attempt(
            "read settings",
            lambda: cluster.any_connection().call(request, DescribeConfigsResponse),
        )
    (result,) = response.results
    if result.error_code:
        raise rejection(result.error_code, what, result.error_message)
    return result.configs


def alter_all_brokers(
    handle: AdminHandle, changes: Mapping[str, str | None], timeout: float, *, validate_only: bool
) -> None:
    """Change settings of all brokers. None resets a setting."""
    what = "Changing the settings of all brokers"
    shape = IncrementalAlterConfigsRequest.Resource
    configs = [
        shape.Config(name=name, config_operation=_DELETE if value is None else _SET, value=value)
        for name, value in changes.items()
    ]
    resource = shape(resource_type=_BROKER, resource_name="", configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    with connected(handle, what, timeout) as cluster:
        response = cluster.attempt(
            "change settings",
            lambda: cluster.any_connection().call(request, IncrementalAlterConfigsResponse),
        )
    (row,) = response.responses
    if row.error_code:
        raise rejection(row.error_code, what, row.error_message)
