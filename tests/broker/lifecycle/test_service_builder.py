"""The parts of a broker are connected with each other, and are started as the settings say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.in_process.broker_home import NODE_ID, BrokerHome, append, record_of, registered, run
from millstream.broker.context import Services
from millstream.broker.lifecycle.runtime import Runtime
from millstream.broker.lifecycle.service_builder import ServiceBuilder
from millstream.metadata.catalog import Catalog
from millstream.model.topic import TopicPartition
from millstream.wire.api import ApiKey

HTTP = "127.0.0.1:0"


@dataclass
class Built:
    runtime: Runtime
    catalog: Catalog
    builder: ServiceBuilder
    services: Services

    @property
    def task_names(self) -> set[str]:
        return {task.name for task in self.runtime.supervisor.tasks}

    async def metrics(self) -> str:
        return (await self.runtime.metrics.render()).decode()


@asynccontextmanager
async def built(home: BrokerHome, *, is_alone: bool = False) -> AsyncIterator[Built]:
    async with home.open(is_alone=is_alone) as (runtime, catalog):
        storage = await home.start_storage(runtime, catalog, t=1)
        builder = ServiceBuilder(runtime, home.config, catalog, storage)
        services = builder.build()
        runtime.undo.push_async_callback(services.replicator.stop)
        append(storage, "t")
        yield Built(runtime, catalog, builder, services)


def test_the_coordinators_run_as_soon_as_the_parts_are_built(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with built(BrokerHome(tmp_path)) as parts:
            assert {"group-loader", "transaction-loader"} <= parts.task_names
            assert parts.services.groups is parts.builder.coordinators.groups
            assert parts.services.transactions is parts.builder.coordinators.transactions

    run(scenario())


def test_a_log_that_fails_is_reported_to_the_replicator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with built(BrokerHome(tmp_path)) as parts:
            services = parts.services
            reviewed: list[TopicPartition] = []
            services.replicator.start(parts.catalog.image)
            monkeypatch.setattr(
                type(services.replicator._isr),
                "review_soon",
                lambda _, partition: reviewed.append(partition.topic_partition),
            )
            services.replicas.find("t", 0).log.fail(OSError("the disk failed"))
            assert reviewed == [TopicPartition("t", 0)]

    run(scenario())


def test_log_start_offsets_are_checkpointed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with built(BrokerHome(tmp_path)) as parts:
            parts.services.replicas.find("t", 0).delete_records(1)
            await parts.services.checkpoint()
            text = (tmp_path / "log-start-offset-checkpoint").read_text()
            assert "t 0 1" in text.splitlines()

    run(scenario())


def test_clients_push_metrics_only_to_a_broker_with_an_http_address(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with built(BrokerHome(tmp_path / "without")) as parts:
            assert parts.services.telemetry is None
            assert parts.services.apis.get(ApiKey.PUSH_TELEMETRY) is None
            assert "client-metrics-expiry" not in parts.task_names
        async with built(BrokerHome(tmp_path / "with", http_listen=HTTP)) as parts:
            assert parts.services.telemetry is not None
            assert parts.services.apis.get(ApiKey.PUSH_TELEMETRY) is not None
            assert "client-metrics-expiry" in parts.task_names

    run(scenario())


def test_a_broker_with_an_embedded_store_does_not_wait_for_further_brokers(
    tmp_path: Path,
) -> None:
    """A topic without a number of replicas is created at once, with one replica."""

    async def scenario() -> None:
        home = BrokerHome(tmp_path, cluster_settle_ms="3600000")
        async with built(home, is_alone=True) as parts, registered(parts.catalog, NODE_ID):
            assert await parts.services.topics.create_missing(["made"]) == {}
            assert record_of(parts.catalog, "made").replicas == (NODE_ID,)

    run(scenario())


@pytest.mark.parametrize(
    ("settings", "is_alone", "expected"),
    [
        ({"http_listen": HTTP}, False, {"group-lag"}),
        ({"http_listen": HTTP}, True, {"group-lag"}),
        # The coordinators of other brokers query the partitions led here.
        ({}, False, {"partition-growth"}),
        ({}, True, set()),
        ({"http_listen": HTTP, "metrics_lag_interval_ms": "0"}, False, set()),
    ],
)
def test_lag_is_measured_where_it_is_shown_or_queried(
    tmp_path: Path, settings: dict[str, str], is_alone: bool, expected: set[str]
) -> None:
    async def scenario() -> None:
        async with built(BrokerHome(tmp_path, **settings), is_alone=is_alone) as parts:
            parts.builder.show(parts.services)
            assert parts.task_names & {"group-lag", "partition-growth"} == expected

    run(scenario())


def test_the_metrics_show_the_parts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with built(BrokerHome(tmp_path, http_listen=HTTP)) as parts:
            before = await parts.metrics()
            parts.builder.show(parts.services)
            after = await parts.metrics()
            for name in ("millstream_partitions", "millstream_consumer_group_lag_records"):
                assert f"# TYPE {name} " not in before
                assert f"# TYPE {name} " in after

    run(scenario())


def test_the_number_of_fetch_sessions_is_limited_as_the_settings_say(tmp_path: Path) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path, max_incremental_fetch_session_cache_slots="1")
        async with built(home) as parts:
            sessions = parts.services.fetch_sessions
            assert sessions.open([], uses_topic_ids=True) is not None
            assert sessions.open([], uses_topic_ids=True) is None

    run(scenario())
