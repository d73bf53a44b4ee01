"""Builds the parts that serve requests, and connects them: `Services` and the coordinators.

Owns who is given what. The order of a start as a whole is `server.py`'s.
"""

from __future__ import annotations

import logging
from pathlib import Path

from millstream.broker.audit.audit_file import AuditFile
from millstream.broker.audit.audit_queue import AuditQueue
from millstream.broker.audit.audit_topic import AuditApi, AuditTopic
from millstream.broker.audit.audit_writer import AuditWriter
from millstream.broker.audit.certificate_login import RejectedCertificates
from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.config.cluster_size import ClusterSize
from millstream.broker.context import Services
from millstream.broker.coordinators import Coordinators, peer_connector
from millstream.broker.dispatch import ApiTable
from millstream.broker.fetch_session import FetchSessions
from millstream.broker.handlers import api_table, login_table
from millstream.broker.lag.lag_collector import LagCollector
from millstream.broker.lag.lag_sweep import LagSources
from millstream.broker.lag.partition_backlog import PartitionBacklogs
from millstream.broker.lag.remote_backlog import BacklogApi, RemoteBacklogs
from millstream.broker.lifecycle.local_storage import LocalStorage
from millstream.broker.lifecycle.runtime import Runtime
from millstream.broker.login.authentication import Authentication, token_validation
from millstream.broker.login.token_expiry import TokenExpiry
from millstream.broker.metrics import (
    audit_gauges,
    cluster_gauges,
    gauges,
    lag_gauges,
    login_gauges,
    quota_gauges,
    telemetry_gauges,
)
from millstream.broker.metrics.replication_summary import ReplicationSummary
from millstream.broker.peer_link import PeerLinks
from millstream.broker.quota.client_throttle import ClientThrottle
from millstream.broker.quota.quota_update import QuotaUpdates
from millstream.broker.telemetry.telemetry import Telemetry
from millstream.broker.topic import TopicAdmin
from millstream.broker.transaction.producer_id import ProducerIds
from millstream.broker.transaction.transaction_queue import TransactionQueues
from millstream.metadata.catalog import Catalog
from millstream.metadata.joint_update import JointUpdates
from millstream.replication.replicator import Replicator
from millstream.security.acl.authorizer import Authorizer
from millstream.security.credential_store import CredentialStore
from millstream.security.quota.limiter import Limiter

_logger = logging.getLogger(__name__)


