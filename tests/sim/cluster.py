"""The brokers of a simulated cluster: real `Server`s on simulated machines.

A `Machine` has a disk, a clock and a network address and outlives the processes on it. It restarts
a process that dies or fails to start, as a process manager does, unless the machine is meant to be
down.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from random import Random
from typing import Final

from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.context import Services
from millstream.broker.lifecycle.environment import Environment
from millstream.broker.server import Server
from millstream.metadata.cluster_record import PARTITIONS, PartitionRecord, decode_partition
from millstream.metadata.store.memory import MemoryStore
from millstream.metadata.store.port import MetadataStoreError
from sim import secure
from sim.clock import SimClock
from sim.disk import SimDisk, Volume
from sim.loop import Process, VirtualLoop
from sim.network import Wire
from sim.store import SimLink
from sim.supervisor import InjectedError, SimSupervisor

PORT: Final = 9092
#: Time from the death of a process to its restart.
_RESTART_S: Final = 0.15
SETTINGS: Final = {
    "log.dir": "/data",
    "http.listen": "",
    "broker.session.timeout.ms": "800",
    "replica.lag.time.max.ms": "700",
    "replica.fetch.wait.max.ms": "350",
    "replica.fetch.backoff.ms": "100",
    "replica.socket.timeout.ms": "800",
    "replica.high.watermark.checkpoint.interval.ms": "600",
    # With threads, a run would depend on more than its seed.
    "num.recovery.threads.per.data.dir": "1",
    "log.flush.offset.checkpoint.interval.ms": "600",
    "shutdown.drain.timeout.ms": "300",
    "leader.imbalance.check.interval.seconds": "2",
    "log.cleaner.enable": "false",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "2000",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.segment.bytes": "2000",
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "50",
    "offsets.commit.timeout.ms": "400",
}
#: A session empties it before another callback runs, so all brokers share one.
_RECEIVE_BUFFER: Final = memoryview(bytearray(512 * 1024))


@functools.cache
def _config(node_id: int, flushes_before_ack: bool, is_secure: bool) -> BrokerConfig:
    own = {
        "log.flush.before.ack": str(flushes_before_ack).lower(),
        "node.id": str(node_id),
        "num.replica.fetchers": str(1 + node_id % 2),
        # Low enough that some followers are throttled.
        "replica.catch.up.rate": "2000" if node_id % 3 else "1000000",
        "listeners": f"{secure.PROTOCOL if is_secure else 'PLAINTEXT'}://{_host(node_id)}:{PORT}",
        "broker.rack": f"rack-{node_id}",
    }
    more = secure.SETTINGS if is_secure else {}
    return BrokerConfig.load(flags={**SETTINGS, **more, **own})


def _host(node_id: int) -> str:
    return f"broker-{node_id}"


class SimServer(Server):
    """A broker whose parts the simulator can inspect."""

    services: Services | None = None

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        super().__init__(config, environment)
        self._gate.receive_buffer = _RECEIVE_BUFFER

    @property
    def lease(self) -> int | None:
        """The lease of the broker's registration."""
        return None if self._membership is None else self._membership.registration.lease


