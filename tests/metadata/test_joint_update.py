"""Joint updates of many partitions, with a catalog on a store in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from millstream.env.clock import SystemClock
from millstream.env.supervisor import Supervisor
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import PartitionRecord, TopicRecord, leaving_key
from millstream.metadata.image import BrokerRecord, Endpoint
from millstream.metadata.joint_update import JointUpdates
from millstream.metadata.partition_change import PartitionUpdate, replace_partition
from millstream.metadata.store.memory import MemoryStore
from millstream.metadata.store.port import Delete, MetadataStoreError, Put
from millstream.metadata.topic_change import NewTopic
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode

COUNT = 50


class Scene:
    def __init__(self, store: MemoryStore, catalog: Catalog, broker_epoch: int) -> None:
        self.store = store
        self.catalog = catalog
        self.broker_epoch = broker_epoch
        self.supervisor = Supervisor()
        self.updates = JointUpdates(catalog, self.supervisor)

    @property
    def topic(self) -> TopicRecord:
        return self.catalog.image.topics["t"]

    def ask(
        self, number: int, isr: tuple[int, ...], registered: Mapping[int, int] | None = None
    ) -> asyncio.Task[PartitionRecord]:
        present = self.topic.partitions[number]
        return asyncio.create_task(
            self.updates.update(
                PartitionUpdate(
                    self.topic.topic_id,
                    number,
                    msgspec.structs.replace(present, isr=isr),
                    present.partition_epoch,
                    registered or {},
                )
            )
        )


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    store = MemoryStore(SystemClock())
    catalog = await Catalog.open(
        store.connect(),
        supervisor=Supervisor(),
        random=random.Random(1),
        topic_defaults=TopicConfig(),
    )
    for node_id in (1, 2):
        record = BrokerRecord(node_id=node_id, endpoints=(Endpoint("PLAINTEXT", "h", node_id),))
        registered = await catalog.register_broker(record)
    await catalog.create_topics([NewTopic("t", [[1, 2]] * COUNT, {})])
    try:
        async with asyncio.timeout(90):
            yield Scene(store, catalog, registered.epoch)
    finally:
        await catalog.close()


def codes(results: Sequence[PartitionRecord | BaseException]) -> list[ErrorCode]:
    return [r.code if isinstance(r, BrokerError) else ErrorCode.NONE for r in results]


def test_simultaneous_updates_share_a_transaction() -> None:
    async def scenario() -> None:
        async with scene() as it:
            before = it.store.revision
            tasks = [it.ask(n, (1,)) for n in range(COUNT)]
            stored = await asyncio.gather(*tasks)
            assert it.store.revision == before + 1
            assert list(it.topic.partitions) == stored
            assert {(each.isr, each.partition_epoch) for each in stored} == {((1,), 1)}

    asyncio.run(scenario())


def test_a_stale_update_does_not_fail_the_others() -> None:
    async def scenario() -> None:
        async with scene() as it:
            tasks = [it.ask(n, (1,)) for n in range(3)]
            present = it.topic.partitions[1]
            changed = msgspec.structs.replace(present, isr=(2,))
            await replace_partition(it.catalog, PartitionUpdate(it.topic.topic_id, 1, changed, 0))
            results = await asyncio.gather(*tasks, return_exceptions=True)
            expected = [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NONE]
            assert sorted(codes(results)) == sorted(expected)
            assert [each.isr for each in it.topic.partitions[:3]] in (
                [(1,), (2,), (1,)],
                [(1,), (1,), (1,)],
            )

    asyncio.run(scenario())


def test_only_updates_with_a_stale_broker_epoch_are_rejected() -> None:
    async def scenario() -> None:
        async with scene() as it:
            gone, there = {2: it.broker_epoch - 1}, {2: it.broker_epoch}
            tasks = [it.ask(0, (1,), gone), it.ask(1, (1,), there), it.ask(2, (1,))]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert codes(results) == [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.NONE, ErrorCode.NONE]
            # The same for two updates that agree on the stale epoch, and in another order.
            tasks = [it.ask(3, (1,), gone), it.ask(4, (1,), gone), it.ask(5, (1,))]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            refused = ErrorCode.INELIGIBLE_REPLICA
            assert codes(results) == [refused, refused, ErrorCode.NONE]

    asyncio.run(scenario())


def test_a_failing_store_fails_every_update() -> None:
    async def scenario() -> None:
        async with scene() as it:
            tasks = [it.ask(n, (1,)) for n in range(3)]
            await it.catalog.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, MetadataStoreError) for each in results)

    asyncio.run(scenario())


def test_a_cancelled_update_does_not_block_the_others() -> None:
    async def scenario() -> None:
        async with scene() as it:
            first, second = it.ask(0, (1,)), it.ask(1, (1,))
            await asyncio.sleep(0)
            first.cancel()
            assert (await second).isr == (1,)
            assert (await it.ask(2, (1,))).isr == (1,)

    asyncio.run(scenario())


def test_a_leaving_broker_does_not_join_the_isr() -> None:
    async def scenario() -> None:
        async with scene() as it:
            there = {2: it.broker_epoch}
            await it.catalog.transact([], [Put(leaving_key(2), b"{}")])
            assert it.catalog.image.leaving == {2}
            tasks = [it.ask(0, (1, 2), there), it.ask(1, (1, 2), there), it.ask(2, (1,))]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            refused = ErrorCode.INELIGIBLE_REPLICA
            assert codes(results) == [refused, refused, ErrorCode.NONE]
            await it.catalog.transact([], [Delete(leaving_key(2))])
            assert (await it.ask(0, (2, 1), there)).isr == (2, 1)

    asyncio.run(scenario())


def test_no_task_runs_after_close() -> None:
    async def scenario() -> None:
        async with scene() as it:
            before = asyncio.all_tasks()
            asked = it.ask(0, (1,))
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks() - before) == 2
            asked.cancel()
            await it.updates.close()
            assert asyncio.all_tasks() - before <= {asked}
            await it.updates.close()

    asyncio.run(scenario())


def test_a_bug_fails_only_the_updates_of_its_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with scene() as it:
            transact = Catalog.transact
            bugs = [RuntimeError("a bug"), RuntimeError("another")]

            async def fail(self: Catalog, *arguments: Any) -> Any:
                if bugs:
                    raise bugs.pop(0)
                return await transact(self, *arguments)

            monkeypatch.setattr(Catalog, "transact", fail)
            together = [it.ask(n, (1,)) for n in range(3)]
            results = await asyncio.gather(*together, return_exceptions=True)
            assert all(isinstance(each, MetadataStoreError) for each in results)
            assert it.supervisor.failures["joint-updates"] == 1
            with pytest.raises(RuntimeError, match="another"):
                await it.ask(3, (1,))
            assert (await it.ask(4, (1,))).isr == (1,)
            assert it.supervisor.failures["joint-updates"] == 1

    asyncio.run(scenario())
