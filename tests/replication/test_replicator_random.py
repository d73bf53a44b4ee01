"""A producer and a consumer while leaders change and brokers die, at random from a seed.

In the end every broker has each record that was acknowledged with acks=all, and each record that a
consumer saw, at the same offset.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec
import pytest

from harness.in_process.replica_set import ReplicaSet, run
from harness.raw.raw_client import records_of
from millstream.metadata.cluster_record import PartitionRecord
from millstream.replication.peer import PeerError

STEPS = 10
IDS = (1, 2, 3)


class Clients:
    """One producer and one consumer. Both use the leader that the store names."""

    def __init__(self, brokers: ReplicaSet) -> None:
        self.brokers = brokers
        self.acknowledged: dict[int, bytes] = {}
        self.seen: dict[int, bytes | None] = {}
        self.is_done = False

    async def produce(self) -> None:
        number = 0
        while not self.is_done:
            number += 1
            value = b"%d" % number
            try:
                row = await self.brokers.produce("t", value, timeout_ms=300)
            except PeerError:
                await asyncio.sleep(0.005)
                continue
            if row.error_code == 0:
                assert row.base_offset not in self.acknowledged
                self.acknowledged[row.base_offset] = value
            else:
                await asyncio.sleep(0.005)

    async def consume(self) -> None:
        offset = high_watermark = 0
        while not self.is_done:
            await asyncio.sleep(0.002)
            try:
                row = await self.brokers.fetch("t", offset, at=self.brokers.record("t").leader)
            except PeerError:
                continue
            if row.error_code or not row.records:
                continue
            for record in records_of(row.records):
                assert self.seen.setdefault(record.offset, record.value) == record.value
                offset = record.offset + 1
            high_watermark = max(high_watermark, row.high_watermark)
            assert offset <= high_watermark


async def disturb(brokers: ReplicaSet, chooser: random.Random) -> None:
    """Change the leader, or kill and restart a broker."""

    def elect(record: PartitionRecord) -> PartitionRecord:
        leader, epoch = chooser.choice(record.isr), record.leader_epoch + 1
        return msgspec.structs.replace(record, leader=leader, leader_epoch=epoch)

    def bury(record: PartitionRecord) -> PartitionRecord:
        """Remove the victim as a controller does, unless it is the last in-sync replica."""
        left = tuple(each for each in record.isr if each != victim)
        if not left:
            return record
        buried = msgspec.structs.replace(record, isr=left)
        return elect(buried) if record.leader == victim else buried

    if chooser.random() < 0.5:
        await brokers.decide("t", elect)
        return
    victim = chooser.choice(IDS)
    await brokers[victim].stop(clean=False)
    await brokers.decide("t", bury)
    await asyncio.sleep(chooser.uniform(0, 0.1))
    await brokers[victim].start()


@pytest.mark.parametrize("seed", range(4))
def test_no_acknowledged_or_consumed_record_is_lost(tmp_path: Path, seed: int) -> None:
    chooser = random.Random(seed)

    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", IDS, segment_bytes=100_000)
            clients = Clients(brokers)
            tasks = [asyncio.create_task(clients.produce()), asyncio.create_task(clients.consume())]
            for _ in range(STEPS):
                await asyncio.sleep(chooser.uniform(0, 0.1))
                await disturb(brokers, chooser)
            await brokers.until_isr("t", set(IDS))
            clients.is_done = True
            await asyncio.gather(*tasks)
            await brokers.produce("t", b"last")
            await brokers.until_equal("t", IDS)
            kept = dict(brokers.values("t", 1))
            assert len(clients.acknowledged) > 10
            assert len(clients.seen) > 10
            for known in (clients.acknowledged, clients.seen):
                assert {offset: kept.get(offset) for offset in known} == known

    run(scenario())
