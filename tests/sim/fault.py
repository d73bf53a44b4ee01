"""The faults of a run, drawn from its seed.

Each fault starts, lasts a while and ends. Several may be in progress at once. Any number of brokers
may be killed, paused or cut off together: the cluster may then be unavailable, but must not lose
records. Only power failures and lost disks are limited to what replication protects from: until
the broker that lost its page cache or its disk is in sync again, another replica must have all
records.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Final

from millstream.metadata.cluster_record import (
    CONTROLLER_KEY,
    PARTITIONS,
    TOPICS,
    decode_controller,
    decode_topic,
)
from sim.admin import Admin
from sim.cluster import Cluster, Machine
from sim.disk_fault import DiskFaults
from sim.invariant import Monitor

#: Mean time from one fault to the next.
_GAP_S: Final = 0.2
#: Time after a fault until other brokers have noticed it: the lease has expired or was renewed.
_NOTICED_S: Final = 1.1


class Nemesis:
    """Injects the faults of one run."""

    def __init__(
        self,
        cluster: Cluster,
        monitor: Monitor,
        random: Random,
        client_hosts: list[str],
        admin: Admin,
    ) -> None:
        self._cluster = cluster
        self._monitor = monitor
        self._random = random
        self._clients = client_hosts
        self._admin = admin
        self._disks = DiskFaults(cluster, monitor, random, self._target)
        #: Weight of each fault.
        self._faults: dict[Callable[[], Awaitable[None]], int] = {
            self._kill: 5,
            self._power: 5,
            self._fall_behind: 2,
            self._pause: 4,
            self._isolate: 3,
            self._one_way: 3,
            self._cut_from_store: 3,
            self._store_outage: 1,
            self._slow_way: 2,
            self._reset: 2,
            self._cut_from_clients: 1,
            self._slow_disk: 1,
            self._failing_disk: 1,
            self._clock_jump: 1,
            self._clean_restart: 2,
            self._compact_store: 1,
            self._lose_lease: 2,
            self._repeat: 4,
            self._reassign: 3,
            self._elect: 2,
            self._disks.lose: 2,
            self._disks.lose_last: 3,
            self._disks.swap: 2,
            self._disks.swap_last: 4,
            self._disks.delete_log: 2,
            self._disks.fail_reads: 2,
        }

    async def run(self) -> None:
        """Inject faults; return when all of them are over."""
        count = self._random.choice((1, 2, 3, 3, 4, 4, 5, 6, 8))
        chosen = self._random.choices(list(self._faults), list(self._faults.values()), k=count)
        under_way = []
        for fault in chosen:
            await asyncio.sleep(self._random.expovariate(1 / _GAP_S))
            under_way.append(asyncio.ensure_future(fault()))
        await asyncio.gather(*under_way)
        for machine in self._cluster:
            machine.start()

    # Targets

    def _target(self) -> Machine:
        machines = self._cluster.machines
        draw = self._random.random()
        records = list(self._cluster.records().values())
        record = self._random.choice(records)
        if draw < 0.45 and record.leader in machines:
            return machines[record.leader]
        if draw < 0.65 and record.isr:
            return machines[self._random.choice(record.isr)]
        if draw < 0.8:
            found = self._cluster.store.get(CONTROLLER_KEY)
            if found is not None:
                return machines[decode_controller(found.value)]
        return self._random.choice(list(machines.values()))

    def _pair(self) -> tuple[Machine, Machine]:
        one = self._target()
        others = [machine for machine in self._cluster if machine is not one]
        other = self._random.choice(others)
        return (one, other) if self._random.random() < 0.5 else (other, one)

    def _note(self, what: str) -> None:
        self._cluster.loop.note(f"fault: {what}")

    async def _last(self, low_s: float = 0.05, high_s: float = 1.6) -> None:
        """Wait for a random time. Its logarithm is uniformly distributed."""
        ratio = high_s / low_s
        await asyncio.sleep(low_s * ratio ** self._random.random())

    @contextlib.asynccontextmanager
    async def _impaired(self, machines: list[Machine]) -> AsyncIterator[bool]:
        """Mark brokers as impaired if the fault is allowed. Yields whether it is."""
        is_fair = all(map(self._monitor.may_leave, machines)) and (
            len(machines) == 1 or not self._monitor.has_any_lost
        )
        for machine in machines:
            machine.impairments += is_fair
        yield is_fair
        if is_fair:
            self._cluster.loop.call_later(_NOTICED_S, self._recovered, machines)

    def _recovered(self, machines: list[Machine]) -> None:
        for machine in machines:
            machine.impairments -= 1

    # Faults

    def _stop(self, machine: Machine) -> bool:
        """Kill a broker if the cluster must survive that. Return whether it was killed."""
        if not self._monitor.may_leave(machine):
            return False
        self._note(f"kill {machine.host}")
        self._monitor.stopped(machine)
        machine.kill()
        return True

    async def _kill(self) -> None:
        machine = self._target()
        if self._stop(machine) and self._random.random() < 0.5:
            machine.is_wanted = False
            await self._last()
            machine.start()

    async def _power(self) -> None:
        machine = self._target()
        if not self._monitor.may_lose_power(machine):
            self._stop(machine)
            return
        self._note(f"power of {machine.host} fails")
        self._monitor.stopped(machine, lost_power=True)
        machine.lose_power()
        await self._last(0.03, 1.5)
        machine.regain_power()

    async def _fall_behind(self) -> None:
        """Cut off a follower until it is out of sync, let it fetch with slow responses, then kill
        its leader."""
        record = self._random.choice(list(self._cluster.records().values()))
        followers = [each for each in record.replicas if each != record.leader]
        if record.leader not in self._cluster.machines:
            return
        leader = self._cluster.machines[record.leader]
        follower = self._cluster.machines[self._random.choice(followers)]
        self._note(f"{follower.host} falls behind {leader.host}")
        wire, to = self._cluster.wire, (follower.host, leader.host)
        back = (leader.host, follower.host)
        wire.cut(*to)
        wire.cut(*back)
        await asyncio.sleep(0.6 + self._random.random() * 0.5)
        wire.slow[back] = (0.05, 0.25)
        wire.heal(*back)
        wire.heal(*to)
        await asyncio.sleep(self._random.random() * 0.3)
        self._stop(leader)
        await self._last(0.05, 0.5)
        wire.slow.pop(back, None)

    async def _pause(self) -> None:
        machine = self._target()
        process = machine.process
        if process is None or process.is_dead:
            return
        async with self._impaired([machine]) as is_fair:
            if is_fair:
                self._note(f"pause {process.name}")
                process.hold()
                await self._last(0.05, 2.0)
                self._note(f"resume {process.name}")
                process.release()

    async def _isolate(self) -> None:
        machine = self._target()
        self._note(f"isolate {machine.host}")
        others = [other.host for other in self._cluster if other is not machine]
        await self._cut([(machine.host, o) for o in others] + [(o, machine.host) for o in others])

    async def _one_way(self) -> None:
        one, other = self._pair()
        self._note(f"cut {one.host} to {other.host}")
        await self._cut([(one.host, other.host)])

    async def _cut_from_clients(self) -> None:
        machine = self._target()
        self._note(f"cut {machine.host} from clients")
        await self._cut([(machine.host, client) for client in self._clients])

    async def _cut(self, ways: list[tuple[str, str]]) -> None:
        wire = self._cluster.wire
        for way in ways:
            wire.cut(*way)
        await self._last(0.1, 2.0)
        for way in ways:
            wire.heal(*way)

    async def _cut_from_store(self) -> None:
        machine = self._target()
        self._note(f"cut {machine.host} from the store")
        await self._cut_links([machine])

    async def _store_outage(self) -> None:
        self._note("the store is down")
        await self._cut_links(list(self._cluster))

    async def _cut_links(self, machines: list[Machine]) -> None:
        async with self._impaired(machines) as is_fair:
            if not is_fair:
                return
            for machine in machines:
                machine.link.cut()
            await self._last(0.1, 2.0)
            for machine in machines:
                machine.link.heal()

    async def _slow_way(self) -> None:
        one, other = self._pair()
        self._note(f"{one.host} to {other.host} is slow")
        way = (one.host, other.host)
        self._cluster.wire.slow[way] = (0.01, 0.2)
        await self._last()
        self._cluster.wire.slow.pop(way, None)

    async def _reset(self) -> None:
        one, other = self._pair()
        self._note(f"reset {one.host} {other.host}")
        self._cluster.wire.reset(one.host, other.host)

    async def _slow_disk(self) -> None:
        machine = self._target()
        async with self._impaired([machine]) as is_fair:
            if is_fair:
                self._note(f"disk of {machine.host} is slow")
                machine.volume.slow_s = 0.15
                await self._last()
                machine.volume.slow_s = 0.0

    async def _failing_disk(self) -> None:
        machine = self._target()
        if not self._monitor.may_leave(machine):
            return
        self._note(f"disk of {machine.host} fails")
        # Other faults must not rely on this replica: logs whose disk failed stay offline until
        # the broker is killed and restarted.
        self._monitor.stopped(machine)
        volume = machine.volume
        volume.errors = 0.3
        machine.impairments += 1
        await self._last(0.05, 0.8)
        volume.errors = 0.0
        await self._monitor.until_may_leave(machine)
        self._monitor.stopped(machine)
        machine.kill()
        machine.impairments -= 1

    async def _clock_jump(self) -> None:
        machine = self._target()
        self._note(f"clock of {machine.host} jumps")
        # Topics accept timestamps up to one hour in the future.
        machine.clock.offset_ms = self._random.randrange(-1_800_000, 1_800_000)

    async def _clean_restart(self) -> None:
        machine = self._target()
        async with self._impaired([machine]) as is_fair:
            if is_fair:
                self._note(f"restart {machine.host}")
                machine.restart()
                await asyncio.sleep(0.5)

    async def _compact_store(self) -> None:
        self._note("compact the store")
        self._cluster.store.compact()

    async def _lose_lease(self) -> None:
        machine = self._target()
        lease = machine.server.lease if machine.server is not None else None
        async with self._impaired([machine]) as is_fair:
            if is_fair and lease is not None:
                self._note(f"{machine.host} loses its lease")
                self._cluster.store.revoke(lease)

    async def _repeat(self) -> None:
        """Deliver requests of a broker or a client a second time."""
        target = self._target()
        others = [machine.host for machine in self._cluster if machine is not target]
        source = self._random.choice(others + self._clients)
        for _ in range(self._random.choice((1, 2, 4))):
            self._note(f"repeat what {source} sent to {target.host}")
            # The connection may be refused or cut.
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._cluster.wire.repeat(
                        source, target.host, self._cluster.outside, self._random.random() * 0.3
                    )

    # Admin requests

    async def _reassign(self) -> None:
        topic, partition = self._partition()
        brokers = list(self._cluster.machines)
        replicas = self._random.sample(brokers, self._random.choice((2, 3, 3, 3)))
        self._note(f"move {topic} {partition} to {replicas}")
        await self._admin.process.spawn(self._admin.reassign(topic, partition, replicas))
        await self._last(0.05, 0.8)
        if self._random.random() < 0.3:
            self._note(f"move {topic} {partition} back")
            await self._admin.process.spawn(self._admin.reassign(topic, partition, None))

    async def _elect(self) -> None:
        topic, partition = self._partition()
        self._note(f"elect for {topic} {partition}")
        await self._admin.process.spawn(self._admin.elect(topic, partition))

    def _partition(self) -> tuple[str, int]:
        """Return a random partition of a random topic."""
        key = self._random.choice(list(self._cluster.records()))
        topic_id, _, partition = key.removeprefix(PARTITIONS).partition("/")
        for item in self._cluster.store.range(TOPICS).items:
            if decode_topic(item.value).id == topic_id:
                return item.key.removeprefix(TOPICS), int(partition)
        raise AssertionError(f"{key} has no topic")
