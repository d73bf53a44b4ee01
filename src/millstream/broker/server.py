"""The broker as a whole: the only place that builds its parts and connects them.

Start, in order: the data folder (locked; logs recovered after an unclean stop), the metadata store
and its image, a partition for each replica this broker holds, sockets bound, the broker registered,
sockets accepting. Clients are refused until all of that is done, and `/readyz` says what it waits
for.

Stop, in order: no new connections, requests at work finished (bounded by a timeout), connections
closed, the broker's registration given up, logs flushed, checkpoints and the clean-shutdown marker
written. Killed at any instant before the marker, the next start recovers instead.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.config.cluster_size import ClusterSize
from millstream.broker.config.listener_address import EMBEDDED_STORE
from millstream.broker.config.reconfiguration import Reconfiguration
from millstream.broker.context import Services
from millstream.broker.coordinators import Coordinators
from millstream.broker.fetch_session import FetchSessions
from millstream.broker.handlers import api_table
from millstream.broker.lag.lag_collector import LagCollector
from millstream.broker.lag.lag_sweep import LagSources
from millstream.broker.lag.partition_backlog import PartitionBacklogs
from millstream.broker.lag.remote_backlog import Question, Questions, RemoteBacklogs
from millstream.broker.link import Links
from millstream.broker.membership import Membership
from millstream.broker.metadata_store import open_store
from millstream.broker.metrics import cluster_gauges, gauges, lag_gauges, telemetry_gauges
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.broker.metrics.replication_summary import ClusterLook
from millstream.broker.session import Session
from millstream.broker.telemetry.telemetry import Telemetry
from millstream.broker.topic import TopicAdmin
from millstream.broker.transaction.producer_id import ProducerIds
from millstream.broker.transaction.transaction_queue import TransactionQueues
from millstream.controller import departure
from millstream.env.clock import Clock, SystemClock
from millstream.env.disk import Disk, SystemDisk
from millstream.env.network import Network, SystemNetwork
from millstream.env.random import Random, system_random
from millstream.env.supervisor import Supervisor
from millstream.log.compaction.cleaner import Cleaner
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.flusher import Flusher
from millstream.log.upkeep import LogUpkeep
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import BrokerRecord
from millstream.metadata.image import ClusterImage, ImageDelta, difference
from millstream.metadata.joint_update import JointUpdates
from millstream.metadata.registration import until_gone
from millstream.metadata.store.port import (
    LeaseExpiredError,
    MetadataStore,
    StoreError,
    UnavailableError,
    UncertainError,
)
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.topic import TopicPartition
from millstream.net.connection import Connection
from millstream.net.gate import Gate
from millstream.net.listener import Acceptor
from millstream.replication.partition import Counters, Latency
from millstream.replication.replicas import Replicas
from millstream.replication.replicator import Replicator

if TYPE_CHECKING:
    from millstream.broker.metrics.http import HttpServer

_log = logging.getLogger(__name__)

#: Time for answers that are already written to reach clients at a stop.
CLOSE_S_MAX = 2.0
#: Leader epochs raised side by side after an unclean stop.
EPOCHS_AT_ONCE = 256
#: What a store may say that it does not say for ever.
PASSING_ERRORS = (UnavailableError, UncertainError, LeaseExpiredError)


class NotJoinedError(OSError):
    """The broker's cluster did not let it in. It is of that cluster, so it may be let in later."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The world that a broker runs in; the simulator brings another."""

    clock: Clock
    disk: Disk
    network: Network
    random: Random
    #: In place of the metadata store that the settings name; closed when the broker stops.
    store: MetadataStore | None = None
    #: Whether logs may be flushed in a thread; on virtual time there are none.
    has_threads: bool = True
    #: Owns the background tasks of this one broker.
    supervisor: Supervisor = field(default_factory=Supervisor)


def system_environment(config: BrokerConfig) -> Environment:
    return Environment(
        SystemClock(),
        SystemDisk(),
        SystemNetwork(
            config.network.socket_listen_backlog_size,
            send_buffer_bytes=config.network.socket_send_buffer_bytes,
            receive_buffer_bytes=config.network.socket_receive_buffer_bytes,
        ),
        system_random(),
    )


