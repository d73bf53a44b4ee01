"""One request for each API, with its resources and the error code of a client without rights.

`Case.request` makes the request of a version for the resources `Names`. `Case.code` is the error
code of a client without rights; None if the response only leaves out what the client may not see,
or if the API is open to every client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from harness.raw.raw_client import fetch_request, produce_request, values_batch
from millstream.model.acl import CLUSTER_NAME, ResourceType
from millstream.model.error import ErrorCode
from millstream.wire.api import ApiKey
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millstream.wire.messages.add_partitions_after_end import AddPartitionsAfterEndRequest
from millstream.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, TxnTopic
from millstream.wire.messages.alter_client_quotas import AlterClientQuotasRequest
from millstream.wire.messages.alter_configs import AlterConfigsRequest
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from millstream.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.append_audit import AppendAuditRequest
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.create_acls import CreateAclsRequest
from millstream.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from millstream.wire.messages.create_partitions import CreatePartitionsRequest
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.delete_acls import DeleteAclsRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.delete_records import DeleteRecordsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.describe_acls import DescribeAclsRequest
from millstream.wire.messages.describe_backlog import DescribeBacklogRequest
from millstream.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest
from millstream.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from millstream.wire.messages.describe_needed_access import DescribeNeededAccessRequest
from millstream.wire.messages.describe_producers import DescribeProducersRequest
from millstream.wire.messages.describe_quorum import METADATA_TOPIC, DescribeQuorumRequest
from millstream.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest
from millstream.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from millstream.wire.messages.elect_leaders import ElectLeadersRequest
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.list_config_resources import ListConfigResourcesRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.list_offsets import ListOffsetsRequest
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from millstream.wire.messages.list_transactions import ListTransactionsRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest
from millstream.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from millstream.wire.messages.push_telemetry import PushTelemetryRequest
from millstream.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest
from millstream.wire.messages.sync_group import SyncGroupRequest
from millstream.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest
from millstream.wire.messages.update_features import UpdateFeaturesRequest
from millstream.wire.messages.write_txn_markers import WriteTxnMarkersRequest

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TOKEN_DENIED = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
TXN_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Names(NamedTuple):
    """The resources of a request."""

    topic: str
    topic_id: bytes
    group: str
    transactional_id: str

    def of(self, resource_type: ResourceType) -> str:
        """Return the name of the resource of a type."""
        return {
            ResourceType.TOPIC: self.topic,
            ResourceType.GROUP: self.group,
            ResourceType.TRANSACTIONAL_ID: self.transactional_id,
            ResourceType.CLUSTER: CLUSTER_NAME,
            ResourceType.USER: f"User:{self.topic}",
            ResourceType.DELEGATION_TOKEN: self.topic,
        }[resource_type]


class Case(NamedTuple):
    """One API."""

    request: Callable[[int, Names], Any]
    code: ErrorCode | None
    #: Returns what a client without rights must not find in the response.
    hidden: Callable[[Any], list[Any]] | None = None


def _topic_fields(version: int, names: Names, ids_since: int) -> dict[str, Any]:
    return {"topic_id": names.topic_id} if version >= ids_since else {"name": names.topic}


def _produce(version: int, names: Names) -> Any:
    batch = values_batch(b"denied")
    if version < 13:
        return produce_request(names.topic, batch)
    return produce_request("", batch, topic_id=names.topic_id)


def _fetch(version: int, names: Names) -> Any:
    return fetch_request([(names.topic_id if version >= 13 else names.topic, 0, 0)])


def _list_offsets(version: int, names: Names) -> Any:
    rows = [ListOffsetsRequest.Topic.Partition(timestamp=-1)]
    return ListOffsetsRequest(topics=[ListOffsetsRequest.Topic(name=names.topic, partitions=rows)])


def _metadata(version: int, names: Names) -> Any:
    return MetadataRequest(topics=[MetadataRequest.Topic(name=names.topic)])


def _offset_commit(version: int, names: Names) -> Any:
    topic = OffsetCommitRequest.Topic(
        partitions=[OffsetCommitRequest.Topic.Partition(committed_offset=7)],
        **_topic_fields(version, names, 10),
    )
    return OffsetCommitRequest(group_id=names.group, topics=[topic])


def _offset_fetch(version: int, names: Names) -> Any:
    if version < 8:
        row = OffsetFetchRequest.Topic(name=names.topic, partition_indexes=[0])
        return OffsetFetchRequest(group_id=names.group, topics=[row])
    topic = OffsetFetchRequest.Group.Topic(
        partition_indexes=[0], **_topic_fields(version, names, 10)
    )
    group = OffsetFetchRequest.Group(group_id=names.group, topics=[topic])
    return OffsetFetchRequest(groups=[group])


def _find_coordinator(version: int, names: Names) -> Any:
    if version < 4:
        return FindCoordinatorRequest(key=names.group)
    return FindCoordinatorRequest(coordinator_keys=[names.group])


def _join_group(version: int, names: Names) -> Any:
    return JoinGroupRequest(
        group_id=names.group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
    )


def _sync_group(version: int, names: Names) -> Any:
    return SyncGroupRequest(
        group_id=names.group,
        generation_id=1,
        member_id="m",
        protocol_type="consumer",
        protocol_name="range",
    )


def _leave_group(version: int, names: Names) -> Any:
    if version < 3:
        return LeaveGroupRequest(group_id=names.group, member_id="m")
    members = [LeaveGroupRequest.Member(member_id="m")]
    return LeaveGroupRequest(group_id=names.group, members=members)


def _create_topics(version: int, names: Names) -> Any:
    topic = CreateTopicsRequest.Topic(
        name=f"{names.topic}-new", num_partitions=1, replication_factor=1
    )
    return CreateTopicsRequest(topics=[topic])


def _delete_topics(version: int, names: Names) -> Any:
    if version < 6:
        return DeleteTopicsRequest(topic_names=[names.topic])
    return DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name=names.topic)])


def _delete_records(version: int, names: Names) -> Any:
    rows = [DeleteRecordsRequest.Topic.Partition(offset=-1)]
    topic = DeleteRecordsRequest.Topic(name=names.topic, partitions=rows)
    return DeleteRecordsRequest(topics=[topic], timeout_ms=1000)


def _leader_epoch(version: int, names: Names) -> Any:
    rows = [OffsetForLeaderEpochRequest.Topic.Partition()]
    topic = OffsetForLeaderEpochRequest.Topic(topic=names.topic, partitions=rows)
    return OffsetForLeaderEpochRequest(topics=[topic])


def _txn_topics(names: Names) -> list[TxnTopic]:
    return [TxnTopic(name=names.topic, partitions=[0])]


def _transaction(names: Names) -> AddPartitionsToTxnRequest.Transaction:
    return AddPartitionsToTxnRequest.Transaction(
        transactional_id=names.transactional_id, producer_id=1, topics=_txn_topics(names)
    )


def _add_partitions(version: int, names: Names) -> Any:
    if version >= 4:
        return AddPartitionsToTxnRequest(transactions=[_transaction(names)])
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=names.transactional_id,
        v3_and_below_producer_id=1,
        v3_and_below_topics=_txn_topics(names),
    )


def _write_markers(version: int, names: Names) -> Any:
    topic = WriteTxnMarkersRequest.Marker.Topic(name=names.topic, partition_indexes=[0])
    marker = WriteTxnMarkersRequest.Marker(producer_id=1, topics=[topic])
    return WriteTxnMarkersRequest(markers=[marker])


def _txn_offset_commit(version: int, names: Names) -> Any:
    rows = [TxnOffsetCommitRequest.Topic.Partition(committed_offset=7)]
    return TxnOffsetCommitRequest(
        transactional_id=names.transactional_id,
        group_id=names.group,
        producer_id=1,
        topics=[TxnOffsetCommitRequest.Topic(name=names.topic, partitions=rows)],
    )


def _filter(kind: type[Any], names: Names) -> Any:
    return kind(
        resource_type_filter=1,
        resource_name_filter=names.topic,
        pattern_type_filter=1,
        operation=1,
        permission_type=1,
    )


def _create_acls(version: int, names: Names) -> Any:
    creation = CreateAclsRequest.Creation(
        resource_type=2,
        resource_name=names.topic,
        principal="User:mallory",
        host="*",
        operation=2,
        permission_type=3,
    )
    return CreateAclsRequest(creations=[creation])


def _alter_configs(version: int, names: Names) -> Any:
    kind = AlterConfigsRequest.Resource
    configs = [kind.Config(name="retention.ms", value="1000")]
    return AlterConfigsRequest(
        resources=[kind(resource_type=2, resource_name=names.topic, configs=configs)]
    )


def _incremental_alter_configs(version: int, names: Names) -> Any:
    kind = IncrementalAlterConfigsRequest.Resource
    configs = [kind.Config(name="retention.ms", value="1000")]
    return IncrementalAlterConfigsRequest(
        resources=[kind(resource_type=2, resource_name=names.topic, configs=configs)]
    )


def _describe_configs(version: int, names: Names) -> Any:
    kind = DescribeConfigsRequest.Resource
    return DescribeConfigsRequest(resources=[kind(resource_type=2, resource_name=names.topic)])


def _create_partitions(version: int, names: Names) -> Any:
    topic = CreatePartitionsRequest.Topic(name=names.topic, count=2)
    return CreatePartitionsRequest(topics=[topic])


def _elect_leaders(version: int, names: Names) -> Any:
    topic = ElectLeadersRequest.Topic(topic=names.topic, partitions=[0])
    return ElectLeadersRequest(topic_partitions=[topic])


def _reassign(version: int, names: Names) -> Any:
    kind = AlterPartitionReassignmentsRequest.Topic
    topic = kind(name=names.topic, partitions=[kind.Partition(replicas=[1])])
    return AlterPartitionReassignmentsRequest(topics=[topic])


def _offset_delete(version: int, names: Names) -> Any:
    kind = OffsetDeleteRequest.Topic
    topic = kind(name=names.topic, partitions=[kind.Partition()])
    return OffsetDeleteRequest(group_id=names.group, topics=[topic])


def _create_token(version: int, names: Names) -> Any:
    # The owner is in the request from version 3 on. Before, every client creates its own tokens.
    # This request is not valid, so that it creates none.
    if version < 3:
        renewer = CreateDelegationTokenRequest.Renewer(principal_type="Group", principal_name="g")
        return CreateDelegationTokenRequest(renewers=[renewer])
    return CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name=names.topic
    )


def _alter_quotas(version: int, names: Names) -> Any:
    kind = AlterClientQuotasRequest.Entry
    entry = kind(
        entity=[kind.Entity(entity_type="user", entity_name=names.topic)],
        ops=[kind.Op(key="producer_byte_rate", value=1024.0)],
    )
    return AlterClientQuotasRequest(entries=[entry])


def _alter_user(version: int, names: Names) -> Any:
    upsertion = AlterUserScramCredentialsRequest.Upsertion(
        name=names.topic, mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32)
    )
    return AlterUserScramCredentialsRequest(upsertions=[upsertion])


def _describe_quorum(version: int, names: Names) -> Any:
    kind = DescribeQuorumRequest.Topic
    return DescribeQuorumRequest(
        topics=[kind(topic_name=METADATA_TOPIC, partitions=[kind.Partition()])]
    )


def _update_features(version: int, names: Names) -> Any:
    update = UpdateFeaturesRequest.Update(feature="group.version", max_version_level=1)
    return UpdateFeaturesRequest(feature_updates=[update])


def _describe_producers(version: int, names: Names) -> Any:
    topic = DescribeProducersRequest.Topic(name=names.topic, partition_indexes=[0])
    return DescribeProducersRequest(topics=[topic])


def _consumer_heartbeat(version: int, names: Names) -> Any:
    return ConsumerGroupHeartbeatRequest(
        group_id=f"{names.group}-new",
        member_id="m",
        rebalance_timeout_ms=1000,
        subscribed_topic_names=[names.topic],
        topic_partitions=[],
    )


def _describe_topics(version: int, names: Names) -> Any:
    return DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.Topic(name=names.topic)]
    )


def _describe_backlog(version: int, names: Names) -> Any:
    kind = DescribeBacklogRequest.Topic
    topic = kind(topic_id=names.topic_id, positions=[kind.Position()])
    return DescribeBacklogRequest(topics=[topic])


CASES: Final[Mapping[ApiKey, Case]] = {
    ApiKey.PRODUCE: Case(_produce, TOPIC_DENIED),
    ApiKey.FETCH: Case(_fetch, TOPIC_DENIED),
    ApiKey.LIST_OFFSETS: Case(_list_offsets, TOPIC_DENIED),
    ApiKey.METADATA: Case(_metadata, TOPIC_DENIED),
    ApiKey.OFFSET_COMMIT: Case(_offset_commit, GROUP_DENIED),
    ApiKey.OFFSET_FETCH: Case(_offset_fetch, GROUP_DENIED),
    ApiKey.FIND_COORDINATOR: Case(_find_coordinator, GROUP_DENIED),
    ApiKey.JOIN_GROUP: Case(_join_group, GROUP_DENIED),
    ApiKey.HEARTBEAT: Case(
        lambda _, names: HeartbeatRequest(group_id=names.group, member_id="m"), GROUP_DENIED
    ),
    ApiKey.LEAVE_GROUP: Case(_leave_group, GROUP_DENIED),
    ApiKey.SYNC_GROUP: Case(_sync_group, GROUP_DENIED),
    ApiKey.DESCRIBE_GROUPS: Case(
        lambda _, names: DescribeGroupsRequest(groups=[names.group]), GROUP_DENIED
    ),
    ApiKey.LIST_GROUPS: Case(
        lambda *_: ListGroupsRequest(), None, lambda response: response.groups
    ),
    ApiKey.API_VERSIONS: Case(
        lambda *_: ApiVersionsRequest(client_software_name="t", client_software_version="1"), None
    ),
    ApiKey.CREATE_TOPICS: Case(_create_topics, TOPIC_DENIED),
    ApiKey.DELETE_TOPICS: Case(_delete_topics, TOPIC_DENIED),
    ApiKey.DELETE_RECORDS: Case(_delete_records, TOPIC_DENIED),
    ApiKey.INIT_PRODUCER_ID: Case(
        lambda _, names: InitProducerIdRequest(
            transactional_id=names.transactional_id, transaction_timeout_ms=1000
        ),
        TXN_DENIED,
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Case(_leader_epoch, TOPIC_DENIED),
    # Brokers send versions from 4 on, and get another code.
    ApiKey.ADD_PARTITIONS_TO_TXN: Case(_add_partitions, TXN_DENIED),
    ApiKey.ADD_OFFSETS_TO_TXN: Case(
        lambda _, names: AddOffsetsToTxnRequest(
            transactional_id=names.transactional_id, producer_id=1, group_id=names.group
        ),
        TXN_DENIED,
    ),
    ApiKey.END_TXN: Case(
        lambda _, names: EndTxnRequest(transactional_id=names.transactional_id, producer_id=1),
        TXN_DENIED,
    ),
    ApiKey.WRITE_TXN_MARKERS: Case(_write_markers, CLUSTER_DENIED),
    ApiKey.TXN_OFFSET_COMMIT: Case(_txn_offset_commit, TXN_DENIED),
    ApiKey.DESCRIBE_ACLS: Case(
        lambda _, names: _filter(DescribeAclsRequest, names), CLUSTER_DENIED
    ),
    ApiKey.CREATE_ACLS: Case(_create_acls, CLUSTER_DENIED),
    ApiKey.DELETE_ACLS: Case(
        lambda _, names: DeleteAclsRequest(filters=[_filter(DeleteAclsRequest.Filter, names)]),
        CLUSTER_DENIED,
    ),
    ApiKey.DESCRIBE_CONFIGS: Case(_describe_configs, TOPIC_DENIED),
    ApiKey.ALTER_CONFIGS: Case(_alter_configs, TOPIC_DENIED),
    # The first versions have no error code.
    ApiKey.DESCRIBE_LOG_DIRS: Case(
        lambda *_: DescribeLogDirsRequest(topics=None),
        CLUSTER_DENIED,
        lambda response: response.results,
    ),
    ApiKey.CREATE_PARTITIONS: Case(_create_partitions, TOPIC_DENIED),
    ApiKey.DELETE_GROUPS: Case(
        lambda _, names: DeleteGroupsRequest(groups_names=[names.group]), GROUP_DENIED
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Case(_incremental_alter_configs, TOPIC_DENIED),
    ApiKey.SASL_HANDSHAKE: Case(lambda *_: SaslHandshakeRequest(mechanism="PLAIN"), None),
    ApiKey.SASL_AUTHENTICATE: Case(lambda *_: SaslAuthenticateRequest(auth_bytes=b"x"), None),
    ApiKey.CREATE_DELEGATION_TOKEN: Case(_create_token, TOKEN_DENIED),
    ApiKey.RENEW_DELEGATION_TOKEN: Case(lambda *_: RenewDelegationTokenRequest(hmac=b"x"), None),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Case(lambda *_: ExpireDelegationTokenRequest(hmac=b"x"), None),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Case(
        lambda *_: DescribeDelegationTokenRequest(owners=None),
        None,
        lambda response: response.tokens,
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Case(lambda *_: DescribeClientQuotasRequest(), CLUSTER_DENIED),
    ApiKey.ALTER_CLIENT_QUOTAS: Case(_alter_quotas, CLUSTER_DENIED),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Case(
        lambda *_: DescribeUserScramCredentialsRequest(users=None), CLUSTER_DENIED
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Case(_alter_user, CLUSTER_DENIED),
    ApiKey.APPEND_AUDIT: Case(
        lambda *_: AppendAuditRequest(events=[AppendAuditRequest.Event(key="k", value=b"{}")]),
        CLUSTER_DENIED,
    ),
    ApiKey.ELECT_LEADERS: Case(_elect_leaders, CLUSTER_DENIED),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Case(_reassign, CLUSTER_DENIED),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Case(
        lambda *_: ListPartitionReassignmentsRequest(topics=None), CLUSTER_DENIED
    ),
    ApiKey.OFFSET_DELETE: Case(_offset_delete, GROUP_DENIED),
    ApiKey.DESCRIBE_QUORUM: Case(_describe_quorum, CLUSTER_DENIED),
    ApiKey.UPDATE_FEATURES: Case(_update_features, CLUSTER_DENIED),
    ApiKey.DESCRIBE_CLUSTER: Case(
        lambda *_: DescribeClusterRequest(include_cluster_authorized_operations=True),
        None,
        lambda response: (
            [response.cluster_authorized_operations] * bool(response.cluster_authorized_operations)
        ),
    ),
    ApiKey.DESCRIBE_PRODUCERS: Case(_describe_producers, TOPIC_DENIED),
    ApiKey.UNREGISTER_BROKER: Case(
        lambda *_: UnregisterBrokerRequest(broker_id=77), CLUSTER_DENIED
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Case(
        lambda _, names: DescribeTransactionsRequest(transactional_ids=[names.transactional_id]),
        TXN_DENIED,
    ),
    ApiKey.LIST_TRANSACTIONS: Case(
        lambda *_: ListTransactionsRequest(), None, lambda response: response.transaction_states
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Case(_consumer_heartbeat, GROUP_DENIED),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Case(
        lambda _, names: ConsumerGroupDescribeRequest(group_ids=[names.group]), GROUP_DENIED
    ),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Case(lambda *_: GetTelemetrySubscriptionsRequest(), None),
    ApiKey.PUSH_TELEMETRY: Case(lambda *_: PushTelemetryRequest(), None),
    ApiKey.LIST_CONFIG_RESOURCES: Case(lambda *_: ListConfigResourcesRequest(), CLUSTER_DENIED),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Case(_describe_topics, TOPIC_DENIED),
    ApiKey.DESCRIBE_BACKLOG: Case(_describe_backlog, CLUSTER_DENIED),
    ApiKey.DESCRIBE_NEEDED_ACCESS: Case(lambda *_: DescribeNeededAccessRequest(), CLUSTER_DENIED),
    ApiKey.ADD_PARTITIONS_AFTER_END: Case(
        lambda _, names: AddPartitionsAfterEndRequest(transactions=[_transaction(names)]),
        CLUSTER_DENIED,
    ),
}


def expected_code(key: ApiKey, version: int) -> ErrorCode | None:
    """Return the error code that a client without rights receives in a version."""
    if key == ApiKey.ADD_PARTITIONS_TO_TXN and version >= 4:
        return CLUSTER_DENIED
    if key == ApiKey.DESCRIBE_LOG_DIRS and version < 3:
        return None
    if key == ApiKey.CREATE_DELEGATION_TOKEN and version < 3:
        return None
    return CASES[key].code


def codes(value: Any) -> list[int]:
    """Return all error codes in a response, at any depth."""
    if isinstance(value, list):
        return [code for each in value for code in codes(each)]
    found: list[int] = []
    for name in getattr(type(value), "__slots__", ()):
        part = getattr(value, name)
        if name.endswith("error_code"):
            found.append(part)
        elif isinstance(part, list) or hasattr(type(part), "__slots__"):
            found += codes(part)
    return found
