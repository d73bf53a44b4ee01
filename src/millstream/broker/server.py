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
import gc
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from millstream.broker.config import BrokerConfig, ConfigError
from millstream.broker.context import Services
from millstream.broker.fetch_session import FetchSessions
from millstream.broker.handlers import api_table
from millstream.broker.http import HttpServer
from millstream.broker.metrics import Metrics, PartitionSize
from millstream.broker.producer_id import ProducerIds
from millstream.broker.session import Session
from millstream.broker.topic import TopicAdmin
from millstream.env.clock import Clock, SystemClock
from millstream.env.disk import Disk, SystemDisk
from millstream.env.network import Network, SystemNetwork
from millstream.env.random import Random, system_random
from millstream.log.cleaner import Cleaner, CleanerOptions
from millstream.log.cleaning import CleaningLimits
from millstream.log.directory import LogDirectory
from millstream.log.flusher import Flusher
from millstream.log.storage import LogOptions
from millstream.log.upkeep import LogUpkeep, UpkeepOptions
from millstream.metadata.catalog import Catalog
from millstream.metadata.image import ClusterImage, ImageDelta, difference
from millstream.metadata.record import BrokerRecord
from millstream.metadata.registration import Registration
from millstream.metadata.sqlite import SqliteStore
from millstream.metadata.store import MetadataStore
from millstream.net.connection import Connection
from millstream.net.gate import Gate, Limits
from millstream.net.listener import Acceptor
from millstream.replication.partition import Counters, Latency
from millstream.replication.replica import Replicas

_log = logging.getLogger(__name__)

METADATA_FILE = "metadata.db"

#: Time for answers that are already written to reach clients at a stop.
CLOSE_S_MAX = 2.0
NEVER_MS = 2**62
UNLIMITED = 1e300
FLUSH_CHECK_MS_MAX = 1000
#: Requests leave no cycles behind, so collecting often finds nothing and costs latency.
GC_THRESHOLDS = (50_000, 50, 100)


@dataclass(frozen=True, slots=True)
class Environment:
    """The world that a broker runs in; the simulator brings another."""

    clock: Clock
    disk: Disk
    network: Network
    random: Random


def system_environment(config: BrokerConfig) -> Environment:
    return Environment(
        SystemClock(),
        SystemDisk(),
        SystemNetwork(config.socket_listen_backlog_size),
        system_random(),
    )