class Server:
    """One broker: `start`, wait for `failed` or a signal, `stop`."""

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        #: As the operator gave it.
        self._static_config = config
        self._settings = Reconfiguration(config)
        self._environment = environment
        self._supervisor = environment.supervisor
        self._supervisor.on_fatal = self._fail
        self._metrics = Metrics(
            topic_labels_max=config.metrics.metrics_topic_labels_max,
            partition_labels_max=config.metrics.metrics_partition_labels_max,
        )
        self._http: HttpServer | None = None
        self._membership: Membership | None = None
        self._coordinators: Coordinators | None = None
        #: Failures of callbacks, of all parts of the broker.
        self._failures = CallbackFailures()
        self._gate = Gate(options.limits(config), self._failures)
        self._acceptor = Acceptor(environment.network, environment.clock, self._gate)
        #: Requests that run as tasks; a stop waits for them.
        self._requests: set[asyncio.Task[None]] = set()
        #: Undoes the start, last step first, at a stop or when a start fails halfway.
        self._undo = AsyncExitStack()
        #: Whether every log is known to be whole, so that a stop may be marked clean.
        self._is_recovered = False
        #: Whether the data folder says of which cluster it is.
        self._is_identified = False
        #: Resolved with the reason when the broker can't go on.
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        #: The bound port of each listener, by name.
        self.ports: dict[str, int] = {}
        #: Called before the broker becomes part of a cluster, for what would hold it up later.
        self.before_joining: Callable[[], None] = lambda: None
        #: The broker's parts, from when clients are served.
        self.services: Services | None = None

    @property
    def _is_alone(self) -> bool:
        """Whether the metadata are this broker's own, so that there can't be others."""
        embedded = self._static_config.cluster.metadata_store == EMBEDDED_STORE
        return embedded and self._environment.store is None

    async def start(self) -> None:
        """Return when clients are served. Raises OSError, ConfigError, DirectoryInUseError or
        WrongDirectoryError with a sentence for the operator; what was started is then undone.
        After a NotJoinedError another `Server` may be tried."""
        try:
            await self._start()
        except BaseException as error:
            await self._undo.aclose()
            if isinstance(error, StoreError | BrokerError):
                raise self._refusal(error) from error
            raise

    def _refusal(self, error: StoreError | BrokerError) -> OSError:
        if isinstance(error, StoreError):
            text = f"the metadata store can't be used: {error}"
            may_pass = isinstance(error, PASSING_ERRORS)
        else:
            text = error.message or error.code.name
            may_pass = error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        return NotJoinedError(text) if may_pass and self._is_identified else OSError(text)

    async def _start(self) -> None:
        config = self._static_config
        started_at = time.monotonic()
        self._undo.push_async_callback(self._supervisor.close)
        gauges.show_tasks(self._metrics, self._supervisor)
        directory = self._open_directory(config)
        if not directory.was_clean:
            # Recovery can take a while: people want to see how far it is.
            await self._start_http(config)
        store = await self._open_store(config)
        catalog = await Catalog.open(
            store,
            supervisor=self._supervisor,
            random=self._environment.random,
            topic_defaults=config.topic_defaults(),
            cluster_id=directory.meta.get("cluster.id"),
        )
        self._undo.push_async_callback(catalog.close)
        if not self._is_identified:
            # A number that another broker has is not written into the folder.
            await until_gone(catalog, config.node_id, config.cluster.broker_session_timeout_ms)
            catalog.check_free(config.node_id)
        config = self._settings.load(catalog.image)
        catalog.topic_defaults = config.topic_defaults()
        static = self._static_config
        self._settings.add(options.log_options, directory.storage.configure, static)
        self._settings.add(options.limits, self._gate.configure, static)
        if not directory.meta:
            # Before the folder has an id: it must not be taken for a used one after a crash.
            await self._leave_lost(config, directory, catalog)
        directory.identify(catalog.cluster_id, config.node_id)
        self._is_identified = True
        await self._leave_lost(config, directory, catalog)
        flusher = Flusher(is_threaded=self._environment.has_threads)
        self._undo.push_async_callback(flusher.close)
        replicas = await self._open_replicas(config, directory, flusher, catalog)
        upkeep = self._start_upkeep(config, directory, flusher, replicas)
        services = self._connect(config, directory, catalog, replicas, upkeep)
        if not self._is_alone:
            # Producers everywhere wait for a broker from when it follows its leaders: all that
            # would keep its loop busy comes before.
            await self._start_http(config)
            self.before_joining()
        await self._listen(services, store)
        self.services = services
        await self._start_http(config)
        if self._http is not None:
            self._http.ready()
        _log.info(
            "broker %d of cluster %s is ready after %.2f s: %d partitions, listening on %s",
            config.node_id,
            catalog.cluster_id,
            time.monotonic() - started_at,
            len(replicas),
            ", ".join(f"{name} port {port}" for name, port in self.ports.items()),
        )
        services.topics.announce_defaults()

    async def _start_http(self, config: BrokerConfig) -> None:
        if config.network.http_address is None or self._http is not None:
            return
        # It takes as long to import as the rest of the broker: clients are served meanwhile.
        module = await asyncio.to_thread(importlib.import_module, "millstream.broker.metrics.http")
        self._http = cast("HttpServer", module.HttpServer(self._metrics))
        await self._http.start(*config.network.http_address)
        self._undo.push_async_callback(self._http.stop)

    async def _open_store(self, config: BrokerConfig) -> MetadataStore:
        clock, disk = self._environment.clock, self._environment.disk
        store = self._environment.store or await open_store(
            config, clock, disk, self._environment.random, self._supervisor
        )
        self._undo.push_async_callback(store.close)
        return store

    def _open_directory(self, config: BrokerConfig) -> LogDirectory:
        environment = self._environment
        directory = LogDirectory.open(
            config.log.data_dir,
            environment.disk,
            environment.clock,
            environment.random,
            options.log_options(config),
        )
        # A start that is refused before it changes anything leaves a clean folder clean.
        self._is_recovered = directory.was_clean
        self._is_identified = "cluster.id" in directory.meta
        self._undo.push_async_callback(self._close_directory, directory)
        return directory

    async def _close_directory(self, directory: LogDirectory) -> None:
        high_watermarks = directory.high_watermarks
        await asyncio.to_thread(directory.close, self._is_recovered, high_watermarks)

    async def _leave_lost(
        self, config: BrokerConfig, directory: LogDirectory, catalog: Catalog
    ) -> None:
        """Leave the ISR of what the metadata say is on this broker's disk, and is not.

        Refused with DUPLICATE_BROKER_REGISTRATION while another process is this broker: its disk
        may be the right one."""
        if not departure.has_lost(catalog, config.node_id, directory):
            return
        await until_gone(catalog, config.node_id, config.cluster.broker_session_timeout_ms)
        catalog.check_free(config.node_id)
        await departure.leave_lost(catalog, config.node_id, directory)

    async def _open_replicas(
        self,
        config: BrokerConfig,
        directory: LogDirectory,
        flusher: Flusher,
        catalog: Catalog,
    ) -> Replicas:
        """Recover what needs it, then a partition for each replica that this broker holds."""
        replicas = Replicas(
            config.node_id,
            directory,
            config.topic_defaults(),
            self._partition_metrics,
            flusher,
            flushes_before_ack=config.log.log_flush_before_ack,
            failures=self._failures,
        )
        if not directory.was_clean:
            replicas.open_logs(catalog.image)
            await self._recover(directory)
            await until_gone(catalog, config.node_id, config.cluster.broker_session_timeout_ms)
            await departure.distrust(catalog, config.node_id, directory.directory_id)
            await _raise_leader_epochs(config.node_id, directory, catalog)
        replicas.apply_delta(catalog.image, difference(ClusterImage(), catalog.image))
        directory.delete_strays()
        self._is_recovered = True
        return replicas

    async def _recover(self, directory: LogDirectory) -> None:
        def show(done: int, total: int, topic_partition: object) -> None:
            if self._http is not None:
                self._http.not_ready(f"recovering logs after an unclean stop: {done} of {total}")
            if done == total or done % 1000 == 0:
                _log.info("recovered %d of %d logs (last: %s)", done, total, topic_partition)

        await asyncio.to_thread(directory.recover, show)

    def _start_upkeep(
        self,
        config: BrokerConfig,
        directory: LogDirectory,
        flusher: Flusher,
        replicas: Replicas,
    ) -> LogUpkeep:
        upkeep = LogUpkeep(
            directory,
            options.upkeep_options(config),
            replicas.high_watermark,
            flusher,
            self._supervisor,
        )
        upkeep.start()
        self._undo.push_async_callback(upkeep.stop)
        gauges.show_upkeep(self._metrics, upkeep.stats)
        if config.log.log_cleaner_enable:
            self._start_cleaner(config, directory, replicas, upkeep)
        return upkeep

    def _start_cleaner(
        self,
        config: BrokerConfig,
        directory: LogDirectory,
        replicas: Replicas,
        upkeep: LogUpkeep,
    ) -> None:
        cleaner = Cleaner(
            directory, options.cleaner_options(config), replicas.high_watermark, upkeep.remove_later
        )
        cleaner.start(self._supervisor)
        replicas.on_drop = cleaner.forget
        replicas.on_truncate = cleaner.truncated
        self._undo.push_async_callback(cleaner.stop)
        self._settings.add(options.cleaner_options, cleaner.configure, config)
        gauges.show_cleaner(self._metrics, cleaner.stats)

    def _connect(
        self,
        config: BrokerConfig,
        directory: LogDirectory,
        catalog: Catalog,
        replicas: Replicas,
        upkeep: LogUpkeep,
    ) -> Services:
        environment = self._environment
        coordinators = self._start_coordinators(config, catalog, replicas)
        updates = JointUpdates(catalog, self._supervisor)
        self._undo.push_async_callback(updates.close)
        services = Services(
            config=config,
            clock=environment.clock,
            network=environment.network,
            random=environment.random,
            metrics=self._metrics,
            catalog=catalog,
            directory=directory,
            replicas=replicas,
            replicator=Replicator(
                config.node_id,
                replicas,
                updates.update,
                options.replicator_options(config),
                clock=environment.clock,
                network=environment.network,
                random=environment.random,
                supervisor=self._supervisor,
            ),
            apis=api_table(self._metrics, has_telemetry=config.network.http_address is not None),
            fetch_sessions=FetchSessions(
                config.fetch.max_incremental_fetch_session_cache_slots,
                environment.clock,
                environment.random,
            ),
            producer_ids=ProducerIds(catalog),
            topics=TopicAdmin(
                catalog,
                config,
                environment.random,
                ClusterSize(
                    catalog,
                    environment.clock,
                    config.cluster.cluster_settle_ms,
                    is_alone=self._is_alone,
                ),
            ),
            groups=coordinators.groups,
            transactions=coordinators.transactions,
            desks=coordinators.desks,
            transaction_queues=TransactionQueues(config.network.queued_max_request_bytes),
            markers=coordinators.markers,
            backlogs=PartitionBacklogs(replicas, environment.clock),
            failures=self._failures,
            checkpoint=upkeep.checkpoint_log_starts,
            telemetry=self._start_telemetry(config, catalog),
        )
        directory.storage.on_failure = services.replicator.log_failed
        self._reconfigure(services, coordinators)
        catalog.subscribe(partial(self._follow, services, coordinators))
        gauges.show_broker(self._metrics, services, self._gate)
        look = ClusterLook(config.node_id, catalog, replicas, environment.clock)
        cluster_gauges.show_replication(self._metrics, services.replicator.stats, look)
        cluster_gauges.show_transactions(self._metrics, services.transactions.shards)
        if config.metrics.metrics_lag_interval_ms:
            self._start_lag(services)
        return services

    def _start_telemetry(self, config: BrokerConfig, catalog: Catalog) -> Telemetry | None:
        """Take metrics of clients in, if there is somewhere to show them."""
        if config.network.http_address is None:
            return None
        telemetry = Telemetry(
            self._environment.clock, self._environment.random, options.telemetry_options(config)
        )
        telemetry.follow(catalog.image)
        telemetry.start(self._supervisor)
        self._undo.push_async_callback(telemetry.stop)
        telemetry_gauges.show_telemetry(self._metrics, telemetry)
        return telemetry

    def _start_lag(self, services: Services) -> None:
        """Keep an eye on how far groups are behind, for the metrics of this broker or of others."""
        config = services.config
        if config.network.http_address is None:
            if not self._is_alone:
                services.backlogs.start(config.metrics.metrics_lag_interval_ms, self._supervisor)
                self._undo.push_async_callback(services.backlogs.stop)
            return
        catalog, environment = services.catalog, self._environment
        links: Links[Question] = Links(
            Questions(),
            environment.network,
            config.network.inter_broker_listener,
            f"broker-{config.node_id}",
            catalog.image,
            self._supervisor,
            self._failures,
        )
        self._undo.callback(links.close)
        self._undo.callback(catalog.subscribe(links.follow))
        sources = LagSources(
            config.node_id,
            lambda: catalog.image,
            services.replicas,
            services.backlogs,
            RemoteBacklogs(links),
            environment.clock,
        )
        lag = LagCollector(sources, services.groups.shards, options.lag_options(config))
        lag.check_lease = lambda: services.check_lease()
        lag.start(self._supervisor)
        self._undo.push_async_callback(lag.stop)
        lag_gauges.show_lag(self._metrics, lag)

    def _start_coordinators(
        self, config: BrokerConfig, catalog: Catalog, replicas: Replicas
    ) -> Coordinators:
        environment = self._environment
        coordinators = self._coordinators = Coordinators(
            config,
            catalog,
            replicas,
            clock=environment.clock,
            network=environment.network,
            random=environment.random,
            supervisor=self._supervisor,
        )
        coordinators.start(config, catalog.image)
        self._undo.push_async_callback(coordinators.stop)
        return coordinators

    def _follow(
        self, services: Services, coordinators: Coordinators, image: ClusterImage, delta: ImageDelta
    ) -> None:
        """The metadata changed: apply it to everything here that depends on it."""
        services.replicas.apply_delta(image, delta)
        services.replicator.apply_delta(image, delta)
        coordinators.follow(services.config, image, delta)
        for topic in delta.deleted:
            services.metrics.forget_topic(topic.name)
        if delta.client_metrics and services.telemetry is not None:
            services.telemetry.follow(image)
        if delta.broker_configs:
            self._settings.update_image(image)
        services.topics.follow(image, delta)

    def _fence(self, services: Services, is_fenced: bool) -> None:
        """The broker may have been replaced, or is sure again that it was not."""
        services.replicas.fence(is_fenced)
        services.groups.shards.match_leadership(services.catalog.image)
        services.transactions.shards.match_leadership(services.catalog.image)

    def _reconfigure(self, services: Services, coordinators: Coordinators) -> None:
        """Pass settings that change at run time on to the parts that serve requests."""

        def set_config(config: BrokerConfig) -> None:
            services.config = services.topics.config = config

        def set_topic_defaults(defaults: TopicConfig) -> None:
            services.catalog.topic_defaults = defaults
            services.replicas.set_defaults(defaults)

        def configure_coordinators(config: BrokerConfig) -> None:
            coordinators.configure(config, services.catalog.image)

        settings, config = self._settings, services.config
        settings.add(lambda config: config, set_config, config)
        settings.add(BrokerConfig.topic_defaults, set_topic_defaults, config)
        settings.add(lambda config: config, configure_coordinators, config)
        settings.add(options.replicator_options, services.replicator.configure, config)
        # Settings that changed while the logs were recovered.
        settings.update_image(services.catalog.image)

    async def _listen(self, services: Services, store: MetadataStore) -> None:
        config = services.config
        for endpoint in config.network.listen_endpoints:
            make_session = partial(self._make_session, services, endpoint.listener_name)
            _, port = await self._acceptor.bind(endpoint.host, endpoint.port, make_session)
            self.ports[endpoint.listener_name] = port
        self._undo.push_async_callback(self._close_connections)
        # Before connections are closed: whoever waits for a coordinator is told to look elsewhere.
        assert self._coordinators is not None
        self._undo.push_async_callback(self._coordinators.stop)
        services.record = BrokerRecord(
            node_id=config.node_id,
            endpoints=config.network.advertised_endpoints(self.ports),
            rack=config.cluster.broker_rack,
            incarnation=f"{services.random.getrandbits(64):016x}",
            clean_start=services.directory.was_clean,
            directory=services.directory.directory_id,
        )
        membership = Membership(
            services.catalog,
            store,
            services.record,
            config.cluster.broker_session_timeout_ms,
            self._environment.network,
            self._environment.clock,
            options.controller_options(config),
            self._supervisor,
        )
        membership.registration.on_fenced = partial(self._fence, services)
        services.check_lease = membership.registration.check
        cluster_gauges.show_membership(
            self._metrics, membership, services.catalog, config.cluster.broker_session_timeout_ms
        )
        self._membership = membership
        self._undo.push_async_callback(membership.leave)
        await membership.join()
        services.replicator.start(services.catalog.image)
        self._undo.push_async_callback(services.replicator.stop)
        await self._acceptor.start_accepting()

    def _make_session(self, services: Services, listener: str, connection: Connection) -> Session:
        return Session(connection, services, listener, self._gate.limits, self._requests)

    def _fail(self, error: Exception) -> None:
        """The broker can't go on: whoever runs it is told, and stops it."""
        if not self.failed.done():
            self.failed.set_result(error)

    async def stop(self) -> None:
        """Finish what is at work, then undo the start. After it the data folder is marked clean."""
        if self._http is not None:
            self._http.not_ready("stopping")
        if self._membership is not None:
            await self._membership.hand_over()
        await self._acceptor.stop_accepting()
        if self.services is not None:
            self.services.topics.close()
        if self._requests:
            drain_s_max = self._static_config.network.shutdown_drain_timeout_ms / 1000
            await asyncio.wait(self._requests, timeout=drain_s_max)
        await self._undo.aclose()

    def drop_connections(self) -> None:
        """Cut all clients off, as a broken network does. They may connect again at once."""
        self._acceptor.abort_connections("dropped")

    async def _close_connections(self) -> None:
        self._acceptor.close_connections()
        await self._acceptor.drained(CLOSE_S_MAX)

    def _partition_metrics(self, topic: str, partition: int) -> tuple[Counters, Latency]:
        return self._metrics.topic(topic), self._metrics.produce_ack(topic, partition)


