"""Finds the changes in requests and responses, for the audit trail. Pure.

Values of settings are left out: they may be secrets. Commits of group members and requests of
producers in their own transactions are left out too: only changes from outside the group or the
transaction are recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

from millstream.broker.audit.audited import Change
from millstream.model.acl import Operation, PatternType, Permission, ResourceType, label
from millstream.model.error import ErrorCode
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from millstream.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from millstream.wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from millstream.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from millstream.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from millstream.wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from millstream.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from millstream.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from millstream.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from millstream.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from millstream.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from millstream.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from millstream.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from millstream.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from millstream.wire.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

#: Names of the resource types of configs.
_CONFIG_RESOURCES: Final = {2: "topic", 4: "broker", 8: "logger", 16: "client-metrics", 32: "group"}

#: How the reason of Kafka's admin clients begins, when they remove members.
_REMOVED_BY_ADMIN: Final = "member was removed by an admin"


def topics_created(
    request: CreateTopicsRequest, response: CreateTopicsResponse
) -> Iterable[Change]:
    if request.validate_only:
        return
    for row in response.topics:
        yield Change(f"topic:{row.name}", row.error_code)


def topics_deleted(
    request: DeleteTopicsRequest, response: DeleteTopicsResponse
) -> Iterable[Change]:
    for row in response.responses:
        yield Change(f"topic:{row.name or row.topic_id.hex()}", row.error_code)


def partitions_created(
    request: CreatePartitionsRequest, response: CreatePartitionsResponse
) -> Iterable[Change]:
    if request.validate_only:
        return
    counts = {topic.name: topic.count for topic in request.topics}
    for row in response.results:
        yield Change(f"topic:{row.name}", row.error_code, f"{counts.get(row.name)} partitions")


def records_deleted(
    request: DeleteRecordsRequest, response: DeleteRecordsResponse
) -> Iterable[Change]:
    for topic in response.topics:
        for row in topic.partitions:
            detail = f"partition {row.partition_index}"
            yield Change(f"topic:{topic.name}", row.error_code, detail)


def configs_altered(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    response: AlterConfigsResponse | IncrementalAlterConfigsResponse,
) -> Iterable[Change]:
    if request.validate_only:
        return
    names = {
        (wanted.resource_type, wanted.resource_name): ", ".join(
            config.name for config in wanted.configs
        )
        for wanted in request.resources
    }
    for row in response.responses:
        kind = _CONFIG_RESOURCES.get(row.resource_type, str(row.resource_type))
        detail = names.get((row.resource_type, row.resource_name), "")
        yield Change(f"{kind}:{row.resource_name}", row.error_code, detail)


def acls_created(request: CreateAclsRequest, response: CreateAclsResponse) -> Iterable[Change]:
    for wanted, row in zip(request.creations, response.results, strict=False):
        resource = _pattern(
            wanted.resource_type, wanted.resource_pattern_type, wanted.resource_name
        )
        yield Change(resource, row.error_code, _rule(wanted))


def acls_deleted(request: DeleteAclsRequest, response: DeleteAclsResponse) -> Iterable[Change]:
    for wanted, row in zip(request.filters, response.filter_results, strict=False):
        if not row.matching_acls:
            resource = f"acl:{_term(ResourceType, wanted.resource_type_filter)}"
            yield Change(resource, row.error_code, "no ACL matched")
        for found in row.matching_acls:
            resource = _pattern(found.resource_type, found.pattern_type, found.resource_name)
            yield Change(resource, row.error_code or found.error_code, _rule(found))


def _pattern(resource_type: int, pattern_type: int, name: str) -> str:
    return f"acl:{_term(ResourceType, resource_type)}/{_term(PatternType, pattern_type)}/{name}"


def _rule(acl: CreateAclsRequest.Creation | DeleteAclsResponse.Result.MatchingAcl) -> str:
    permission = _term(Permission, acl.permission_type)
    return f"{permission} {acl.principal} from {acl.host}: {_term(Operation, acl.operation)}"


def _term(kind: type[IntEnum], value: int) -> str:
    """Return the term for a number of the protocol; the number itself if no term has it."""
    try:
        return label(kind(value))
    except ValueError:
        return str(value)


def users_altered(
    request: AlterUserScramCredentialsRequest, response: AlterUserScramCredentialsResponse
) -> Iterable[Change]:
    """Find changes of SCRAM credentials. The request's passwords are not read."""
    for row in response.results:
        yield Change(f"user:{row.user}", row.error_code)


def quotas_altered(
    request: AlterClientQuotasRequest, response: AlterClientQuotasResponse
) -> Iterable[Change]:
    if request.validate_only:
        return
    for wanted, row in zip(request.entries, response.entries, strict=False):
        entity = ",".join(
            each.entity_type
            if each.entity_name is None
            else f"{each.entity_type}={each.entity_name}"
            for each in row.entity
        )
        detail = ", ".join(
            f"{op.key} removed" if op.remove else f"{op.key}={_figure(op.value)}"
            for op in wanted.ops
        )
        yield Change(f"quota:{entity}", row.error_code, detail)


