"""Three etcd members are killed and paused at random while brokers swap and watch keys.

No acknowledged swap is lost. Every watch yields every change once and in order.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from harness.process.etcd_process import EtcdCluster, EtcdMember, require_etcd
from harness.seed import choose_seed
from millstream.env.clock import SystemClock
from millstream.env.supervisor import Supervisor
from millstream.metadata.store.etcd.address import EtcdOptions, parse_etcd_address
from millstream.metadata.store.etcd.etcd_store import EtcdStore
from millstream.metadata.store.port import (
    Compare,
    Put,
    UnavailableError,
    UncertainError,
    WatchEvent,
)

BROKERS = 3
FAULTS = 25
LEASE_MS = 20_000
LAST = "end"


class Broker:
    """Changes shared keys by compare-and-swap, watches all keys, and renews a lease."""

    def __init__(self, number: int, store: EtcdStore) -> None:
        self.number = number
        self.store = store
        self.random = random.Random(number)
        #: The acknowledged swaps, by the revision in the response.
        self.acknowledged: dict[int, tuple[str, bytes]] = {}
        self.uncertain = 0
        self.watched: list[WatchEvent] = []
        self.is_done = False

    async def swap(self) -> None:
        count = 0
        while not self.is_done:
            key = f"k{self.random.randrange(4)}"
            count += 1
            value = b"%d:%d" % (self.number, count)
            try:
                found = await self.store.get(key)
                compare = Compare(key, found.revision if found else 0)
                outcome = await self.store.transact([compare], [Put(key, value)])
                if outcome.succeeded:
                    assert outcome.revision not in self.acknowledged
                    self.acknowledged[outcome.revision] = key, value
            except UncertainError:
                self.uncertain += 1
            except UnavailableError:
                continue
            await asyncio.sleep(0.005)

    async def watch(self, start: int) -> None:
        async with aclosing(self.store.watch("", start)) as changes:
            async for events in changes:
                self.watched += events.events
                if any(event.key == LAST for event in events.events):
                    return

    async def stay(self) -> None:
        """Renew a lease through all faults: its lifetime is longer than any fault."""
        lease = await self.store.grant(LEASE_MS)
        while not self.is_done:
            await asyncio.sleep(LEASE_MS / 10_000)
            try:
                await self.store.keep_alive(lease)
            except UnavailableError:
                continue


async def disturb(cluster: EtcdCluster, chooser: random.Random) -> None:
    for _ in range(FAULTS):
        count = chooser.choice([1, 1, 1, 2])
        victims = chooser.sample(cluster.members, count)
        fault = chooser.choice(["kill", "pause"])
        await asyncio.to_thread(_begin, fault, victims)
        await asyncio.sleep(chooser.uniform(0.2, 4.0))
        await asyncio.to_thread(_end, cluster, fault, victims)
        await asyncio.sleep(chooser.uniform(0.0, 0.5))


def _begin(fault: str, victims: list[EtcdMember]) -> None:
    for member in victims:
        if fault == "kill":
            member.kill()
        else:
            member.pause()


def _end(cluster: EtcdCluster, fault: str, victims: list[EtcdMember]) -> None:
    for member in victims:
        if fault == "kill":
            cluster.start(member)
        else:
            member.resume()
    cluster.wait_until_healthy()


@pytest.mark.soak
def test_members_are_killed_and_paused_at_random(tmp_path: Path) -> None:
    require_etcd()
    chooser = random.Random(choose_seed("MILLSTREAM_TEST_ETCD_SEED"))

    async def main(cluster: EtcdCluster) -> list[Broker]:
        options = EtcdOptions(address=parse_etcd_address(cluster.address()), attempt_ms_max=1000)
        async with AsyncExitStack() as stack:
            brokers = []
            for number in range(BROKERS):
                store = await EtcdStore.open(
                    options, SystemClock(), random.Random(number), Supervisor()
                )
                stack.push_async_callback(store.close)
                brokers.append(Broker(number, store))
            start = (await brokers[0].store.range("")).revision + 1
            watches = [asyncio.create_task(broker.watch(start)) for broker in brokers]
            work = [asyncio.create_task(broker.swap()) for broker in brokers]
            work += [asyncio.create_task(broker.stay()) for broker in brokers]
            await disturb(cluster, chooser)
            for broker in brokers:
                broker.is_done = True
            await asyncio.gather(*work)
            await brokers[0].store.transact([], [Put(LAST, b"")])
            async with asyncio.timeout(60):
                await asyncio.gather(*watches)
            return brokers

    with EtcdCluster(tmp_path, size=3) as cluster:
        brokers = asyncio.run(main(cluster))
    watched = brokers[0].watched
    assert all(broker.watched == watched for broker in brokers)
    revisions = [event.revision for event in watched]
    assert revisions == sorted(set(revisions))
    by_revision = {event.revision: (event.key, event.value) for event in watched}
    for broker in brokers:
        assert len(broker.acknowledged) > FAULTS
        for revision, swap in broker.acknowledged.items():
            assert by_revision[revision] == swap
    acknowledged = sum(len(broker.acknowledged) for broker in brokers)
    # Every event is an acknowledged swap or a swap with an uncertain outcome.
    assert len(watched) - 1 <= acknowledged + sum(broker.uncertain for broker in brokers)
