"""Faults of whole disks: a disk is lost or swapped, a log is deleted, or reads fail.

A disk is lost only if another replica that can be elected has all records. A disk that is taken
away and returned may be that of any broker: its partitions wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from millstream.metadata.cluster_record import TOPICS, PartitionRecord, decode_topic, partition_key
from millstream.metadata.replica_set import LOST
from millstream.model.topic import parse_topic_id
from sim.cluster import Cluster, Machine
from sim.invariant import Monitor

#: Time after which a replica that can't fetch has left the ISR.
_OUT_OF_SYNC_S: Final = 1.2
_LOOK_S: Final = 0.1
#: Checks of whether a disk may be returned, before it is returned anyway.
_LOOKS_MAX: Final = 200


class DiskFaults:
    """Injects faults of disks. `target` draws the machine."""

    def __init__(
        self,
        cluster: Cluster,
        monitor: Monitor,
        random: Random,
        target: Callable[[], Machine],
    ) -> None:
        self._cluster = cluster
        self._monitor = monitor
        self._random = random
        self._target = target

    def _note(self, what: str) -> None:
        self._cluster.loop.note(f"fault: {what}")

    async def _rest(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(low_s + self._random.random() * (high_s - low_s))

    async def lose(self) -> None:
        """Restart a broker with an empty disk."""
        await self._lose(self._target())

    async def _lose(self, machine: Machine) -> None:
        if not self._monitor.may_lose_disk(machine):
            return
        self._note(f"{machine.host} loses its disk")
        self._monitor.stopped(machine, lost_disk=True)
        self._take_down(machine)
        machine.change_disk()
        await self._rest(0.0, 1.5)
        machine.start()

    def _take_down(self, machine: Machine) -> None:
        machine.is_wanted = False
        machine.kill()

    async def lose_last(self) -> None:
        """Cut off all followers until their leader is the last in-sync replica. Then lose the
        leader's disk."""
        record = self._random.choice(list(self._cluster.records().values()))
        machines = self._cluster.machines
        if record.leader not in machines:
            return
        leader = machines[record.leader]
        self._note(f"everybody falls behind {leader.host}")
        others = [machines[each].host for each in record.replicas if each != record.leader]
        ways = [way for host in others for way in ((host, leader.host), (leader.host, host))]
        for way in ways:
            self._cluster.wire.cut(*way)
        await asyncio.sleep(_OUT_OF_SYNC_S)
        lost = asyncio.ensure_future(self._lose(leader))
        await asyncio.sleep(self._random.random() * 0.3)
        for way in ways:
            self._cluster.wire.heal(*way)
        await lost

    async def swap(self) -> None:
        """Run a broker on an empty disk for a while, then on its own disk again."""
        await self._swap(self._target())

    async def swap_last(self) -> None:
        """Swap the disk of a leader whose followers died before it and restart after it."""
        record = self._random.choice(list(self._cluster.records().values()))
        machines = self._cluster.machines
        if record.leader not in machines or self._monitor.has_any_lost:
            return
        others = [machines[each] for each in record.replicas if each != record.leader]
        self._note(f"{', '.join(each.host for each in others)} die")
        for other in others:
            self._monitor.stopped(other)
            self._take_down(other)
        await asyncio.sleep(_OUT_OF_SYNC_S)
        swapped = asyncio.ensure_future(self._swap(machines[record.leader]))
        for other in others:
            await self._rest(0.2, 1.5)
            other.start()
        await swapped

    async def _swap(self, machine: Machine) -> None:
        if not self._monitor.may_leave(machine) or self._monitor.has_any_lost:
            return
        self._note(f"{machine.host} is started on another disk")
        directory = self._directory(machine)
        self._monitor.stopped(machine, lost_disk=True)
        self._take_down(machine)
        own = machine.change_disk()
        await self._rest(0.0, 0.3)
        machine.start()
        await self._rest(0.1, 2.0)
        for _ in range(_LOOKS_MAX):
            if self._monitor.may_return(machine, directory):
                break
            await asyncio.sleep(_LOOK_S)
        self._note(f"{machine.host} gets its disk back")
        self._monitor.stopped(machine)
        self._monitor.disk_returned(machine, directory)
        self._take_down(machine)
        machine.change_disk(own)
        await self._rest(0.0, 0.3)
        machine.start()

    def _directory(self, machine: Machine) -> str:
        """Return the machine's directory id, according to partition records."""
        names = [each.directory(machine.node_id) for each in self._cluster.records().values()]
        return next((name for name in names if name not in ("", LOST)), "")

    async def delete_log(self) -> None:
        """Delete the directory of one log while the broker is down."""
        machine = self._target()
        folders = [name for name in machine.volume.directories("data") if name in self._keys()]
        if not folders:
            return
        folder = self._random.choice(folders)
        if not self._monitor.may_lose_disk(machine, self._keys()[folder]):
            return
        self._note(f"{folder} of {machine.host} is deleted")
        self._monitor.stopped(machine, lost_disk=True)
        self._take_down(machine)
        machine.volume.delete("data", folder)
        await self._rest(0.0, 1.0)
        machine.start()

    async def fail_reads(self) -> None:
        """Fail reads of one log until the broker is restarted."""
        machine = self._target()
        folders = [name for name in machine.volume.directories("data") if name in self._keys()]
        if not folders or not self._monitor.may_leave(machine):
            return
        folder = self._random.choice(folders)
        self._note(f"{folder} of {machine.host} can't be read")
        volume = machine.volume
        volume.unreadable = folder
        # Other faults must not rely on this replica: the broker is killed at the end.
        machine.impairments += 1
        await self._rest(0.05, 1.5)
        await self._monitor.until_may_leave(machine)
        volume.unreadable = ""
        self._monitor.stopped(machine)
        machine.kill()
        machine.impairments -= 1

    def _keys(self) -> dict[str, str]:
        """Return the keys of all partition records, by the name of their log directory."""
        records: dict[str, PartitionRecord] = self._cluster.records()
        found: dict[str, str] = {}
        for item in self._cluster.store.range(TOPICS).items:
            topic_id = parse_topic_id(decode_topic(item.value).id)
            number = 0
            while (key := partition_key(topic_id, number)) in records:
                found[f"{item.key.removeprefix(TOPICS)}-{number}"] = key
                number += 1
        return found