async def _raise_leader_epochs(node_id: int, directory: LogDirectory, catalog: Catalog) -> None:
    """Begin a new leader epoch in every log that may have lost its tail in an unclean stop.

    A power cut takes what was not on disk yet. Consumers that had read it notice by the epoch
    (KIP-320), instead of going on in the middle of records that took the lost ones' offsets."""
    affected = [
        (topic.name, number)
        for topic in catalog.image.topics.values()
        for number in range(len(topic.partitions))
        if (log := directory.get(TopicPartition(topic.name, number))) is not None
        and log.log_end_offset > 0
    ]
    for start in range(0, len(affected), EPOCHS_AT_ONCE):
        await asyncio.gather(
            *(
                _raise_leader_epoch(node_id, catalog, topic, number)
                for topic, number in affected[start : start + EPOCHS_AT_ONCE]
            )
        )


async def _raise_leader_epoch(node_id: int, catalog: Catalog, name: str, number: int) -> None:
    """While this broker leads the partition; the controller may be about to change that."""
    while (topic := catalog.image.topic(name)) is not None:
        state = topic.partitions[number]
        if state.leader != node_id:
            return
        raised = msgspec.structs.replace(state, leader_epoch=state.leader_epoch + 1)
        try:
            await catalog.update_partition(topic.topic_id, number, raised, state.partition_epoch)
        except BrokerError as error:
            if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
                raise
        else:
            return