class Server:
    """One broker: `start`, wait for `failed` or a signal, `stop`."""

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        #: As the operator gave it; settings changed at run time go on top.
        self._static_config = config
        self._environment = environment
        self._metrics = Metrics(
            topic_labels_max=config.metrics_topic_labels_max,
            partition_labels_max=config.metrics_partition_labels_max,
        )
        self.http = HttpServer(self._metrics)
        self._gate = Gate(_limits(config))
        self._acceptor = Acceptor(environment.network, environment.clock, self._gate)
        #: Requests that run as tasks; a stop waits for them.
        self._requests: set[asyncio.Task[None]] = set()
        #: Undoes the start, last step first, at a stop or when a start fails halfway.
        self._undo = AsyncExitStack()
        #: Whether every log is known to be whole, so that a stop may be marked clean.
        self._is_recovered = False
        #: Resolved with the reason when the broker can't go on.
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        #: The bound port of each listener, by name.
        self.ports: dict[str, int] = {}

    async def start(self) -> None:
        """Return when clients are served. Raises OSError, ConfigError, StoreError, DirectoryInUse
        or WrongDirectory with a sentence for the operator; what was started is then undone."""
        try:
            await self._start()
        except BaseException:
            await self._undo.aclose()
            raise

    async def _start(self) -> None:
        config = self._static_config
        started_at = time.monotonic()
        if config.http_address is not None:
            await self.http.start(*config.http_address)
            self._undo.push_async_callback(self.http.stop)
        directory = self._open_directory(config)
        store = await SqliteStore.open(config.data_dir / METADATA_FILE, self._environment.clock)
        self._undo.push_async_callback(store.close)
        catalog = await Catalog.open(
            store, random=self._environment.random, topic_defaults=config.topic_defaults()
        )
        self._undo.push_async_callback(catalog.close)
        self._watch(catalog.failed)
        directory.identify(catalog.cluster_id, config.node_id)
        config = config.with_dynamic(
            catalog.image.default_broker_configs,
            catalog.image.broker_configs.get(config.node_id, {}),
        )
        catalog.topic_defaults = config.topic_defaults()
        flusher = Flusher()
        self._undo.push_async_callback(flusher.close)
        replicas = await self._open_replicas(config, directory, flusher, catalog)
        upkeep = self._start_upkeep(config, directory, flusher, replicas)
        services = self._connect(config, directory, catalog, replicas, upkeep)
        await self._listen(services, store)
        self._settle_memory()
        self.http.ready()
        _log.info(
            "broker %d of cluster %s is ready after %.2f s: %d partitions, listening on %s",
            config.node_id,
            catalog.cluster_id,
            time.monotonic() - started_at,
            len(replicas),
            ", ".join(f"{name} port {port}" for name, port in self.ports.items()),
        )

    def _open_directory(self, config: BrokerConfig) -> LogDirectory:
        environment = self._environment
        directory = LogDirectory.open(
            config.data_dir,
            environment.disk,
            environment.clock,
            environment.random,
            LogOptions(
                open_files_max=config.log_open_files_max,
                producer_id_expiration_ms=config.producer_id_expiration_ms,
            ),
        )
        self._undo.push_async_callback(self._close_directory, directory)
        return directory

    async def _close_directory(self, directory: LogDirectory) -> None:
        high_watermarks = directory.high_watermarks
        await asyncio.to_thread(directory.close, self._is_recovered, high_watermarks)

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
            flusher if config.log_flush_before_ack else None,
        )
        image = catalog.image
        if not directory.was_clean:
            replicas.open_logs(image)
            await self._recover(directory)
        replicas.follow(image, difference(ClusterImage(), image))
        directory.delete_strays()
        self._is_recovered = True
        return replicas

    async def _recover(self, directory: LogDirectory) -> None:
        def show(done: int, total: int, topic_partition: object) -> None:
            self.http.not_ready(f"recovering logs after an unclean stop: {done} of {total}")
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
        upkeep = LogUpkeep(directory, _upkeep_options(config), replicas.high_watermark, flusher)
        upkeep.start()
        self._undo.push_async_callback(upkeep.stop)
        self._metrics.add_attributes(
            "log",
            "counter",
            upkeep.stats,
            {
                "flushes": "Logs flushed to stable storage.",
                "checkpoints": "Writes of recovery points and high watermarks.",
                "segments_expired": "Segments deleted by retention or DeleteRecords.",
                "files_removed": "Files and directories removed from disk.",
                "failures": "Background work on logs that failed.",
            },
        )
        if config.log_cleaner_enable and config.log_cleaner_threads:
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
            directory, _cleaner_options(config), replicas.high_watermark, upkeep.remove_later
        )
        cleaner.start()
        replicas.on_drop = cleaner.forget
        self._undo.push_async_callback(cleaner.stop)
        self._metrics.add_attributes(
            "compaction",
            "counter",
            cleaner.stats,
            {
                "runs": "Logs compacted.",
                "failures": "Compactions that failed.",
                "bytes_read": "Bytes read by compaction.",
                "bytes_written": "Bytes written by compaction.",
                "records_read": "Records read by compaction.",
                "records_kept": "Records kept by compaction.",
                "tombstones_expired": "Tombstones dropped after delete.retention.ms.",
                "keyless_records": "Records without a key dropped by compaction.",
                "duration_s": "Seconds spent on compaction.",
            },
        )
        self._metrics.add_gauge(
            "compaction_dirty_ratio_max",
            "Largest dirty ratio of a log at the last look.",
            lambda: cleaner.stats.dirty_ratio_max,
        )
        self._metrics.add_gauge(
            "compaction_uncleanable_logs",
            "Logs that compaction gave up on.",
            lambda: len(cleaner.stats.uncleanable),
        )

    def _connect(
        self,
        config: BrokerConfig,
        directory: LogDirectory,
        catalog: Catalog,
        replicas: Replicas,
        upkeep: LogUpkeep,
    ) -> Services:
        environment = self._environment
        services = Services(
            config=config,
            clock=environment.clock,
            random=environment.random,
            metrics=self._metrics,
            catalog=catalog,
            directory=directory,
            replicas=replicas,
            apis=api_table(self._metrics),
            fetch_sessions=FetchSessions(
                config.max_incremental_fetch_session_cache_slots,
                environment.clock,
                environment.random,
            ),
            producer_ids=ProducerIds(catalog),
            topics=TopicAdmin(catalog, config, environment.random),
            checkpoint=upkeep.checkpoint,
        )
        catalog.subscribe(partial(self._follow, services))
        self._metrics.partition_source = partial(_partition_sizes, replicas)
        self._metrics.connections = _Connections(self._gate)
        self._metrics.add_gauge("topics", "Topics.", lambda: len(catalog.image.topics))
        self._metrics.add_gauge("partitions", "Partitions on this broker.", lambda: len(replicas))
        self._metrics.add_gauge(
            "fetch_sessions", "Fetch sessions open.", lambda: len(services.fetch_sessions)
        )
        return services

    def _follow(self, services: Services, image: ClusterImage, delta: ImageDelta) -> None:
        """The metadata changed: apply it to everything here that depends on it."""
        services.replicas.follow(image, delta)
        for topic in delta.deleted:
            services.metrics.forget_topic(topic.name)
        if delta.broker_configs:
            self._reconfigure(services, image)

    def _reconfigure(self, services: Services, image: ClusterImage) -> None:
        node_id = self._static_config.node_id
        try:
            config = self._static_config.with_dynamic(
                image.default_broker_configs, image.broker_configs.get(node_id, {})
            )
        except ConfigError as error:
            _log.error("settings changed at run time are not applied: %s", error)
            return
        services.config = config
        services.topics.config = config
        services.catalog.topic_defaults = config.topic_defaults()
        services.replicas.set_defaults(config.topic_defaults())
        self._gate.limits = _limits(config)

    async def _listen(self, services: Services, store: MetadataStore) -> None:
        config = services.config
        for endpoint in config.listen_endpoints:
            make_session = partial(self._make_session, services, endpoint.listener_name)
            _, port = await self._acceptor.bind(endpoint.host, endpoint.port, make_session)
            self.ports[endpoint.listener_name] = port
        self._undo.push_async_callback(self._close_connections)
        registration = Registration(
            services.catalog,
            store,
            BrokerRecord(
                node_id=config.node_id,
                endpoints=config.advertised_endpoints(self.ports),
                rack=config.broker_rack,
                incarnation=f"{services.random.getrandbits(64):016x}",
                clean_start=services.directory.was_clean,
            ),
            config.broker_session_timeout_ms,
        )
        await registration.start()
        self._undo.push_async_callback(registration.close)
        self._watch(registration.failed)
        await self._acceptor.start_accepting()

    def _make_session(self, services: Services, listener: str, connection: Connection) -> Session:
        return Session(connection, services, listener, self._gate.limits, self._requests)

    def _watch(self, failed: asyncio.Future[Exception]) -> None:
        def pass_on(done: asyncio.Future[Exception]) -> None:
            if not self.failed.done() and not done.cancelled():
                self.failed.set_result(done.result())

        failed.add_done_callback(pass_on)

    async def stop(self) -> None:
        """Finish what is at work, then undo the start. After it the data folder is marked clean."""
        self.http.not_ready("stopping")
        await self._acceptor.stop_accepting()
        if self._requests:
            drain_s_max = self._static_config.shutdown_drain_timeout_ms / 1000
            await asyncio.wait(self._requests, timeout=drain_s_max)
        await self._undo.aclose()

    async def _close_connections(self) -> None:
        self._acceptor.close_connections()
        await self._acceptor.drained(CLOSE_S_MAX)

    def _partition_metrics(self, topic: str, partition: int) -> tuple[Counters, Latency]:
        return self._metrics.topic(topic), self._metrics.produce_ack(topic, partition)

    def _settle_memory(self) -> None:
        """What was built by now lives as long as the broker: keep the collector away from it."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)


class _Connections:
    """What the gate knows, under the names that the metrics ask for."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @property
    def open(self) -> int:
        return self._gate.connections

    @property
    def accepted(self) -> int:
        return self._gate.counters.accepted

    @property
    def refused(self) -> Mapping[str, int]:
        return self._gate.counters.refused

    @property
    def closed(self) -> Mapping[str, int]:
        return self._gate.counters.closed

    @property
    def request_bytes_in_flight(self) -> int:
        return self._gate.reserved_bytes

    @property
    def throttled_reads(self) -> int:
        return self._gate.counters.memory_waits


