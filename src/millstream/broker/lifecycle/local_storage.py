"""The broker's data folder and logs, from the lock to the clean-shutdown marker.

Owns the order of these steps at a start: open and lock the folder, leave the ISR of logs that are
lost, write the broker's identity, recover logs after an unclean stop, make a partition of each
replica, start upkeep and compaction. Every step pushes its own undo.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.lifecycle.leader_epoch import raise_leader_epochs
from millstream.broker.lifecycle.runtime import Runtime
from millstream.broker.metrics import gauges
from millstream.controller import departure
from millstream.log.compaction.cleaner import Cleaner
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.flush.flusher import Flusher
from millstream.log.upkeep import LogUpkeep
from millstream.metadata.catalog import Catalog
from millstream.metadata.image import ClusterImage, difference
from millstream.metadata.registration import until_gone
from millstream.replication.partition_port import Counters, Latency
from millstream.replication.replicas import Replicas

_logger = logging.getLogger(__name__)


class LocalStorage:
    """The logs of one broker. Opened by its constructor, closed by the runtime's undo stack."""

    __slots__ = (
        "_is_recovered",
        "_runtime",
        "directory",
        "is_identified",
        "replicas",
        "upkeep",
    )

    #: Set by `start`.
    replicas: Replicas
    upkeep: LogUpkeep

    def __init__(self, runtime: Runtime) -> None:
        environment = runtime.environment
        self._runtime = runtime
        self.directory = LogDirectory.open(
            runtime.static_config.log.data_dir,
            environment.disk,
            environment.clock,
            environment.random,
            options.log_options(runtime.static_config),
        )
        #: Whether every log is known to be whole, so that a stop may be marked clean. A start that
        #: fails before it changes anything leaves a clean folder clean.
        self._is_recovered = self.directory.was_clean
        #: Whether the folder names the cluster that it belongs to.
        self.is_identified = "cluster.id" in self.directory.meta
        runtime.undo.push_async_callback(self._close_directory)

    async def _close_directory(self) -> None:
        directory = self.directory
        await asyncio.to_thread(directory.close, self._is_recovered, directory.high_watermarks)

    async def identify(self, config: BrokerConfig, catalog: Catalog) -> None:
        """Leave the ISR of lost logs, and write the broker's identity into a new folder."""
        if not self.directory.meta:
            # Before the folder has an id: after a crash it must not count as a used folder.
            await self._leave_lost(config, catalog)
        self.directory.identify(catalog.cluster_id, config.node_id)
        self.is_identified = True
        await self._leave_lost(config, catalog)

    async def _leave_lost(self, config: BrokerConfig, catalog: Catalog) -> None:
        """Leave the ISR of the logs that the metadata place in this folder and that are missing.

        Raise DUPLICATE_BROKER_REGISTRATION while another process has this broker's id: that
        process may have the right disk."""
        if not departure.has_lost(catalog, config.node_id, self.directory):
            return
        await until_gone(catalog, config.node_id, config.cluster.broker_session_timeout_ms)
        catalog.check_free(config.node_id)
        await departure.leave_lost(catalog, config.node_id, self.directory)

    async def start(
        self, config: BrokerConfig, catalog: Catalog, show_progress: Callable[[str], None]
    ) -> None:
        """Recover the logs if necessary, open the replicas held here, and start their upkeep."""
        flusher = Flusher(is_threaded=self._runtime.environment.has_threads)
        self._runtime.undo.push_async_callback(flusher.close)
        self.replicas = Replicas(
            config.node_id,
            self.directory,
            config.topic_defaults(),
            self._partition_metrics,
            flusher,
            flushes_before_ack=config.log.log_flush_before_ack,
            failures=self._runtime.failures,
        )
        await self._open_replicas(config, catalog, show_progress)
        self.upkeep = self._start_upkeep(config, flusher)
        if config.log.log_cleaner_enable:
            self._start_cleaner(config)

    async def _open_replicas(
        self, config: BrokerConfig, catalog: Catalog, show_progress: Callable[[str], None]
    ) -> None:
        directory, replicas = self.directory, self.replicas
        if not directory.was_clean:
            replicas.open_logs(catalog.image)
            await self._recover(show_progress)
            await until_gone(catalog, config.node_id, config.cluster.broker_session_timeout_ms)
            await departure.distrust(catalog, config.node_id, directory.directory_id)
            await raise_leader_epochs(config.node_id, directory, catalog)
        replicas.apply_delta(catalog.image, difference(ClusterImage(), catalog.image))
        directory.delete_strays()
        self._is_recovered = True

    async def _recover(self, show_progress: Callable[[str], None]) -> None:
        def show(done: int, total: int, topic_partition: object) -> None:
            show_progress(f"recovering logs after an unclean stop: {done} of {total}")
            if done == total or done % 1000 == 0:
                _logger.info("recovered %d of %d logs (last: %s)", done, total, topic_partition)

        await asyncio.to_thread(self.directory.recover, show)

    def _partition_metrics(self, topic: str, partition: int) -> tuple[Counters, Latency]:
        metrics = self._runtime.metrics
        return metrics.topic(topic), metrics.produce_ack(topic, partition)

    def _start_upkeep(self, config: BrokerConfig, flusher: Flusher) -> LogUpkeep:
        """Start retention, flushing and checkpoints."""
        runtime = self._runtime
        upkeep = LogUpkeep(
            self.directory,
            options.upkeep_options(config),
            self.replicas.high_watermark,
            flusher,
            runtime.supervisor,
        )
        upkeep.start()
        runtime.undo.push_async_callback(upkeep.stop)
        gauges.show_upkeep(runtime.metrics, upkeep.stats)
        return upkeep

    def _start_cleaner(self, config: BrokerConfig) -> None:
        """Start compaction."""
        runtime, replicas = self._runtime, self.replicas
        cleaner = Cleaner(
            self.directory,
            options.cleaner_options(config),
            replicas.high_watermark,
            self.upkeep.remove_later,
        )
        cleaner.start(runtime.supervisor)
        replicas.on_drop = cleaner.forget
        replicas.on_truncate = cleaner.truncated
        runtime.undo.push_async_callback(cleaner.stop)
        runtime.settings.add(options.cleaner_options, cleaner.configure, config)
        gauges.show_cleaner(runtime.metrics, cleaner.stats)
