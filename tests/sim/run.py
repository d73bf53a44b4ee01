"""One run: start a cluster and its clients, inject faults, wait for recovery, check the result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from millstream.model.topic import TopicPartition
from millstream.replication.peer import PeerError
from sim.admin import Admin
from sim.client import GROUP_KEY, TRANSACTION_KEY
from sim.cluster import Cluster
from sim.fault import Nemesis
from sim.history import History
from sim.internal_error import InternalErrors
from sim.invariant import Monitor, partitions_of
from sim.loop import StuckError, Trace, VirtualLoop
from sim.member import GROUP, Member, RefusedError
from sim.producer import Producer
from sim.reader import Consumer
from sim.transaction import TransactionalProducer

#: Time that the cluster has to recover after the last fault, and each consumer to catch up.
RECOVERY_S_MAX: Final = 30.0
_START_S_MAX: Final = 10.0
_LOOK_S: Final = 0.1
PARTITIONS: Final = 2
#: Share of the runs whose clusters are secure.
SECURE_SHARE: Final = 0.2

#: Earlier runs. Dropping them would run their finalizers during another run.
_past: list[object] = []


@dataclass(slots=True)
class Outcome:
    seed: int
    #: Equal for two runs with the same trace.
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
        run.history.acknowledged,
        loop.time() - begin,
        loop.trace.lines or [],
    )


class Run:
    """The parts of one run, drawn from its seed."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        random = Random(f"run {seed}")
        self._loop = loop
        self.history = History(loop.time)
        self.cluster = Cluster(
            loop,
            f"cluster {seed}",
            random.choice((3, 3, 3, 3, 4, 5)),
            flushes_before_ack=random.random() < 0.15,
            is_secure=Random(f"secure {seed}").random() < SECURE_SHARE,
        )
        self._monitor = Monitor(self.cluster, self.history.violated)
        self._admin = Admin(self.cluster, "admin", self.history)
        self._producers = [
            Producer(self.cluster, number, number % PARTITIONS, self.history)
            for number in range(random.choice((1, 2, 2)))
        ]
        self._members = [
            Member(self.cluster, number, range(PARTITIONS), self.history)
            for number in range(random.choice((0, 0, 0, 1, 2, 2)))
        ]
        self._transactors = self._make_transactors(random)
        self._consumer = Consumer(
            self.cluster,
            "consumer",
            random.randrange(PARTITIONS),
            self.history,
            committed=random.random() < 0.5,
        )
        clients = (*self._producers, self._consumer, *self._members, *self._transactors)
        hosts = [each.host for each in clients]
        self._nemesis = Nemesis(
            self.cluster, self._monitor, Random(f"faults {seed}"), hosts, self._admin
        )
        # The text belongs to the seed: with another one, known seeds would run differently.
        random = Random(f"mishaps {seed}")
        self._internal_errors = InternalErrors(self.cluster, self._monitor, random)
        self._random = random
        #: Offset after the last record of each partition, once it is read to the end.
        self._ends: dict[int, int] = {}

    def _make_transactors(self, random: Random) -> list[TransactionalProducer]:
        """Make none, one or two. Two may share a transactional id."""
        draw = random.random()
        ids = (
            []
            if draw < 0.5
            else ["a"]
            if draw < 0.85
            else ["a", "a"]
            if draw < 0.95
            else ["a", "b"]
        )
        return [
            TransactionalProducer(
                self.cluster, number, transactional_id, range(PARTITIONS), self.history
            )
            for number, transactional_id in enumerate(ids)
        ]

    async def main(self) -> None:
        cluster = self.cluster
        for machine in cluster:
            machine.start()
        if not await self._until(lambda: all(each.is_ready for each in cluster), _START_S_MAX):
            self.history.violated("the cluster did not start")
            return
        await self._admin.process.spawn(self._create_topics())
        watching = [
            cluster.outside.spawn(self._monitor.watch_store()),
            cluster.outside.spawn(self._monitor.check_regularly(_LOOK_S)),
        ]
        producing = [
            each.process.spawn(each.run()) for each in (*self._producers, *self._transactors)
        ]
        consuming = [each.process.spawn(each.run()) for each in (self._consumer, *self._members)]
        if self._internal_errors:
            await asyncio.gather(self._nemesis.run(), self._internal_errors.run())
        else:
            await self._nemesis.run()
        await asyncio.sleep(0.15)
        for producer in (*self._producers, *self._transactors):
            producer.is_finishing = True
        await self._recover(producing)
        for task in (*watching, *consuming, *producing):
            task.cancel()
        await asyncio.wait([*watching, *consuming, *producing])
        self._note_errors([*watching, *consuming, *producing])

    async def _create_topics(self) -> None:
        brokers = list(self.cluster.machines)
        configs = {
            "min.insync.replicas": "2",
            "segment.bytes": str(self._random.choice((300, 600, 2000))),
        }
        placed = [self._random.sample(brokers, 3) for _ in range(PARTITIONS)]
        await self._admin.create_topic(placed, configs)
        if self._members or self._transactors:
            await self._admin.coordinator(GROUP_KEY, GROUP)
        if self._transactors:
            await self._admin.coordinator(TRANSACTION_KEY, "a")

    def _note_errors(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                self.history.violated(f"{task.get_name()} ended with {task.exception()!r}")

    # Recovery

    async def _recover(self, producing: list[asyncio.Task[None]]) -> None:
        """Wait until the cluster has recovered, then read all partitions to the end."""

        def is_done() -> bool:
            return all(task.done() for task in producing) and self._is_whole()

        if not await self._until(is_done, RECOVERY_S_MAX):
            self.history.violated(
                f"not recovered {RECOVERY_S_MAX:.0f} s after the last fault: "
                f"{self._state(producing)}"
            )
            return
        for number in range(PARTITIONS):
            reader = Consumer(
                self.cluster, f"reader-{number}", number, self.history, committed=True
            )
            await asyncio.wait_for(reader.process.spawn(reader.read_to_end()), 10)
            self._ends[number] = reader.position
        if not await self._until(
            lambda: self._consumer.position == self._ends[self._consumer.partition],
            RECOVERY_S_MAX,
        ):
            self.history.violated("the consumer does not reach the end")
        if self._members:
            await self._await_group()
        self._monitor.check()

    async def _await_group(self) -> None:
        """Wait until the group has committed the end of every partition."""
        observer = Member(self.cluster, 100, range(PARTITIONS), self.history)
        await observer.process.spawn(self._observe(observer))

    async def _observe(self, observer: Member) -> None:
        deadline = self._loop.time() + RECOVERY_S_MAX
        found: dict[int, int] = {}
        while self._loop.time() < deadline:
            begin = self._loop.time()
            try:
                found = await observer.committed(list(self._ends))
            except (PeerError, RefusedError) as error:
                found = {}
                observer.forget_coordinator(GROUP_KEY, GROUP)
                observer.note(f"can't see the group: {error}")
            for number, offset in found.items():
                self.history.check_fetched(observer.name, GROUP, number, offset, begin)
            if all(found.get(number, -1) >= end for number, end in self._ends.items() if end):
                return
            await observer.rest()
        self.history.violated(f"the group has committed {found} and the ends are {self._ends}")

    def _is_whole(self) -> bool:
        """Whether all brokers are ready and all replicas of each partition in sync and equal."""
        cluster = self.cluster
        if not all(machine.is_ready for machine in cluster):
            return False
        for record in cluster.records().values():
            if record.leader < 0 or set(record.isr) != set(record.replicas):
                return False
        ends: dict[TopicPartition, set[int]] = {}
        for machine in cluster:
            for partition in partitions_of(machine):
                offsets = (partition.log.log_end_offset, partition.high_watermark)
                ends.setdefault(partition.topic_partition, set()).update(offsets)
                if partition.is_leader:
                    # No transaction is open.
                    ends[partition.topic_partition].add(partition.last_stable_offset)
        return all(len(found) == 1 for found in ends.values())

    def _state(self, producing: list[asyncio.Task[None]]) -> str:
        """Describe a cluster that does not recover."""
        lines = [
            f"{machine.host} ready={machine.is_ready} alive={machine.is_alive} "
            + " ".join(
                f"{p.topic_partition}:{p.high_watermark}/{p.log.log_end_offset}"
                for p in (partitions_of(machine) if machine.server is not None else ())
            )
            for machine in self.cluster
        ]
        lines += [
            f"{key} leader={r.leader} epoch={r.leader_epoch} isr={r.isr}"
            for key, r in self.cluster.records().items()
        ]
        lines.append(f"producers not finished: {sum(not task.done() for task in producing)}")
        return "; ".join(lines)

    async def _until(self, condition: Callable[[], bool], wait_s_max: float) -> bool:
        deadline = self._loop.time() + wait_s_max
        while not condition():
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True