def _partition_sizes(replicas: Replicas) -> Iterator[PartitionSize]:
    for partition in replicas:
        log = partition.log
        topic, number = partition.topic_partition
        yield PartitionSize(topic, number, log.size_bytes, log.log_start_offset, log.log_end_offset)


def _limits(config: BrokerConfig) -> Limits:
    idle_ms = config.connections_max_idle_ms
    return Limits(
        frame_bytes_max=config.socket_request_max_bytes,
        request_bytes_max=config.queued_max_request_bytes,
        connections_max=config.max_connections,
        connections_per_address_max=config.max_connections_per_ip,
        connections_per_address_overrides=config.connections_per_ip_overrides,
        idle_ms_max=idle_ms if idle_ms >= 0 else NEVER_MS,
        frame_ms_max=config.connection_partial_request_timeout_ms,
        unread_ms_max=config.connection_write_timeout_ms,
        inflight_requests_max=config.connection_max_inflight_requests,
        inflight_bytes_max=config.connection_max_inflight_bytes,
    )


def _upkeep_options(config: BrokerConfig) -> UpkeepOptions:
    return UpkeepOptions(
        # Segments that were closed are flushed in any case, so the look for them has a bound.
        flush_check_interval_ms=min(config.log_flush_scheduler_interval_ms, FLUSH_CHECK_MS_MAX),
        checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
        high_watermark_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
        retention_check_interval_ms=config.log_retention_check_interval_ms,
        initial_delay_ms=config.log_initial_task_delay_ms,
        producer_check_interval_ms=config.producer_id_expiration_check_interval_ms,
    )


