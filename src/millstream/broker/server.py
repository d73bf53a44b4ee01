"""The broker as a whole: the order in which its parts start and stop.

Start, in order: the data folder (locked; logs recovered after an unclean stop), the metadata store
and its image, a partition for each replica this broker holds, sockets bound, the broker registered,
sockets accepting. Clients cannot connect before that. `/readyz` says what the start waits for.

Stop, in order: no new connections, pending requests finished (bounded by a timeout), connections
closed, the registration deleted, logs flushed, checkpoints and the clean-shutdown marker written. A
broker killed before it has written the marker recovers its logs at the next start.

`local_storage.py` opens the logs, `service_builder.py` builds the parts that serve requests, and
`metadata_update.py` applies changes of the metadata to them.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.config.reconfiguration import Reconfiguration
from millstream.broker.context import Services
from millstream.broker.coordinators import Coordinators
from millstream.broker.lifecycle.environment import Environment
from millstream.broker.lifecycle.http_access import http_guard
from millstream.broker.lifecycle.listener_tls import BrokerTls
from millstream.broker.lifecycle.local_storage import LocalStorage
from millstream.broker.lifecycle.membership import Membership
from millstream.broker.lifecycle.metadata_store import open_store
from millstream.broker.lifecycle.metadata_update import MetadataUpdates
from millstream.broker.lifecycle.replica_sync import sync_problem
from millstream.broker.lifecycle.runtime import Runtime
from millstream.broker.lifecycle.service_builder import ServiceBuilder
from millstream.broker.login.bootstrap_user import create_bootstrap_users
from millstream.broker.login.login_secret import login_secret
from millstream.broker.login.peer_login import peer_network
from millstream.broker.metrics import cluster_gauges, gauges
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.broker.session import Session
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import BrokerRecord
from millstream.metadata.registration import until_gone
from millstream.metadata.store.port import (
    LeaseExpiredError,
    MetadataStore,
    MetadataStoreError,
    UnavailableError,
    UncertainError,
)
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.net.connection import Connection
from millstream.net.gate import Gate
from millstream.net.listener import Acceptor
from millstream.net.rejection import RejectedRequestError, Rejection

if TYPE_CHECKING:
    from millstream.broker.metrics.http import HttpServer

_logger = logging.getLogger(__name__)

#: Time for responses that are already written to reach clients at a stop.
CLOSE_S_MAX: Final = 2.0
#: Errors of the metadata store that may be gone at the next attempt.
TRANSIENT_STORE_ERRORS: Final = (UnavailableError, UncertainError, LeaseExpiredError)


class NotJoinedError(OSError):
    """The broker could not join its cluster, and may be able to later."""


class Server:
    """One broker: `start`, wait for `failed` or a signal, `stop`."""

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        self._metrics = Metrics(
            topic_labels_max=config.metrics.metrics_topic_labels_max,
            partition_labels_max=config.metrics.metrics_partition_labels_max,
        )
        failures = CallbackFailures()
        self._gate = Gate(options.limits(config), failures)
        settings = Reconfiguration(config)
        self._tls = BrokerTls(environment.disk)
        self._runtime = Runtime(
            config,
            environment,
            settings,
            self._metrics,
            self._gate,
            failures,
            peer_network(
                config,
                environment.network,
                self._tls.peer_context,
                environment.random,
                has_threads=environment.has_threads,
            ),
        )
        self._undo = self._runtime.undo
        environment.supervisor.on_fatal = self._fail
        self._http: HttpServer | None = None
        self._storage: LocalStorage | None = None
        self._membership: Membership | None = None
        self._acceptor = Acceptor(environment.network, environment.clock, self._gate)
        #: Requests that run as tasks; a stop waits for them.
        self._requests: set[asyncio.Task[None]] = set()
        #: Resolved with the reason when the broker cannot continue.
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        #: The bound port of each listener, by name.
        self.ports: dict[str, int] = {}
        #: Called before the broker joins a cluster, for work that would block the loop later.
        self.before_joining: Callable[[], None] = lambda: None
        #: The parts that serve requests; None until they are built.
        self.services: Services | None = None

    async def start(self) -> None:
        """Return when clients are served.

        Raises OSError, ConfigError, DirectoryInUseError or WrongDirectoryError with a sentence for
        the operator, after it has undone what was started. After a NotJoinedError the caller may
        retry with another `Server`."""
        try:
            await self._start()
        except BaseException as error:
            await self._undo.aclose()
            if isinstance(error, MetadataStoreError | BrokerError):
                raise self._start_error(error) from error
            raise

    def _start_error(self, error: MetadataStoreError | BrokerError) -> OSError:
        if isinstance(error, MetadataStoreError):
            text = f"the metadata store can't be used: {error}"
            is_transient = isinstance(error, TRANSIENT_STORE_ERRORS)
        else:
            text = error.message or error.code.name
            is_transient = error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        is_identified = self._storage is not None and self._storage.is_identified
        return NotJoinedError(text) if is_transient and is_identified else OSError(text)

    async def _start(self) -> None:
        runtime, config = self._runtime, self._runtime.static_config
        started_at = time.monotonic()
        self._undo.push_async_callback(runtime.supervisor.close)
        gauges.show_tasks(self._metrics, runtime.supervisor)
        storage = self._storage = LocalStorage(runtime)
        if not storage.directory.was_clean:
            # Recovery can take minutes: `/readyz` shows its progress.
            await self._start_http(config)
        store = await self._open_store(config)
        catalog = await self._open_catalog(store, storage)
        config = self._load_settings(catalog, storage)
        await storage.identify(config, catalog)
        await self._create_users(config, catalog)
        await storage.start(config, catalog, self._show_progress)
        has_sasl = any(each.has_sasl for each in config.network.listener_protocols.values())
        secret = await login_secret(catalog, runtime.environment.random) if has_sasl else b""
        # The parts begin with the image of this moment. Nothing may be awaited before they get its
        # changes: a change in between would be lost, such as that of an ACL.
        builder = ServiceBuilder(runtime, config, catalog, storage)
        services = self.services = builder.build()
        if services.authentication is not None:
            services.authentication.credentials.fake_secret = secret
        updates = MetadataUpdates(services, builder.coordinators, runtime.settings)
        updates.start()
        builder.show(services)
        if not runtime.is_alone:
            # As soon as the broker follows its leaders, producers wait for it. So everything that
            # would block its loop happens before.
            await self._start_http(config)
            self.before_joining()
        await self._bind(services, builder.coordinators)
        await self._join(services, store, updates)
        await self._start_http(config)
        self._show_ready(services)
        _logger.info(
            "broker %d of cluster %s is ready after %.2f s: %d partitions, listening on %s",
            config.node_id,
            catalog.cluster_id,
            time.monotonic() - started_at,
            len(services.replicas),
            ", ".join(f"{name} port {port}" for name, port in self.ports.items()),
        )
        services.topics.announce_defaults()

    async def _start_http(self, config: BrokerConfig) -> None:
        if config.network.http_address is None or self._http is not None:
            return
        # The import takes as long as the rest of the start: clients are served meanwhile.
        module = await asyncio.to_thread(importlib.import_module, "millstream.broker.metrics.http")
        guard = http_guard(config, self._tls, self._runtime.environment.disk)
        self._http = cast("HttpServer", module.HttpServer(self._metrics, guard, self._deny_http))
        await self._http.start(*config.network.http_address)
        self._undo.push_async_callback(self._http.stop)

    def _deny_http(self, address: str) -> None:
        """Count and log an HTTP client that is not admitted."""
        reason = "it has neither the token nor a certificate that is accepted"
        self._gate.rejections.note(
            RejectedRequestError(Rejection.AUTHENTICATION, reason, api="an HTTP request"),
            address,
            self._runtime.environment.clock.monotonic(),
        )

    def _show_ready(self, services: Services) -> None:
        if self._http is not None and self._membership is not None:
            registration = self._membership.registration
            self._http.sync_problem = partial(sync_problem, services.replicas, registration)
            self._http.ready()

    def _show_progress(self, text: str) -> None:
        if self._http is not None:
            self._http.not_ready(text)

    async def _open_store(self, config: BrokerConfig) -> MetadataStore:
        environment = self._runtime.environment
        store = environment.store or await open_store(config, environment)
        self._undo.push_async_callback(store.close)
        return store

    async def _open_catalog(self, store: MetadataStore, storage: LocalStorage) -> Catalog:
        config, environment = self._runtime.static_config, self._runtime.environment
        catalog = await Catalog.open(
            store,
            supervisor=environment.supervisor,
            random=environment.random,
            topic_defaults=config.topic_defaults(),
            cluster_id=storage.directory.meta.get("cluster.id"),
        )
        self._undo.push_async_callback(catalog.close)
        if not storage.is_identified:
            # The folder gets no node id that another broker has.
            await until_gone(catalog, config.node_id, config.cluster.broker_session_timeout_ms)
            catalog.check_free(config.node_id)
        return catalog

    async def _create_users(self, config: BrokerConfig, catalog: Catalog) -> None:
        if config.sasl.bootstrap_users_file is not None:
            environment = self._runtime.environment
            await create_bootstrap_users(
                Path(config.sasl.bootstrap_users_file),
                environment.disk,
                catalog,
                environment.random,
                has_threads=environment.has_threads,
            )

    def _load_settings(self, catalog: Catalog, storage: LocalStorage) -> BrokerConfig:
        """Return the settings in force, and apply later changes to the parts that exist by now."""
        settings, static = self._runtime.settings, self._runtime.static_config
        config = settings.load(catalog.image)
        catalog.topic_defaults = config.topic_defaults()
        settings.add(options.log_options, storage.directory.storage.configure, static)
        settings.add(options.limits, self._gate.configure, static)
        self._start_tls(config)
        return config

    def _start_tls(self, config: BrokerConfig) -> None:
        """Load keys and certificates, and follow their files and settings. Raises ConfigError."""
        runtime = self._runtime
        self._tls.load(config, runtime.static_config)
        runtime.settings.add(options.tls_options, self._tls.configure, config)
        self._tls.start(runtime.supervisor)
        self._undo.push_async_callback(self._tls.stop)
        gauges.show_tls(self._metrics, self._tls.sources, self._gate)

    async def _bind(self, services: Services, coordinators: Coordinators) -> None:
        """Bind the listeners' sockets, without accepting connections yet."""
        for endpoint in services.config.network.listen_endpoints:
            make_session = partial(self._make_session, services, endpoint.listener_name)
            _, port = await self._acceptor.bind(
                endpoint.host,
                endpoint.port,
                make_session,
                self._tls.endpoints.get(endpoint.listener_name),
                endpoint.listener_name,
            )
            self.ports[endpoint.listener_name] = port
        self._undo.push_async_callback(self._close_connections)
        # Before connections are closed: clients that wait for a coordinator get a response that
        # makes them find the new one.
        self._undo.push_async_callback(coordinators.stop)

    async def _join(
        self, services: Services, store: MetadataStore, updates: MetadataUpdates
    ) -> None:
        """Register the broker, start to replicate, and accept connections."""
        config, environment = services.config, self._runtime.environment
        services.record = BrokerRecord(
            node_id=config.node_id,
            endpoints=config.network.advertised_endpoints(self.ports),
            rack=config.cluster.broker_rack,
            incarnation=f"{services.random.getrandbits(64):016x}",
            clean_start=services.directory.was_clean,
            directory=services.directory.directory_id,
        )
        membership = self._membership = Membership(
            services.catalog,
            store,
            services.record,
            config,
            environment,
            services.peer_network,
        )
        membership.registration.on_fenced = updates.set_fenced
        services.check_lease = membership.registration.check
        cluster_gauges.show_membership(
            self._metrics, membership, services.catalog, config.cluster.broker_session_timeout_ms
        )
        self._undo.push_async_callback(membership.leave)
        await membership.join()
        services.replicator.start(services.catalog.image)
        self._undo.push_async_callback(services.replicator.stop)
        await self._acceptor.start_accepting()

    def _make_session(self, services: Services, listener: str, connection: Connection) -> Session:
        return Session(connection, services, listener, self._gate.limits, self._requests)

    def _fail(self, error: Exception) -> None:
        """Resolve `failed`: the owner of this server stops it."""
        if not self.failed.done():
            self.failed.set_result(error)

    async def stop(self) -> None:
        """Finish pending requests, then undo the start. The data folder is then marked clean."""
        self._show_progress("stopping")
        if self._membership is not None:
            await self._membership.hand_over()
        await self._acceptor.stop_accepting()
        if self.services is not None:
            self.services.topics.close()
        if self._requests:
            drain_s_max = self._runtime.static_config.network.shutdown_drain_timeout_ms / 1000
            await asyncio.wait(self._requests, timeout=drain_s_max)
        await self._undo.aclose()

    def drop_connections(self) -> None:
        """Break every client connection, as a network failure does. Clients may reconnect."""
        self._acceptor.abort_connections("dropped")

    async def _close_connections(self) -> None:
        self._acceptor.close_connections()
        await self._acceptor.drained(CLOSE_S_MAX)
