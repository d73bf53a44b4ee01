"""The controller, on a store that two brokers share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec
import pytest

from millstream.controller import departure
from millstream.controller.controller import Controller, ControllerOptions
from millstream.env.clock import SystemClock
from millstream.env.supervisor import Supervisor
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import BrokerRecord, PartitionRecord, TopicRecord
from millstream.metadata.partition_change import (
    PartitionChange,
    PartitionUpdate,
    replace_partition,
    update_partitions,
)
from millstream.metadata.registration import Registration
from millstream.metadata.store.memory import MemoryStore
from millstream.metadata.topic_change import NewTopic
from millstream.model.config import TopicConfig

LEASE_MS = 60_000
SECONDS_MAX = 20.0


class Member:
    """A broker with a catalog, a registration and a controller, but without logs."""

    catalog: Catalog
    registration: Registration
    controller: Controller
    supervisor: Supervisor

    def __init__(self, broker_id: int, store: MemoryStore, interval_s: float) -> None:
        self.broker_id = broker_id
        self._store = store
        self._options = ControllerOptions(balance_interval_s=interval_s, imbalance_share_max=0.0)

    async def join(self) -> None:
        connection = self._store.connect()
        supervisor = self.supervisor = Supervisor()
        self.catalog = await Catalog.open(
            connection,
            supervisor=supervisor,
            random=random.Random(self.broker_id),
            topic_defaults=TopicConfig(),
        )
        broker = BrokerRecord(
            node_id=self.broker_id, endpoints=(), incarnation=f"{random.random()}"
        )
        self.registration = Registration(self.catalog, connection, broker, LEASE_MS, SystemClock())
        await self.registration.start(supervisor)
        self.controller = Controller(
            self.broker_id,
            self.catalog,
            self.registration,
            SystemClock(),
            self._options,
            supervisor,
        )
        self.controller.start()

    async def leave(self) -> None:
        await self.controller.stop()
        await self.registration.close()
        await self.catalog.close()

    @property
    def partition(self) -> PartitionRecord:
        found = self.catalog.image.partition("t", 0)
        assert found is not None
        return found

    async def sees(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds for this broker's image."""
        changed = asyncio.Event()
        end = self.catalog.subscribe(lambda _image, _delta: changed.set())
        async with asyncio.timeout(SECONDS_MAX):
            while not condition():
                changed.clear()
                await changed.wait()
        end()


async def pair(interval_s: float = 3600.0) -> tuple[Member, Member]:
    """Return two brokers. The first one is the controller and leads the partition."""
    store = MemoryStore(SystemClock())
    one, two = Member(1, store, interval_s), Member(2, store, interval_s)
    await one.join()
    await one.sees(lambda: one.catalog.image.controller == 1)
    await two.join()
    await two.catalog.create_topics([NewTopic("t", [(1, 2)])])
    await one.sees(lambda: one.catalog.image.topic("t") is not None)
    return one, two


def test_the_next_controller_elects_leaders_for_the_dead_one() -> None:
    async def main() -> None:
        one, two = await pair()
        assert (two.partition.leader, two.partition.isr) == (1, (1, 2))
        await one.leave()
        await two.sees(lambda: two.partition.leader == 2)
        assert two.catalog.image.controller == 2
        assert (two.partition.isr, two.partition.leader_epoch) == ((2,), 1)
        await two.leave()

    asyncio.run(main())


def test_leadership_returns_to_the_preferred_replica() -> None:
    async def main() -> None:
        one, two = await pair(interval_s=0.05)
        await departure.hand_over(one.catalog, 1)
        assert one.partition.leader == 2
        # Broker 1 is back in sync.
        record = PartitionRecord(replicas=(1, 2), leader=2, leader_epoch=1, isr=(1, 2))
        topic = one.catalog.image.topic("t")
        assert topic is not None
        epoch = one.partition.partition_epoch
        update = PartitionUpdate(topic.topic_id, 0, record, epoch)
        await replace_partition(one.catalog, update)
        await two.sees(lambda: two.partition.leader == 1)
        assert two.partition.leader_epoch == 2
        await two.leave()
        await one.leave()

    asyncio.run(main())


def test_a_deposed_controller_changes_nothing() -> None:
    async def main() -> None:
        one, two = await pair()
        guard = one.controller._guard
        assert guard is not None
        await one.controller.stop()
        await one.registration.close()
        await two.sees(lambda: two.partition.leader == 2)
        topic = two.catalog.image.topic("t")
        assert topic is not None
        wrong = msgspec.structs.replace(two.partition, leader=1, leader_epoch=9)
        change = PartitionChange(topic.topic_id, 0, two.partition, wrong)
        assert await update_partitions(one.catalog, [change], guard) == [False]
        assert await update_partitions(one.catalog, [change]) == [True]
        await one.catalog.close()
        await two.leave()

    asyncio.run(main())


def test_a_topic_that_raises_does_not_prevent_other_elections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        one, two = await pair()
        await two.catalog.create_topics([NewTopic("bad", [(1, 2)])])
        bad = two.catalog.image.topic("bad")
        assert bad is not None
        is_allowed = Controller._is_unclean_allowed

        def fail(self: Controller, topic: TopicRecord) -> bool:
            if topic.name == "bad":
                raise RuntimeError("a bug")
            return is_allowed(self, topic)

        monkeypatch.setattr(Controller, "_is_unclean_allowed", fail)
        await one.leave()
        await two.sees(lambda: two.partition.leader == 2)
        assert two.catalog.image.topics["bad"].partitions[0].leader == 1
        assert two.supervisor.failures["controller"] > 0
        await two.leave()

    asyncio.run(main())


def test_a_controller_that_raises_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        one, two = await pair()
        bugs = [RuntimeError("a bug")]
        due_changes = Controller._decide_changes

        async def fail(self: Controller) -> list[PartitionChange]:
            changes = await due_changes(self)
            if changes and bugs:
                raise bugs.pop()
            return changes

        monkeypatch.setattr(Controller, "_decide_changes", fail)
        await one.leave()
        await two.sees(lambda: two.partition.leader == 2)
        assert two.supervisor.failures["controller"] == 1
        await two.leave()

    asyncio.run(main())