class ServiceBuilder:
    """Builds the parts of one broker on its partitions and metadata. Used once, at a start."""

    __slots__ = ("_catalog", "_config", "_runtime", "_storage", "coordinators")

    def __init__(
        self,
        runtime: Runtime,
        config: BrokerConfig,
        catalog: Catalog,
        storage: LocalStorage,
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._catalog = catalog
        self._storage = storage
        self.coordinators = self._start_coordinators()

    def build(self) -> Services:
        """Return the connected parts; the tasks that they need are running."""
        runtime, config, catalog = self._runtime, self._config, self._catalog
        environment, coordinators = runtime.environment, self.coordinators
        services = Services(
            config=config,
            clock=environment.clock,
            peer_network=runtime.peer_network,
            random=environment.random,
            metrics=runtime.metrics,
            catalog=catalog,
            directory=self._storage.directory,
            replicas=self._storage.replicas,
            replicator=self._make_replicator(),
            apis=api_table(
                runtime.metrics,
                has_telemetry=config.network.http_address is not None,
                is_audited=config.audit.audit_enable,
            ),
            fetch_sessions=FetchSessions(
                config.fetch.max_incremental_fetch_session_cache_slots,
                environment.clock,
                environment.random,
            ),
            producer_ids=ProducerIds(catalog),
            topics=self._make_topic_admin(),
            groups=coordinators.groups,
            transactions=coordinators.transactions,
            transaction_coordinators=coordinators.transaction_coordinators,
            transaction_queues=TransactionQueues(config.network.queued_max_request_bytes),
            markers=coordinators.markers,
            backlogs=PartitionBacklogs(self._storage.replicas, environment.clock),
            failures=runtime.failures,
            checkpoint=self._storage.upkeep.checkpoint_log_starts,
            telemetry=self._start_telemetry(),
            authorizer=self._make_authorizer(),
        )
        services.authentication = self._make_authentication(services.apis)
        services.directory.storage.on_failure = services.replicator.log_failed
        self._start_quotas(services)
        if config.audit.audit_enable:
            self._start_audit(services)
        return services

    def _make_authentication(self, apis: ApiTable) -> Authentication | None:
        """Return the logins of clients, if a listener has SASL."""
        runtime, config, catalog = self._runtime, self._config, self._catalog
        environment = runtime.environment
        if not any(each.has_sasl for each in config.network.listener_protocols.values()):
            return None
        credentials = CredentialStore(
            lambda: catalog.image,
            environment.clock.wall_ms,
            token_secret=config.sasl.delegation_token_secret_key,
        )
        authentication = Authentication(
            config,
            credentials,
            environment.random,
            login_table(apis),
            token_validation(config, environment.clock),
            has_threads=environment.has_threads,
        )
        runtime.undo.callback(authentication.close)
        self._start_token_expiry()
        login_gauges.show_logins(runtime.metrics, authentication)
        return authentication

    def _start_token_expiry(self) -> None:
        config, runtime = self._config, self._runtime
        if config.sasl.delegation_token_secret_key:
            expiry = TokenExpiry(
                self._catalog,
                runtime.environment.clock,
                config.node_id,
                config.sasl.delegation_token_expiry_check_interval_ms,
            )
            expiry.start(runtime.supervisor)
            runtime.undo.push_async_callback(expiry.stop)

    def _start_audit(self, services: Services) -> None:
        """Record events, and write them to the audit topic and the audit file."""
        runtime, config, catalog = self._runtime, self._config, self._catalog
        environment, audit = runtime.environment, config.audit
        links = PeerLinks(AuditApi(), peer_connector(runtime, config), catalog.image)
        runtime.undo.callback(links.close)
        runtime.undo.callback(catalog.subscribe(links.apply_delta))
        topic = AuditTopic(config.node_id, catalog, services.replicas, services.topics, links)
        file = None
        if audit.audit_file is not None:
            file = AuditFile(
                environment.disk,
                Path(audit.audit_file),
                audit.audit_file_max_bytes,
                audit.audit_file_max_files,
            )
        queue = AuditQueue(config.node_id, environment.clock, audit.audit_queue_max_events)
        writer = AuditWriter(queue, topic, file)
        writer.start(runtime.supervisor)
        runtime.undo.push_async_callback(writer.stop)
        services.audit = queue
        runtime.gate.on_failed_handshake = RejectedCertificates(queue).record
        audit_gauges.show_audit(runtime.metrics, queue, writer)

    def _start_quotas(self, services: Services) -> None:
        """Enforce the quotas of the present image and of later changes."""
        throttle = ClientThrottle(
            Limiter(*options.quota_windows(self._config)), self._runtime.environment.clock
        )
        updates = QuotaUpdates(
            services, throttle, self._runtime.gate, options.connection_rates(self._config)
        )
        updates.apply(self._catalog.image)
        self._runtime.settings.add(options.connection_rates, updates.configure, self._config)
        self._runtime.undo.callback(self._catalog.subscribe(updates.apply_delta))
        quota_gauges.show_quotas(
            self._runtime.metrics, throttle.limiter, self._config.quota.metrics_quota_labels_max
        )

    def _start_coordinators(self) -> Coordinators:
        runtime, catalog = self._runtime, self._catalog
        coordinators = Coordinators(runtime, self._config, catalog, self._storage.replicas)
        coordinators.start(self._config, catalog.image)
        runtime.undo.push_async_callback(coordinators.stop)
        return coordinators

    def _make_replicator(self) -> Replicator:
        environment, catalog = self._runtime.environment, self._catalog
        updates = JointUpdates(catalog, environment.supervisor)
        self._runtime.undo.push_async_callback(updates.close)
        return Replicator(
            self._config.node_id,
            self._storage.replicas,
            updates.update,
            options.replicator_options(self._config),
            clock=environment.clock,
            network=self._runtime.peer_network,
            random=environment.random,
            supervisor=environment.supervisor,
        )

    def _make_topic_admin(self) -> TopicAdmin:
        environment, config = self._runtime.environment, self._config
        size = ClusterSize(
            self._catalog,
            environment.clock,
            config.cluster.cluster_settle_ms,
            is_alone=self._runtime.is_alone,
        )
        return TopicAdmin(self._catalog, config, environment.random, size)

    def _make_authorizer(self) -> Authorizer | None:
        section = self._config.authorization
        if not section.has_authorizer:
            return None
        if not section.super_principals and not self._runtime.is_alone:
            _logger.warning(
                "super.users is empty: unless an ACL gives the brokers ClusterAction on the"
                " cluster, followers cannot fetch"
            )
        return Authorizer(options.authorizer_options(self._config), self._catalog.image)

    def _start_telemetry(self) -> Telemetry | None:
        """Accept metrics of clients, if this broker has an HTTP address to show them on."""
        runtime, environment = self._runtime, self._runtime.environment
        if self._config.network.http_address is None:
            return None
        telemetry = Telemetry(
            environment.clock, environment.random, options.telemetry_options(self._config)
        )
        telemetry.set_subscriptions(self._catalog.image)
        telemetry.start(runtime.supervisor)
        runtime.undo.push_async_callback(telemetry.stop)
        telemetry_gauges.show_telemetry(runtime.metrics, telemetry)
        return telemetry

    def show(self, services: Services) -> None:
        """Add the metrics of the parts, and start to measure the lag of groups."""
        runtime, metrics = self._runtime, self._runtime.metrics
        gauges.show_broker(metrics, services, runtime.gate)
        if services.authorizer is not None:
            gauges.show_authorizer(metrics, services.authorizer)
        summary = ReplicationSummary(
            self._config.node_id, self._catalog, self._storage.replicas, runtime.environment.clock
        )
        cluster_gauges.show_replication(metrics, services.replicator.stats, summary)
        cluster_gauges.show_transactions(metrics, services.transactions.shards)
        if not self._config.metrics.metrics_lag_interval_ms:
            return
        if self._config.network.http_address is not None:
            self._start_lag(services)
        elif not runtime.is_alone:
            # Coordinators on other brokers query the headroom of partitions led here.
            services.backlogs.start(
                self._config.metrics.metrics_lag_interval_ms, runtime.supervisor
            )
            runtime.undo.push_async_callback(services.backlogs.stop)

    def _start_lag(self, services: Services) -> None:
        """Measure the lag of the groups that this broker coordinates."""
        runtime, config, catalog = self._runtime, self._config, self._catalog
        links = PeerLinks(BacklogApi(), peer_connector(runtime, config), catalog.image)
        runtime.undo.callback(links.close)
        runtime.undo.callback(catalog.subscribe(links.apply_delta))
        sources = LagSources(
            config.node_id,
            lambda: catalog.image,
            services.replicas,
            services.backlogs,
            RemoteBacklogs(links),
            runtime.environment.clock,
        )
        lag = LagCollector(sources, services.groups.shards, options.lag_options(config))
        lag.check_lease = lambda: services.check_lease()
        lag.start(runtime.supervisor)
        runtime.undo.push_async_callback(lag.stop)
        lag_gauges.show_lag(runtime.metrics, lag)
