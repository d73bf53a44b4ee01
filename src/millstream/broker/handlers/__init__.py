"""The APIs that this broker serves: one module for each API.

Each module declares its API entry (messages, versions, handler) as `API`. This package collects the
entries into the table that sessions dispatch by; the response to ApiVersions lists the same table.
What an API does belongs to the parts of the broker that its handler calls.
"""

from __future__ import annotations

from typing import Any, Final

from millstream.broker.dispatch import Api, ApiEntry, ApiTable
from millstream.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_after_end,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    api_versions,
    append_audit,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_backlog,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_needed_access,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    expire_delegation_token,
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
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.wire.api import ApiKey

#: In the order of the API keys, in which ApiVersions lists them.
ENTRIES: Final[tuple[ApiEntry[Any, Any], ...]] = (
    produce.API,
    fetch.API,
    list_offsets.API,
    metadata.API,
    offset_commit.API,
    offset_fetch.API,
    find_coordinator.API,
    join_group.API,
    heartbeat.API,
    leave_group.API,
    sync_group.API,
    describe_groups.API,
    list_groups.API,
    sasl_handshake.API,
    api_versions.API,
    create_topics.API,
    delete_topics.API,
    delete_records.API,
    init_producer_id.API,
    offset_for_leader_epoch.API,
    add_partitions_to_txn.API,
    add_offsets_to_txn.API,
    end_txn.API,
    write_txn_markers.API,
    txn_offset_commit.API,
    describe_acls.API,
    create_acls.API,
    delete_acls.API,
    describe_configs.API,
    alter_configs.API,
    describe_log_dirs.API,
    sasl_authenticate.API,
    create_partitions.API,
    create_delegation_token.API,
    renew_delegation_token.API,
    expire_delegation_token.API,
    describe_delegation_token.API,
    delete_groups.API,
    incremental_alter_configs.API,
    elect_leaders.API,
    alter_partition_reassignments.API,
    list_partition_reassignments.API,
    offset_delete.API,
    describe_client_quotas.API,
    alter_client_quotas.API,
    describe_user_scram_credentials.API,
    alter_user_scram_credentials.API,
    describe_quorum.API,
    update_features.API,
    describe_cluster.API,
    describe_producers.API,
    unregister_broker.API,
    describe_transactions.API,
    list_transactions.API,
    consumer_group_heartbeat.API,
    consumer_group_describe.API,
    list_config_resources.API,
    describe_topic_partitions.API,
    describe_backlog.API,
    add_partitions_after_end.API,
    append_audit.API,
    describe_needed_access.API,
)

#: Served only by a broker that exports metrics: without, pushed metrics would not be visible.
TELEMETRY_ENTRIES: Final[tuple[ApiEntry[Any, Any], ...]] = (
    get_telemetry_subscriptions.API,
    push_telemetry.API,
)

#: What a client may call before it is authenticated.
LOGIN_APIS: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE)


def login_table(apis: ApiTable) -> ApiTable:
    """Return the part of a table that clients use to log in."""
    return ApiTable(api for api in apis if api.key in LOGIN_APIS)


def api_table(
    metrics: Metrics, *, has_telemetry: bool = False, is_audited: bool = False
) -> ApiTable:
    """Return the table of the APIs that a broker serves."""
    entries = ENTRIES + TELEMETRY_ENTRIES if has_telemetry else ENTRIES
    return ApiTable(Api(entry, metrics, is_audited=is_audited) for entry in entries)
