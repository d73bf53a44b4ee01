"""Changes of the metadata and of settings reach every part of the broker that depends on them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from harness.in_process.broker_home import (
    NODE_ID,
    BrokerHome,
    create_topic,
    record_of,
    registered,
    run,
)
from harness.in_process.reply_receiver import RecordedReplies
from millstream.broker.context import ConnectedClient, Context, Services
from millstream.broker.lifecycle.metadata_update import MetadataUpdates
from millstream.broker.lifecycle.runtime import Runtime
from millstream.broker.lifecycle.service_builder import ServiceBuilder
from millstream.groups.group_shards import OFFSETS_TOPIC
from millstream.metadata.catalog import Catalog
from millstream.metadata.partition_change import alter_partition
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map

HTTP = "127.0.0.1:0"
OTHER = NODE_ID + 1


@dataclass
class Broker:
    runtime: Runtime
    catalog: Catalog
    services: Services
    updates: MetadataUpdates

    async def set_settings(self, **settings: str) -> None:
        """Change cluster-wide settings; a name has underscores instead of dots."""
        wanted = Map({name.replace("_", "."): value for name, value in settings.items()})
        await self.catalog.alter_broker_configs(None, lambda _: wanted)


@asynccontextmanager
async def built(path: Path, **settings: str) -> AsyncIterator[Broker]:
    """Yield the parts of a broker before `updates.start`: they do not receive changes yet."""
    home = BrokerHome(path, **settings)
    async with home.open() as (runtime, catalog):
        storage = await home.start_storage(runtime, catalog)
        builder = ServiceBuilder(runtime, home.config, catalog, storage)
        services = builder.build()
        runtime.undo.push_async_callback(services.replicator.stop)
        updates = MetadataUpdates(services, builder.coordinators, runtime.settings)
        yield Broker(runtime, catalog, services, updates)


@asynccontextmanager
async def started(path: Path, **settings: str) -> AsyncIterator[Broker]:
    async with built(path, **settings) as broker:
        broker.updates.start()
        yield broker


# Topics


def test_a_new_topic_gets_its_partitions_and_a_deleted_one_loses_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(tmp_path) as broker:
            await create_topic(broker.catalog, "t", partitions=2)
            replicas, metrics = broker.services.replicas, broker.runtime.metrics
            assert [replicas.find("t", number).is_leader for number in (0, 1)] == [True, True]
            counters = metrics.topic("t")
            counters.messages_in = 7
            await broker.catalog.delete_topics(["t"])
            assert replicas.get("t", 0) is None
            # A topic that is created again with this name starts at zero.
            assert metrics.topic("t") is not counters
            assert metrics.topic("t").messages_in == 0

    run(scenario())


def test_the_coordinator_of_a_new_internal_topic_serves_at_once(tmp_path: Path) -> None:
    """The partitions are there before the coordinators look for them."""

    async def scenario() -> None:
        async with started(tmp_path) as broker:
            shards = broker.services.groups.shards
            with pytest.raises(BrokerError) as caught:
                shards.of("group")
            assert caught.value.code is ErrorCode.NOT_COORDINATOR
            await create_topic(broker.catalog, OFFSETS_TOPIC)
            assert shards.of("group").index == 0

    run(scenario())


def test_a_coordinator_stops_serving_when_another_broker_is_elected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(tmp_path) as broker:
            await create_topic(broker.catalog, OFFSETS_TOPIC, (NODE_ID, OTHER))
            assert broker.services.groups.shards.of("group").index == 0
            await alter_partition(
                broker.catalog,
                OFFSETS_TOPIC,
                0,
                lambda record: msgspec.structs.replace(
                    record, leader=OTHER, leader_epoch=record.leader_epoch + 1
                ),
            )
            with pytest.raises(BrokerError) as caught:
                broker.services.groups.shards.of("group")
            assert caught.value.code is ErrorCode.NOT_COORDINATOR

    run(scenario())


# Settings


def test_settings_that_changed_during_the_start_are_applied(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with built(tmp_path) as broker:
            await broker.set_settings(log_retention_ms="1234567")
            assert broker.services.config.topic_defaults().retention_ms != 1234567
            broker.updates.start()
            assert broker.services.config.topic_defaults().retention_ms == 1234567
            assert broker.catalog.topic_defaults.retention_ms == 1234567

    run(scenario())


def test_a_default_of_topics_reaches_the_logs_and_the_handlers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(tmp_path) as broker:
            await create_topic(broker.catalog, "t")
            services = broker.services
            await broker.set_settings(log_retention_ms="1234567")
            assert services.replicas.find("t", 0).log.config.retention_ms == 1234567
            assert services.config is services.topics.config
            assert services.config.topic_defaults().retention_ms == 1234567

    run(scenario())


def test_a_setting_of_groups_reaches_the_coordinator(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(tmp_path) as broker:
            await broker.set_settings(group_consumer_assignment_interval_ms="700")
            options = broker.services.groups.shards.options.groups
            assert options.consumer.assignment_interval_ms == 700

    run(scenario())


def test_settings_that_are_not_valid_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with started(tmp_path) as broker:
            before = broker.services.config
            await broker.set_settings(log_retention_ms="soon")
            assert broker.services.config is before
            assert "log.retention.ms" in caplog.text

    run(scenario())


def pushed_metrics(services: Services) -> list[str]:
    """Return the names that a client which connects now is asked to push."""
    telemetry, receiver = services.telemetry, RecordedReplies()
    assert telemetry is not None
    context = Context(services, "PLAINTEXT", 0, "client", ConnectedClient("host", 1), 0.0, receiver)
    _, instance = telemetry.get(bytes(16), context)
    return list(instance.plan.metrics)


def test_subscriptions_to_client_metrics_reach_the_telemetry(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(tmp_path, http_listen=HTTP) as broker:
            assert pushed_metrics(broker.services) == []
            wanted = Map({"metrics": "org.apache.kafka.producer.", "interval.ms": "1000"})
            await broker.catalog.alter_client_metrics_configs("s", lambda _: wanted)
            assert pushed_metrics(broker.services) == ["org.apache.kafka.producer."]

    run(scenario())


# Fencing


def test_a_fenced_broker_leads_nothing_that_another_broker_may_lead(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(tmp_path) as broker:
            await create_topic(broker.catalog, "alone")
            async with registered(broker.catalog, OTHER):
                await create_topic(broker.catalog, "shared", (NODE_ID, OTHER))
                await create_topic(broker.catalog, OFFSETS_TOPIC, (NODE_ID, OTHER))
            replicas, shards = broker.services.replicas, broker.services.groups.shards
            assert record_of(broker.catalog, "shared").leader == NODE_ID
            broker.updates.set_fenced(True)
            assert replicas.find("alone", 0).is_leader
            assert not replicas.find("shared", 0).is_leader
            with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
                shards.of("group")
            broker.updates.set_fenced(False)
            assert replicas.find("shared", 0).is_leader
            assert shards.of("group").index == 0

    run(scenario())
