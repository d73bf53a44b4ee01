"""One run: a cluster, clients, faults, the time to recover, and what was wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from sim.client import Client, Consumer, Producer
from sim.cluster import Cluster
from sim.fault import Nemesis
from sim.history import History
from sim.invariant import Monitor, partitions_of
from sim.loop import StuckError, Trace, VirtualLoop

#: Until the cluster is whole again after the last fault, and everybody has read everything.
RECOVERY_S_MAX: Final = 30.0
_START_S_MAX: Final = 10.0
_LOOK_S: Final = 0.1
PARTITIONS: Final = 2

#: What ran before stays: letting go of it would finalize it while another run is under way.
_past: list[object] = []


@dataclass(slots=True)
class Outcome:
    seed: int
    #: Equal for two runs in which the same happened.
    digest: int
    violations: list[str]
    acknowledged: int
    virtual_s: float
    lines: list[str] = field(default_factory=list)


def run_seed(seed: int, *, keeps_lines: bool = False) -> Outcome:
    loop = VirtualLoop(Trace(keeps_lines=keeps_lines))
    asyncio.set_event_loop(loop)
    run = Run(loop, seed)
    _past.append((loop, run))
    begin = loop.time()
    try:
        loop.run_until_complete(run.cluster.outside.spawn(run.main()))
    except StuckError as error:
        run.history.violated(str(error))
    finally:
        asyncio.set_event_loop(None)
    violations = run.history.check() + [f"error: {error}" for error in loop.errors]
    return Outcome(
        seed,
        loop.trace.digest,
        violations,
        sum(len(each.acknowledged) for each in run.history.partitions),
        loop.time() - begin,
        loop.trace.lines or [],
    )


class Run:
    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        random = Random(f"run {seed}")
        self._loop = loop
        self.history = History(PARTITIONS)
        self.cluster = Cluster(
            loop,
            f"cluster {seed}",
            random.choice((3, 3, 3, 4, 5)),
            flushes_before_ack=random.random() < 0.15,
        )
        self._monitor = Monitor(self.cluster, self.history.violated)
        self._admin = Client(self.cluster, "admin", self.history)
        self._producers = [
            Producer(self.cluster, number, number % PARTITIONS, self.history)
            for number in range(random.choice((2, 2, 3)))
        ]
        self._consumers = [
            Consumer(self.cluster, number, number, self.history) for number in range(PARTITIONS)
        ]
        hosts = [client.host for client in (*self._producers, *self._consumers)]
        self._nemesis = Nemesis(self.cluster, self._monitor, Random(f"faults {seed}"), hosts)
        self._random = random

    async def main(self) -> None:
        cluster = self.cluster
        for machine in cluster:
            machine.start()
        if not await self._until(lambda: all(each.is_ready for each in cluster), _START_S_MAX):
            self.history.violated("the cluster did not start")
            return
        await self._admin.process.spawn(self._create_topic())
        watching = [
            cluster.outside.spawn(self._monitor.watch_store()),
            cluster.outside.spawn(self._monitor.look_around(_LOOK_S)),
        ]
        producing = [each.process.spawn(each.run()) for each in self._producers]
        consuming = [each.process.spawn(each.run()) for each in self._consumers]
        await self._nemesis.run()
        await asyncio.sleep(0.3)
        for producer in self._producers:
            producer.is_finishing = True
        await self._recover(producing)
        for task in (*watching, *consuming, *producing):
            task.cancel()
        await asyncio.wait([*watching, *consuming, *producing])
        self._note_errors([*watching, *consuming, *producing])

    async def _create_topic(self) -> None:
        brokers = list(self.cluster.machines)
        configs = {
            "min.insync.replicas": "2",
            "segment.bytes": str(self._random.choice((300, 600, 2000))),
        }
        placed = [self._random.sample(brokers, 3) for _ in range(PARTITIONS)]
        await self._admin.create_topic(placed, configs)

    def _note_errors(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                self.history.violated(f"{task.get_name()} ended with {task.exception()!r}")

    # The end

    async def _recover(self, producing: list[asyncio.Task[None]]) -> None:
        """Wait until all is well again, then read all that there is."""

        def is_done() -> bool:
            return all(task.done() for task in producing) and self._is_whole()

        if not await self._until(is_done, RECOVERY_S_MAX):
            self.history.violated(
                f"not whole {RECOVERY_S_MAX:.0f} s after the last fault: {self._state(producing)}"
            )
            return
        for number in range(PARTITIONS):
            reader = Consumer(self.cluster, 100 + number, number, self.history)
            await asyncio.wait_for(reader.process.spawn(reader.read_on(until_end=True)), 10)
            self.history.partitions[number].final = reader.seen
        self.history.is_complete = True
        ends = {number: self.history.partitions[number].final for number in range(PARTITIONS)}
        if not await self._until(
            lambda: all(
                consumer.position == len(ends[number])
                for number, consumer in enumerate(self._consumers)
            ),
            RECOVERY_S_MAX,
        ):
            self.history.violated("consumers do not reach the end")
        self._monitor.check()

    def _is_whole(self) -> bool:
        """Whether every broker serves and every partition is in sync, to the end, everywhere."""
        cluster = self.cluster
        if not all(machine.is_ready for machine in cluster):
            return False
        for record in cluster.records().values():
            if record.leader < 0 or set(record.isr) != set(record.replicas):
                return False
        ends: dict[int, set[int]] = {}
        for machine in cluster:
            for partition in partitions_of(machine):
                number = partition.topic_partition.partition
                offsets = (partition.log.log_end_offset, partition.high_watermark)
                ends.setdefault(number, set()).update(offsets)
        return all(len(found) == 1 for found in ends.values())

    def _state(self, producing: list[asyncio.Task[None]]) -> str:
        """For people, of a cluster that does not recover."""
        lines = [
            f"{machine.host} ready={machine.is_ready} alive={machine.is_alive} "
            + " ".join(
                f"{p.topic_partition.partition}:{p.high_watermark}/{p.log.log_end_offset}"
                for p in (partitions_of(machine) if machine.server is not None else ())
            )
            for machine in self.cluster
        ]
        lines += [
            f"{key} leader={r.leader} epoch={r.leader_epoch} isr={r.isr}"
            for key, r in self.cluster.records().items()
        ]
        lines.append(f"producers at work: {sum(not task.done() for task in producing)}")
        return "; ".join(lines)

    async def _until(self, condition: Callable[[], bool], wait_s_max: float) -> bool:
        deadline = self._loop.time() + wait_s_max
        while not condition():
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True
