"""Makes the options of each part of the broker from the sections of the settings.

A part defines its options in its own terms and knows no setting names.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.config.listener_setting import listener_setting
from millstream.broker.config.section.authorization import LEARN
from millstream.broker.lag.lag_collector import LagOptions
from millstream.broker.telemetry.telemetry import TelemetryOptions
from millstream.controller.controller import ControllerOptions
from millstream.coordination.journal import JournalOptions
from millstream.groups.classic.classic_settings import ClassicGroupSettings
from millstream.groups.consumer.consumer_settings import ConsumerGroupSettings
from millstream.groups.group_settings import GroupSettings
from millstream.groups.group_shards import GroupCoordinatorOptions
from millstream.log.compaction.cleaner import CleanerOptions
from millstream.log.storage import LogOptions
from millstream.log.upkeep import UpkeepOptions
from millstream.net.gate import ConnectionLimits
from millstream.records.compression import CompressionType
from millstream.replication.follower.fetcher import FetcherOptions
from millstream.replication.follower.leader_session import FetchLimits
from millstream.replication.replicator import (
    ReplicationRates,
    ReplicatorOptions,
)
from millstream.security.acl.authorizer import AuthorizerOptions
from millstream.security.quota.connection_rate import ConnectionRateOptions
from millstream.security.quota.rate import WindowOptions
from millstream.security.tls_material import ClientAuth, TlsOptions
from millstream.transactions.transaction_shards import TransactionOptions

_UPGRADE_POLICIES: Final = ("bidirectional", "upgrade")
_DOWNGRADE_POLICIES: Final = ("bidirectional", "downgrade")
NEVER_MS: Final = 2**62
UNLIMITED: Final = 1e300
FLUSH_CHECK_MS_MAX: Final = 1000
#: Maximum size of a decompressed batch, where the broker has to decompress it.
DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024
#: Maximum bytes that a coordinator loads at a time: a read blocks the event loop.
LOAD_BYTES_MAX: Final = 1024 * 1024


def log_options(config: BrokerConfig) -> LogOptions:
    return LogOptions(
        open_files_max=config.log.log_open_files_max,
        producer_id_expiration_ms=config.log.producer_id_expiration_ms,
        recovery_threads=config.log.num_recovery_threads_per_data_dir,
        decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
    )


def authorizer_options(config: BrokerConfig) -> AuthorizerOptions:
    section = config.authorization
    return AuthorizerOptions(
        super_users=section.super_principals,
        allows_without_acl=section.allow_everyone_if_no_acl_found,
        is_learning=section.authorizer_mode == LEARN,
    )


def limits(config: BrokerConfig) -> ConnectionLimits:
    idle_ms = config.network.connections_max_idle_ms
    return ConnectionLimits(
        frame_bytes_max=config.network.socket_request_max_bytes,
        request_bytes_max=config.network.queued_max_request_bytes,
        connections_max=config.network.max_connections,
        connections_per_address_max=config.network.max_connections_per_ip,
        connections_per_address_overrides=config.network.connections_per_ip_overrides,
        idle_ms_max=idle_ms if idle_ms >= 0 else NEVER_MS,
        frame_ms_max=config.network.connection_partial_request_timeout_ms,
        unread_ms_max=config.network.connection_write_timeout_ms,
        inflight_requests_max=config.network.connection_max_inflight_requests,
        inflight_bytes_max=config.network.connection_max_inflight_bytes,
        handshake_ms_max=config.tls.ssl_handshake_timeout_ms,
        handshakes_max=config.tls.ssl_handshakes_max,
        pass_requests_max=config.network.connection_max_requests_per_pass,
        listener_connections_max=_by_listener(config, "max.connections"),
        protected_listener=_protected_listener(config),
    )


def tls_options(config: BrokerConfig) -> dict[str, TlsOptions]:
    """Return the TLS options of each listener that has TLS."""
    protocols = config.network.security_protocols
    names = (endpoint.listener_name for endpoint in config.network.listen_endpoints)
    return {name: _listener_tls(config, name) for name in names if protocols[name].has_tls}


def http_tls_options(config: BrokerConfig) -> TlsOptions | None:
    """Return the TLS options of the HTTP server; None if it has no TLS."""
    network = config.network
    if network.http_ssl_keystore_location is None:
        return None
    return TlsOptions(
        prefix="http.ssl.",
        keystore_location=network.http_ssl_keystore_location,
        truststore_location=network.http_ssl_truststore_location,
        client_auth=ClientAuth(network.http_ssl_client_auth),
    )


def _listener_tls(config: BrokerConfig, listener_name: str) -> TlsOptions:
    value = partial(config.listener_value, listener_name)
    return TlsOptions(
        keystore_location=value("ssl.keystore.location"),
        certificate_chain=value("ssl.keystore.certificate.chain"),
        key=value("ssl.keystore.key"),
        key_password=value("ssl.key.password"),
        truststore_location=value("ssl.truststore.location"),
        truststore_certificates=value("ssl.truststore.certificates"),
        client_auth=config.client_auth(listener_name),
        versions=value("ssl.enabled.protocols"),
        version_max=value("ssl.protocol"),
        cipher_suites=value("ssl.cipher.suites"),
        verifies_host=bool(value("ssl.endpoint.identification.algorithm")),
    )


def connection_rates(config: BrokerConfig) -> ConnectionRateOptions:
    return ConnectionRateOptions(
        broker=config.quota.max_connection_creation_rate,
        listeners=_by_listener(config, "max.connection.creation.rate"),
        protected=_protected_listener(config),
        window=quota_windows(config)[0],
    )


def _by_listener(config: BrokerConfig, name: str) -> dict[str, int]:
    """Return the values of a setting that were set for single listeners."""
    return {
        endpoint.listener_name: config.listener_value(endpoint.listener_name, name)
        for endpoint in config.network.listen_endpoints
        if config.given(listener_setting(endpoint.listener_name, name)) is not None
    }


def _protected_listener(config: BrokerConfig) -> str | None:
    """Return the listener between brokers, if clients have others."""
    network = config.network
    return network.inter_broker_listener if len(network.listen_endpoints) > 1 else None


def upkeep_options(config: BrokerConfig) -> UpkeepOptions:
    return UpkeepOptions(
        # Closed segments are always flushed, so the check for them has a maximum interval.
        flush_check_interval_ms=min(config.log.log_flush_scheduler_interval_ms, FLUSH_CHECK_MS_MAX),
        recovery_point_interval_ms=config.log.log_flush_offset_checkpoint_interval_ms,
        log_start_interval_ms=config.log.log_flush_start_offset_checkpoint_interval_ms,
        high_watermark_interval_ms=config.log.replica_high_watermark_checkpoint_interval_ms,
        retention_check_interval_ms=config.log.log_retention_check_interval_ms,
        initial_delay_ms=config.log.log_initial_task_delay_ms,
        producer_check_interval_ms=config.log.producer_id_expiration_check_interval_ms,
    )


def replicator_options(config: BrokerConfig) -> ReplicatorOptions:
    return ReplicatorOptions(
        listener_name=config.network.inter_broker_listener,
        lag_ms_max=config.replication.replica_lag_time_max_ms,
        fetchers_per_source=config.replication.num_replica_fetchers,
        catch_up_rate=config.replication.replica_catch_up_rate,
        fetcher=FetcherOptions(
            limits=FetchLimits(
                partition_bytes_max=config.replication.replica_fetch_max_bytes,
                bytes_max=config.replication.replica_fetch_response_max_bytes,
                bytes_min=config.replication.replica_fetch_min_bytes,
                wait_ms_max=config.replication.replica_fetch_wait_max_ms,
            ),
            backoff_ms=config.replication.replica_fetch_backoff_ms,
            timeout_ms=config.replication.replica_socket_timeout_ms,
            flushes_before_ack=config.log.log_flush_before_ack,
        ),
        rates=_replication_rates(config),
    )


def _replication_rates(config: BrokerConfig) -> ReplicationRates:
    return ReplicationRates(
        leader=config.replication.leader_replication_throttled_rate,
        follower=config.replication.follower_replication_throttled_rate,
        leader_moving=config.replication.leader_reassignment_throttled_rate,
        follower_moving=config.replication.follower_reassignment_throttled_rate,
    )


def controller_options(config: BrokerConfig) -> ControllerOptions:
    return ControllerOptions(
        balances_leaders=config.controller.auto_leader_rebalance_enable,
        balance_interval_s=config.controller.leader_imbalance_check_interval_seconds,
        imbalance_share_max=config.controller.leader_imbalance_per_broker_percentage / 100,
    )


def coordinator_options(config: BrokerConfig) -> GroupCoordinatorOptions:
    return GroupCoordinatorOptions(
        session_timeout_ms_min=config.groups.group_min_session_timeout_ms,
        session_timeout_ms_max=config.groups.group_max_session_timeout_ms,
        offsets_retention_ms=config.groups.offsets_retention_minutes * 60_000,
        offsets_check_interval_ms=config.groups.offsets_retention_check_interval_ms,
        load_bytes=min(config.groups.offsets_load_buffer_size, LOAD_BYTES_MAX),
        groups=GroupSettings(
            classic=ClassicGroupSettings(
                initial_rebalance_delay_ms=config.groups.group_initial_rebalance_delay_ms,
                group_size_max=config.groups.group_max_size,
                record_bytes_max=_group_record_bytes_max(config),
            ),
            consumer=ConsumerGroupSettings(
                session_timeout_ms=config.groups.group_consumer_session_timeout_ms,
                heartbeat_interval_ms=config.groups.group_consumer_heartbeat_interval_ms,
                assignment_interval_ms=config.groups.group_consumer_assignment_interval_ms,
                group_size_max=config.groups.group_consumer_max_size,
                assignors=config.groups.group_consumer_assignors,
            ),
            allows_upgrade=config.groups.group_consumer_migration_policy in _UPGRADE_POLICIES,
            allows_downgrade=config.groups.group_consumer_migration_policy in _DOWNGRADE_POLICIES,
        ),
        journal=JournalOptions(
            commit_timeout_ms=config.groups.offsets_commit_timeout_ms,
            codec=CompressionType(config.groups.offsets_topic_compression_codec),
        ),
    )


def lag_options(config: BrokerConfig) -> LagOptions:
    return LagOptions(
        interval_ms=config.metrics.metrics_lag_interval_ms,
        groups_max=config.metrics.metrics_group_labels_max,
        partitions_max=config.metrics.metrics_group_partition_labels_max,
    )


def telemetry_options(config: BrokerConfig) -> TelemetryOptions:
    return TelemetryOptions(
        bytes_max=config.metrics.telemetry_max_bytes,
        series_max=config.metrics.metrics_client_labels_max,
    )


def transaction_options(config: BrokerConfig) -> TransactionOptions:
    return TransactionOptions(
        version=config.transactions.transaction_version,
        timeout_ms_max=config.transactions.transaction_max_timeout_ms,
        is_two_phase_allowed=config.transactions.transaction_two_phase_commit_enable,
        id_expiration_ms=config.transactions.transactional_id_expiration_ms,
        id_check_interval_ms=config.transactions.transaction_remove_expired_transaction_cleanup_interval_ms,
        load_bytes=min(config.transactions.transaction_state_log_load_buffer_size, LOAD_BYTES_MAX),
    )


def quota_windows(config: BrokerConfig) -> tuple[WindowOptions, WindowOptions]:
    """Return the windows of client rates and of the rate of mutations."""
    quota = config.quota
    return (
        WindowOptions(quota.quota_window_num, quota.quota_window_size_seconds),
        WindowOptions(
            quota.controller_quota_window_num, quota.controller_quota_window_size_seconds
        ),
    )


def _group_record_bytes_max(config: BrokerConfig) -> int:
    """Return the maximum size of a group record, which leaves room for the rest of its batch."""
    return max(config.topic_defaults().max_message_bytes * 9 // 10, 1)


def cleaner_options(config: BrokerConfig) -> CleanerOptions:
    bytes_per_second = config.log.log_cleaner_io_max_bytes_per_second
    return CleanerOptions(
        threads=config.log.log_cleaner_threads,
        dedupe_buffer_bytes=config.log.log_cleaner_dedupe_buffer_size,
        load_factor=config.log.log_cleaner_io_buffer_load_factor,
        io_buffer_bytes=config.log.log_cleaner_io_buffer_size,
        io_bytes_per_second_max=bytes_per_second if bytes_per_second < UNLIMITED else 0.0,
        backoff_ms=config.log.log_cleaner_backoff_ms,
    )
