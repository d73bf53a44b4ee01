"""Unregistering live and dead brokers, and what the metadata keep of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from millstream.controller import decommission
from millstream.controller.unregistration import unregister
from millstream.env.clock import SystemClock
from millstream.env.supervisor import Supervisor
from millstream.metadata import cluster_record as records
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import BrokerRecord
from millstream.metadata.partition_change import become_controller
from millstream.metadata.store.memory import MemoryStore
from millstream.metadata.store.port import MetadataStore
from millstream.metadata.topic_change import NewTopic
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map
from millstream.model.sentinel import NO_LEADER

Scenario = Callable[[MetadataStore, Catalog], Awaitable[None]]


def run(scenario: Scenario, brokers: tuple[int, ...] = (1, 2)) -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock()).connect()
        catalog = await Catalog.open(
            store, supervisor=Supervisor(), random=random.Random(1), topic_defaults=TopicConfig()
        )
        for node_id in brokers:
            record = BrokerRecord(node_id=node_id, endpoints=(), incarnation=f"i{node_id}")
            await catalog.register_broker(record)
        await scenario(store, catalog)
        await catalog.close()

    asyncio.run(asyncio.wait_for(main(), 60))


async def create_topic(catalog: Catalog, *replicas: int) -> None:
    (result,) = await catalog.create_topics([NewTopic("t", [replicas])])
    assert not isinstance(result, BrokerError), result


def test_a_live_broker_is_unregistered_with_its_incarnation() -> None:
    async def scenario(store: MetadataStore, catalog: Catalog) -> None:
        lease = await store.grant(60_000)
        await become_controller(catalog, 2, lease)
        await unregister(catalog, 2)
        assert list(catalog.image.brokers) == [1]
        assert catalog.image.controller == NO_LEADER
        found = await store.get(records.unregistered_key(2))
        assert found is not None
        assert records.decode_unregistered(found.value) == "i2"

    run(scenario)


def test_unregistration_keeps_another_controller() -> None:
    async def scenario(store: MetadataStore, catalog: Catalog) -> None:
        await become_controller(catalog, 1, await store.grant(60_000))
        await unregister(catalog, 2)
        assert catalog.image.controller == 1

    run(scenario)


def test_the_only_broker_cannot_be_unregistered() -> None:
    async def scenario(store: MetadataStore, catalog: Catalog) -> None:
        with pytest.raises(BrokerError, match="the only live one") as raised:
            await unregister(catalog, 1)
        assert raised.value.code is ErrorCode.INVALID_REQUEST
        assert list(catalog.image.brokers) == [1]

    run(scenario, brokers=(1,))


def test_an_unknown_broker_is_rejected() -> None:
    async def scenario(store: MetadataStore, catalog: Catalog) -> None:
        with pytest.raises(BrokerError) as raised:
            await unregister(catalog, 9)
        assert raised.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED

    run(scenario)


def test_settings_of_a_dead_broker_are_deleted() -> None:
    async def scenario(store: MetadataStore, catalog: Catalog) -> None:
        own = Map({"leader.replication.throttled.rate": "1"})
        await catalog.alter_broker_configs(9, lambda _: own)
        emptied = Map({decommission.SETTING: "2,9", "log.retention.ms": "1"})
        await catalog.alter_broker_configs(None, lambda _: emptied)
        await unregister(catalog, 9)
        image = catalog.image
        assert 9 not in image.broker_configs
        assert image.default_broker_configs == emptied.set(decommission.SETTING, "2")
        with pytest.raises(BrokerError):
            await unregister(catalog, 9)

    run(scenario)


def test_a_dead_broker_stays_decommissioned_while_it_has_replicas() -> None:
    async def scenario(store: MetadataStore, catalog: Catalog) -> None:
        await create_topic(catalog, 1, 9)
        emptied = Map({decommission.SETTING: "9"})
        await catalog.alter_broker_configs(None, lambda _: emptied)
        await unregister(catalog, 9)
        assert catalog.image.default_broker_configs == emptied
        record = catalog.image.partition("t", 0)
        assert record is not None
        assert record.replicas == (1, 9)

    run(scenario)