def _cleaner_options(config: BrokerConfig) -> CleanerOptions:
    bytes_per_second = config.log_cleaner_io_max_bytes_per_second
    return CleanerOptions(
        limits=CleaningLimits(
            dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
            load_factor=config.log_cleaner_io_buffer_load_factor,
            io_buffer_bytes=config.log_cleaner_io_buffer_size,
            io_bytes_per_second_max=bytes_per_second if bytes_per_second < UNLIMITED else 0.0,
        ),
        backoff_ms=config.log_cleaner_backoff_ms,
    )


def run(config: BrokerConfig) -> int:
    """Run a broker until it is told to stop; returns the process's exit code."""
    loop_factory = _loop_factory()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_serve(config))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        _log.info("uvloop is not installed; using asyncio's own loop")
        return None
    return uvloop.new_event_loop


async def _serve(config: BrokerConfig) -> int:
    server = Server(config, system_environment(config))
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    await server.start()
    waiting = asyncio.ensure_future(told.wait())
    waits: set[asyncio.Future[Any]] = {waiting, server.failed}
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    has_failed = server.failed.done()
    if has_failed:
        _log.error("the broker can't go on and stops: %s", server.failed.result())
    else:
        _log.info("stopping")
    await server.stop()
    _log.info("stopped")
    return 1 if has_failed else 0
