"""Errors inside brokers: reads that fail, callbacks that raise, background tasks that raise.

They are drawn from a random stream of their own, so they do not change the faults of `fault`. Half
of the seeds have none.

A broker must recover from most of them by itself. It is restarted for the others: a log whose disk
returned EIO or that could not be truncated stays offline, and some tasks can't be restarted.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from millstream.env.supervisor import Policy
from sim import raising
from sim.cluster import Cluster, Machine
from sim.disk import ReadErrors
from sim.invariant import Monitor, partitions_of
from sim.supervisor import InjectedError

#: Mean time from one error to the next.
_GAP_S: Final = 0.4
#: Time until other brokers have noticed an error: the lease has expired or was renewed.
_NOTICED_S: Final = 1.1
#: Errors of a system that lacks memory or descriptors. The file can be read later.
_PASSING: Final = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class InternalErrors:
    """Injects the errors of one run."""

    def __init__(self, cluster: Cluster, monitor: Monitor, random: Random) -> None:
        self._cluster = cluster
        self._monitor = monitor
        self._random = random
        #: Weight of each kind of error.
        self._kinds: dict[Callable[[Machine], Awaitable[None]], int] = {
            self._fail_reads_for_a_while: 4,
            self._fail_reads_until_restarted: 2,
            self._raise_in_callbacks: 4,
            self._raise_in_task: 4,
        }
        self._count = random.choice((0, 0, 0, 0, 1, 1, 2, 3))

    def __bool__(self) -> bool:
        """Whether the seed has any errors."""
        return self._count > 0

    async def run(self) -> None:
        """Inject errors; return when all of them are over."""
        kinds, weights = list(self._kinds), list(self._kinds.values())
        under_way = []
        for kind in self._random.choices(kinds, weights, k=self._count):
            await asyncio.sleep(self._random.expovariate(1 / _GAP_S))
            machine = self._random.choice(list(self._cluster))
            under_way.append(asyncio.ensure_future(kind(machine)))
        await asyncio.gather(*under_way)

    def _note(self, what: str) -> None:
        self._cluster.loop.note(f"fault: {what}")

    async def _last(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(low_s * (high_s / low_s) ** self._random.random())

    async def _fail_reads_for_a_while(self, machine: Machine) -> None:
        if not self._monitor.may_leave(machine):
            return
        share = self._random.choice((0.05, 0.3, 1.0))
        number = self._random.choice(_PASSING)
        self._note(f"{share:.0%} of the reads of {machine.host} fail: {errno.errorcode[number]}")
        machine.impairments += 1
        volume = machine.volume
        volume.read_errors = ReadErrors(share, number, self._random)
        await self._last(0.05, 0.8)
        volume.read_errors = None
        if any(partition.log.failure for partition in partitions_of(machine)):
            # A truncation failed halfway: an operator restarts the broker.
            self._note(f"{machine.host} has a log offline")
            await self._monitor.until_may_leave(machine)
            self._monitor.stopped(machine)
            machine.kill()
        self._cluster.loop.call_later(_NOTICED_S, self._recovered, machine)

    def _recovered(self, machine: Machine) -> None:
        machine.impairments -= 1

    async def _fail_reads_until_restarted(self, machine: Machine) -> None:
        """Fail reads of any file with EIO. Logs that were hit stay offline until the restart."""
        if not self._monitor.may_leave(machine):
            return
        share = self._random.choice((0.02, 0.1, 0.5))
        self._note(f"{share:.0%} of the reads of {machine.host} fail: EIO")
        # Other faults must not rely on this replica: the broker is killed at the end.
        self._monitor.stopped(machine)
        machine.impairments += 1
        volume = machine.volume
        volume.read_errors = ReadErrors(share, errno.EIO, self._random)
        await self._last(0.05, 0.8)
        volume.read_errors = None
        await self._monitor.until_may_leave(machine)
        self._monitor.stopped(machine)
        machine.kill()
        machine.impairments -= 1

    async def _raise_in_callbacks(self, machine: Machine) -> None:
        process = machine.process
        if process is None or process.is_dead:
            return
        share = self._random.choice((0.02, 0.1, 0.3))
        self._note(f"{share:.0%} of the callbacks of {process.name} raise")
        raising.begin(process, share, self._random)
        await self._last(0.05, 0.8)
        raising.end(process)

    async def _raise_in_task(self, machine: Machine) -> None:
        supervisor = machine.supervisor
        if supervisor is None or not machine.is_alive or not machine.is_ready:
            return
        tasks = [task for task in supervisor.tasks if not task.is_pausing]
        task = self._random.choice(tasks)
        if task.policy is Policy.STOP:
            if not self._monitor.may_leave(machine):
                return
            # The broker shuts down, and its machine starts another process.
            self._monitor.stopped(machine)
        self._note(f"{task} of {machine.host} raises")
        assert machine.process is not None
        machine.process.context.run(supervisor.interrupt, task, InjectedError(f"in {task}"))