def _figure(value: float) -> str:
    """Return a number with all of its digits; a whole one as an integer."""
    return str(int(value)) if value.is_integer() else str(value)


def groups_deleted(
    request: DeleteGroupsRequest, response: DeleteGroupsResponse
) -> Iterable[Change]:
    for row in response.results:
        yield Change(f"group:{row.group_id}", row.error_code)


def offsets_deleted(
    request: OffsetDeleteRequest, response: OffsetDeleteResponse
) -> Iterable[Change]:
    resource = f"group:{request.group_id}"
    if response.error_code != ErrorCode.NONE:
        yield Change(resource, response.error_code)
        return
    yield from _by_topic(resource, response.topics)


def offsets_committed(
    request: OffsetCommitRequest, response: OffsetCommitResponse
) -> Iterable[Change]:
    """Find commits without a member: an operator who resets offsets, or a consumer outside of the
    group's protocol."""
    if request.member_id or request.generation_id_or_member_epoch >= 0:
        return
    yield from _by_topic(f"group:{request.group_id}", response.topics)


def members_removed(request: LeaveGroupRequest, response: LeaveGroupResponse) -> Iterable[Change]:
    """Find members that an operator removes. A member that leaves names only itself, by its id."""
    members = request.members
    if len(members) > 1 or any(
        not each.member_id or (each.reason or "").startswith(_REMOVED_BY_ADMIN) for each in members
    ):
        code = response.error_code or max((row.error_code for row in response.members), default=0)
        names = ", ".join(each.group_instance_id or each.member_id for each in members)
        yield Change(f"group:{request.group_id}", code, f"removed {names}")


def _by_topic(
    resource: str,
    topics: Iterable[OffsetDeleteResponse.Topic] | Iterable[OffsetCommitResponse.Topic],
) -> Iterator[Change]:
    for topic in topics:
        codes = [row.error_code for row in topic.partitions]
        name = topic.name or getattr(topic, "topic_id", b"").hex()
        yield Change(resource, max(codes, default=0), f"{name}: {len(codes)} partitions")


def producer_fenced(
    request: InitProducerIdRequest, response: InitProducerIdResponse
) -> Iterable[Change]:
    """Find initialised transactional ids: earlier producers with the id are fenced, and their open
    transaction is aborted."""
    if request.transactional_id:
        yield Change(f"transactional-id:{request.transactional_id}", response.error_code)


def transactions_ended(
    request: WriteTxnMarkersRequest, response: WriteTxnMarkersResponse
) -> Iterable[Change]:
    """Find markers: an operator ends a hanging transaction in some partitions."""
    results = {marker.producer_id: marker.transaction_result for marker in request.markers}
    for marker in response.markers:
        what = "commit" if results.get(marker.producer_id) else "abort"
        for topic in marker.topics:
            for row in topic.partitions:
                yield Change(
                    f"producer-id:{marker.producer_id}",
                    row.error_code,
                    f"{what} in {topic.name}-{row.partition_index}",
                )


def features_updated(
    request: UpdateFeaturesRequest, response: UpdateFeaturesResponse
) -> Iterable[Change]:
    if request.validate_only:
        return
    for update in request.feature_updates:
        detail = f"level {update.max_version_level}"
        yield Change(f"feature:{update.feature}", response.error_code, detail)


def broker_unregistered(
    request: UnregisterBrokerRequest, response: UnregisterBrokerResponse
) -> Iterable[Change]:
    yield Change(f"broker:{request.broker_id}", response.error_code)


def partitions_reassigned(
    request: AlterPartitionReassignmentsRequest, response: AlterPartitionReassignmentsResponse
) -> Iterable[Change]:
    wanted = {
        (topic.name, row.partition_index): row.replicas
        for topic in request.topics
        for row in topic.partitions
    }
    for topic in response.responses:
        for row in topic.partitions:
            replicas = wanted.get((topic.name, row.partition_index))
            yield Change(
                f"topic:{topic.name}",
                response.error_code or row.error_code,
                f"partition {row.partition_index}: "
                + ("cancelled" if replicas is None else f"replicas {replicas}"),
            )


def leaders_elected(
    request: ElectLeadersRequest, response: ElectLeadersResponse
) -> Iterable[Change]:
    for topic in response.replica_election_results:
        for row in topic.partition_result:
            yield Change(f"topic:{topic.topic}", row.error_code, f"partition {row.partition_id}")


def token_created(
    request: CreateDelegationTokenRequest, response: CreateDelegationTokenResponse
) -> Iterable[Change]:
    owner = f"of {response.principal_type}:{response.principal_name}"
    yield Change(f"token:{response.token_id}", response.error_code, owner)


def token_changed(
    request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest,
    response: RenewDelegationTokenResponse | ExpireDelegationTokenResponse,
) -> Iterable[Change]:
    """Find renewals and expirations of delegation tokens. The request names a token by its HMAC,
    which is a secret."""
    yield Change("token", response.error_code)