class Machine:
    """A machine that runs one broker process after the other."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self._cluster = cluster
        self.node_id = node_id
        self.host = _host(node_id)
        self.clock = SimClock(cluster.loop)
        self.volume = self._new_volume()
        self.link = SimLink(cluster.random)
        self.process: Process | None = None
        self.server: SimServer | None = None
        #: Supervisor of the current process's tasks.
        self.supervisor: SimSupervisor | None = None
        #: Whether a dead process is restarted.
        self.is_wanted = False
        #: Whether the current process serves clients.
        self.is_ready = False
        #: Faults in progress that may let its registration expire.
        self.impairments = 0
        #: Whether the current process is shutting down.
        self._is_stopping = False
        #: Number of processes started here.
        self.starts = 0
        #: All former processes and tasks. Dropping them would run their finalizers during the run.
        self._past: list[object] = []
        cluster.wire.network(self.host, cluster.outside)

    def _new_volume(self) -> Volume:
        volume = Volume(self.clock, self._cluster.random)
        volume.prepare("data")
        return volume

    def change_disk(self, volume: Volume | None = None) -> Volume:
        """Give a dead machine another disk, by default an empty one; return the previous disk."""
        assert not self.is_alive
        before, self.volume = self.volume, volume or self._new_volume()
        return before

    @property
    def is_alive(self) -> bool:
        return self.process is not None and not self.process.is_dead

    def start(self) -> None:
        """Start a broker, and keep one running."""
        self.is_wanted = True
        if self.is_alive:
            return
        self.starts += 1
        self.is_ready = self._is_stopping = False
        self.process = self._cluster.loop.process(f"{self.host}.{self.starts}")
        self._cluster.loop.note(f"start {self.process.name}")
        self._past.append((self.process, self.process.spawn(self._run(self.process))))

    async def _run(self, process: Process) -> None:
        cluster = self._cluster
        supervisor = self.supervisor = SimSupervisor(cluster.loop, process.name)
        environment = Environment(
            self.clock,
            SimDisk(self.volume, process),
            cluster.wire.network(self.host, process),
            Random(f"{cluster.seed} {process.name}"),
            cluster.store.connect(self.link),
            has_threads=False,
            supervisor=supervisor,
        )
        server = self.server = SimServer(
            _config(self.node_id, cluster.flushes_before_ack, cluster.is_secure), environment
        )
        self._past.append(server)
        try:
            await server.start()
        except OSError as error:
            cluster.loop.note(f"start of {process.name} failed: {error}")
        except Exception as error:  # noqa: BLE001 - a start may only raise OSError
            cluster.loop.errors.append(f"start of {process.name} raised {error!r}")
        else:
            self.is_ready = True
            cluster.loop.note(f"ready {process.name}")
            reason = await server.failed
            if self._is_stopping:
                return
            cluster.loop.note(f"{process.name} failed: {reason}")
            if not isinstance(reason, MetadataStoreError | InjectedError):
                cluster.loop.errors.append(f"{process.name} gave up: {reason!r}")
        cluster.loop.call_soon(self._exit, process, context=cluster.loop.outside)

    def _exit(self, process: Process) -> None:
        if self.process is process:
            self.kill()

    def kill(self) -> None:
        """Kill the process; its files stay. A new process starts after a while."""
        process = self.process
        if process is None or process.is_dead:
            return
        self._cluster.loop.note(f"kill {process.name}")
        process.kill()
        self.is_ready = False
        self._cluster.wire.end_process(process)
        self._cluster.loop.call_later(
            _RESTART_S, self._restart_if_wanted, context=self._cluster.loop.outside
        )

    def lose_power(self) -> None:
        self._cluster.wire.power_off(self.host)
        self.kill()
        self.is_wanted = False
        self.volume.lose_power()

    def regain_power(self) -> None:
        self._cluster.wire.power_on(self.host)
        self.start()

    def restart(self) -> None:
        """Shut the broker down cleanly, then start a new process."""
        process, server = self.process, self.server
        if process is None or server is None or not self.is_ready or process.is_dead:
            return
        self._cluster.loop.note(f"stop {process.name}")
        self.is_ready = False
        self._is_stopping = True
        task = process.spawn(server.stop())
        self._past.append(task)
        task.add_done_callback(lambda _: self._exit(process), context=self._cluster.loop.outside)

    def _restart_if_wanted(self) -> None:
        if self.is_wanted:
            self.start()


class Cluster:
    """All machines, and the metadata store that they share."""

    def __init__(
        self,
        loop: VirtualLoop,
        seed: str,
        count: int,
        *,
        flushes_before_ack: bool = False,
        is_secure: bool = False,
    ) -> None:
        self.loop = loop
        #: Whether brokers and clients log in, and the brokers check ACLs.
        self.is_secure = is_secure
        #: Whether brokers flush a batch before they acknowledge it.
        self.flushes_before_ack = flushes_before_ack
        self.seed = seed
        self.random = Random(seed)
        self.outside = loop.process("outside")
        self.clock = SimClock(loop)
        self.store = MemoryStore(self.clock)
        if is_secure:
            secure.create_users(self.store)
        self.wire = Wire(loop, self.random)
        self.machines = {n: Machine(self, n) for n in range(1, count + 1)}

    def __iter__(self) -> Iterator[Machine]:
        return iter(self.machines.values())

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(machine.host, PORT) for machine in self]

    def records(self) -> dict[str, PartitionRecord]:
        """Return the stored record of every partition, by key."""
        found = self.store.range(PARTITIONS)
        return {item.key: decode_partition(item.value) for item in found.items}
