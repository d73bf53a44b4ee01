"""The table of APIs that this broker answers: one row an API, one module a row."""

from __future__ import annotations

from typing import Any, Final

from millstream.broker.dispatch import Api, ApiTable, Handler
from millstream.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_after_end,
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_backlog,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    push_telemetry,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from millstream.wire.messages.add_partitions_after_end import (
    AddPartitionsAfterEndRequest,
    AddPartitionsAfterEndResponse,
)
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from millstream.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from millstream.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from millstream.wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from millstream.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from millstream.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from millstream.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from millstream.wire.messages.describe_backlog import (
    DescribeBacklogRequest,
    DescribeBacklogResponse,
)
from millstream.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from millstream.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from millstream.wire.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from millstream.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from millstream.wire.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from millstream.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from millstream.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from millstream.wire.messages.end_txn import (
    EndTxnRequest,
    EndTxnResponse,
)
from millstream.wire.messages.fetch import FetchRequest, FetchResponse
from millstream.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millstream.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from millstream.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from millstream.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from millstream.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from millstream.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from millstream.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from millstream.wire.messages.produce import ProduceRequest, ProduceResponse
from millstream.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
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

#: Each API's messages and handler. The versions are those of its messages.
ROWS: Final[tuple[tuple[Any, Any, Handler], ...]] = (
    (ProduceRequest, ProduceResponse, produce.handle),
    (FetchRequest, FetchResponse, fetch.handle),
    (ListOffsetsRequest, ListOffsetsResponse, list_offsets.handle),
    (MetadataRequest, MetadataResponse, metadata.handle),
    (OffsetCommitRequest, OffsetCommitResponse, offset_commit.handle),
    (OffsetFetchRequest, OffsetFetchResponse, offset_fetch.handle),
    (FindCoordinatorRequest, FindCoordinatorResponse, find_coordinator.handle),
    (JoinGroupRequest, JoinGroupResponse, join_group.handle),
    (HeartbeatRequest, HeartbeatResponse, heartbeat.handle),
    (LeaveGroupRequest, LeaveGroupResponse, leave_group.handle),
    (SyncGroupRequest, SyncGroupResponse, sync_group.handle),
    (DescribeGroupsRequest, DescribeGroupsResponse, describe_groups.handle),
    (ListGroupsRequest, ListGroupsResponse, list_groups.handle),
    (ApiVersionsRequest, ApiVersionsResponse, api_versions.handle),
    (CreateTopicsRequest, CreateTopicsResponse, create_topics.handle),
    (DeleteTopicsRequest, DeleteTopicsResponse, delete_topics.handle),
    (DeleteRecordsRequest, DeleteRecordsResponse, delete_records.handle),
    (InitProducerIdRequest, InitProducerIdResponse, init_producer_id.handle),
    (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
        offset_for_leader_epoch.handle,
    ),
    (AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, add_partitions_to_txn.handle),
    (AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, add_offsets_to_txn.handle),
    (EndTxnRequest, EndTxnResponse, end_txn.handle),
    (WriteTxnMarkersRequest, WriteTxnMarkersResponse, write_txn_markers.handle),
    (TxnOffsetCommitRequest, TxnOffsetCommitResponse, txn_offset_commit.handle),
    (DescribeAclsRequest, DescribeAclsResponse, describe_acls.handle),
    (CreateAclsRequest, CreateAclsResponse, create_acls.handle),
    (DeleteAclsRequest, DeleteAclsResponse, delete_acls.handle),
    (DescribeConfigsRequest, DescribeConfigsResponse, describe_configs.handle),
    (AlterConfigsRequest, AlterConfigsResponse, alter_configs.handle),
    (DescribeLogDirsRequest, DescribeLogDirsResponse, describe_log_dirs.handle),
    (CreatePartitionsRequest, CreatePartitionsResponse, create_partitions.handle),
    (DeleteGroupsRequest, DeleteGroupsResponse, delete_groups.handle),
    (
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
        incremental_alter_configs.handle,
    ),
    (ElectLeadersRequest, ElectLeadersResponse, elect_leaders.handle),
    (
        AlterPartitionReassignmentsRequest,
        AlterPartitionReassignmentsResponse,
        alter_partition_reassignments.handle,
    ),
    (
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsResponse,
        list_partition_reassignments.handle,
    ),
    (OffsetDeleteRequest, OffsetDeleteResponse, offset_delete.handle),
    (DescribeQuorumRequest, DescribeQuorumResponse, describe_quorum.handle),
    (UpdateFeaturesRequest, UpdateFeaturesResponse, update_features.handle),
    (DescribeClusterRequest, DescribeClusterResponse, describe_cluster.handle),
    (DescribeProducersRequest, DescribeProducersResponse, describe_producers.handle),
    (UnregisterBrokerRequest, UnregisterBrokerResponse, unregister_broker.handle),
    (DescribeTransactionsRequest, DescribeTransactionsResponse, describe_transactions.handle),
    (ListTransactionsRequest, ListTransactionsResponse, list_transactions.handle),
    (
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupHeartbeatResponse,
        consumer_group_heartbeat.handle,
    ),
    (ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, consumer_group_describe.handle),
    (ListConfigResourcesRequest, ListConfigResourcesResponse, list_config_resources.handle),
    (
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
        describe_topic_partitions.handle,
    ),
    (DescribeBacklogRequest, DescribeBacklogResponse, describe_backlog.handle),
    (
        AddPartitionsAfterEndRequest,
        AddPartitionsAfterEndResponse,
        add_partitions_after_end.handle,
    ),
)


#: Only where metrics are served: else nobody would see what clients push.
TELEMETRY_ROWS: Final[tuple[tuple[Any, Any, Handler], ...]] = (
    (
        GetTelemetrySubscriptionsRequest,
        GetTelemetrySubscriptionsResponse,
        get_telemetry_subscriptions.handle,
    ),
    (PushTelemetryRequest, PushTelemetryResponse, push_telemetry.handle),
)


def api_table(metrics: Metrics, *, has_telemetry: bool = False) -> ApiTable:
    rows = ROWS + TELEMETRY_ROWS if has_telemetry else ROWS
    return ApiTable(Api(request, response, handle, metrics) for request, response, handle in rows)
