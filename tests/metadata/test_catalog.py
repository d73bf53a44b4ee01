"""The catalog on a real SQLite store: changes are visible when they return, a change that loses a
compare-and-swap is planned again, and failures are reported."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream.env.clock import SystemClock
from millstream.env.supervisor import Supervisor
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import (
    NO_CONFIGS,
    PartitionRecord,
    TopicRecord,
    client_metrics_config_key,
    encode_topic,
    group_config_key,
)
from millstream.metadata.config_change import ConfigChange, ConfigOperation, incremental
from millstream.metadata.image import BrokerRecord, ClusterImage, Endpoint, ImageDelta
from millstream.metadata.partition_change import PartitionUpdate, replace_partition
from millstream.metadata.store.memory import DirectLink, MemoryStore
from millstream.metadata.store.port import (
    Change,
    Compare,
    MetadataStoreError,
    Put,
    TransactResult,
    UncertainError,
)
from millstream.metadata.store.sqlite import SqliteStore
from millstream.metadata.topic_change import NewPartitions, NewTopic
from millstream.model.config import TopicConfig, definitions
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map

BROKER = BrokerRecord(node_id=1, endpoints=(Endpoint("PLAINTEXT", "h", 9092),), incarnation="i")


@asynccontextmanager
async def opened(store: SqliteStore) -> AsyncIterator[Catalog]:
    catalog = await Catalog.open(
        store, supervisor=Supervisor(), random=random.Random(1), topic_defaults=TopicConfig()
    )
    try:
        yield catalog
    finally:
        await catalog.close()


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[SqliteStore, Catalog], Awaitable[None]]], None]:
    def runner(scenario: Callable[[SqliteStore, Catalog], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(60):
                store = await SqliteStore.open(tmp_path / "metadata.db", SystemClock())
                async with opened(store) as catalog:
                    if 1 not in catalog.image.brokers:
                        await catalog.register_broker(BROKER)
                    await scenario(store, catalog)
                await store.close()

        asyncio.run(main())

    return runner


Run = Callable[[Callable[[SqliteStore, Catalog], Awaitable[None]]], None]


def codes(results: Sequence[TopicRecord | BrokerError]) -> list[ErrorCode]:
    return [r.code if isinstance(r, BrokerError) else ErrorCode.NONE for r in results]


async def create(catalog: Catalog, *names: str, partitions: int = 1) -> list[TopicRecord]:
    results = await catalog.create_topics([NewTopic(name, [[1]] * partitions) for name in names])
    assert codes(results) == [ErrorCode.NONE] * len(names), results
    return [result for result in results if isinstance(result, TopicRecord)]


def test_changes_are_visible_when_they_return_and_after_a_restart(run: Run) -> None:
    async def before(store: SqliteStore, catalog: Catalog) -> None:
        (topic,) = await create(catalog, "a", partitions=2)
        assert catalog.image.topics["a"] == topic
        assert topic.revision == catalog.image.revision

    async def after(store: SqliteStore, catalog: Catalog) -> None:
        assert len(catalog.image.topics["a"].partitions) == 2
        assert catalog.image.topic_by_id(catalog.image.topics["a"].topic_id) is not None

    run(before)
    run(after)


def test_one_call_has_a_result_per_topic(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        await create(catalog, "there")
        topics = [
            NewTopic("good", [[1]]),
            NewTopic("there", [[1]]),
            NewTopic("bad name", [[1]]),
            NewTopic("good", [[1]]),
            NewTopic("empty", []),
            NewTopic("also-good", [[1]], {"segment.bytes": "100"}),
        ]
        assert codes(await catalog.create_topics(topics)) == [
            ErrorCode.NONE,
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_PARTITIONS,
            ErrorCode.NONE,
        ]
        assert set(catalog.image.topics) == {"there", "good", "also-good"}

    run(scenario)


def test_validate_only_changes_nothing(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        revision = catalog.image.revision
        results = await catalog.create_topics(
            [NewTopic("a", [[1]]), NewTopic("b", [])], validate_only=True
        )
        assert codes(results) == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS]
        assert (await store.range("")).revision == revision

    run(scenario)


def test_names_that_collide_in_metrics_are_rejected(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        await create(catalog, "a.b_c", "under_score")

        async def refused(*names: str) -> list[bool]:
            results = await catalog.create_topics([NewTopic(name, [[1]]) for name in names])
            return [code is ErrorCode.INVALID_TOPIC_EXCEPTION for code in codes(results)]

        assert await refused("a.b.c", "a_b_c", "under.score", "x.y", "x_y") == [
            True,
            True,
            True,
            False,
            True,
        ]
        await catalog.delete_topics(["a.b_c", "under_score"])
        assert await refused("a_b_c", "under.score") == [False, False]

    run(scenario)


def test_a_large_call_is_split_and_complete(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        await create(catalog, *(f"t{n}" for n in range(1500)))
        assert len(catalog.image.topics) == 1500
        results = await catalog.delete_topics([f"t{n}" for n in range(1500)])
        assert all(isinstance(result, TopicRecord) for result in results)
        assert not catalog.image.topics
        assert (await store.range("partitions/")).items == []

    run(scenario)


def test_concurrent_calls_for_one_name_have_one_winner(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        calls = [
            catalog.create_topics([NewTopic(f"own{n}", [[1]]), NewTopic("same", [[1]])])
            for n in range(10)
        ]
        results = await asyncio.gather(*calls)
        assert [codes(result)[0] for result in results] == [ErrorCode.NONE] * 10
        shared = [codes(result)[1] for result in results]
        assert shared.count(ErrorCode.NONE) == 1
        assert shared.count(ErrorCode.TOPIC_ALREADY_EXISTS) == 9
        assert len(catalog.image.topics) == 11

    run(scenario)


def test_a_change_that_loses_the_compare_and_swap_is_planned_again(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        (topic,) = await create(catalog, "a")

        def edit(current: Map[str, str]) -> Map[str, str]:
            if "segment.ms" not in current:
                # Another client changes the topic between planning and running.
                value = encode_topic(topic.topic_id, {"segment.ms": "9"})
                others.append(asyncio.ensure_future(store.transact([], [Put("topics/a", value)])))
            return current.set("segment.bytes", "100")

        others: list[asyncio.Future[TransactResult]] = []
        results = await catalog.alter_topic_configs([("a", edit)])
        assert codes(results) == [ErrorCode.NONE]
        both = {"segment.ms": "9", "segment.bytes": "100"}
        assert dict(catalog.image.topics["a"].configs) == both
        await asyncio.gather(*others)

    run(scenario)


def test_a_change_that_always_loses_the_compare_and_swap_times_out(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        await create(catalog, "a")
        attempts = []

        async def lose(
            self: SqliteStore, compares: Sequence[Compare], changes: Sequence[Change]
        ) -> TransactResult:
            attempts.append(changes)
            return TransactResult(False, catalog.image.revision)

        monkeypatch.setattr(SqliteStore, "transact", lose)
        results = await catalog.delete_topics(["a"])
        assert codes(results) == [ErrorCode.REQUEST_TIMED_OUT]
        assert len(attempts) == 16

    run(scenario)


def test_deletion_by_name_and_id(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        a, b = await create(catalog, "a", "b")
        results = await catalog.delete_topics(["a", b.topic_id, "b", "c", b"?" * 16])
        assert codes(results) == [
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ]
        assert results[0] == a
        assert not catalog.image.topics

    run(scenario)


def test_partitions_are_added(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        await create(catalog, "a")
        results = await catalog.create_partitions(
            [NewPartitions("a", 3, [[1], [1]]), NewPartitions("b", 3, [[1]])]
        )
        assert codes(results) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert len(catalog.image.topics["a"].partitions) == 3
        # A deletion right after that deletes the added partitions too.
        await catalog.delete_topics(["a"])
        assert (await store.range("partitions/")).items == []

    run(scenario)


def test_topic_configs_change_incrementally(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        await create(catalog, "a")
        good = incremental(
            [ConfigChange("cleanup.policy", ConfigOperation.APPEND, "compact")], definitions
        )
        bad = incremental([ConfigChange("segment.ms", ConfigOperation.SET, "x")], definitions)
        assert codes(await catalog.alter_topic_configs([("a", bad)])) == [ErrorCode.INVALID_CONFIG]
        assert codes(await catalog.alter_topic_configs([("a", good), ("b", good)])) == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert dict(catalog.image.topics["a"].configs) == {"cleanup.policy": "delete,compact"}

    run(scenario)


def test_a_subscription_to_client_metrics_is_deleted_with_its_last_setting(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        await catalog.alter_client_metrics_configs("s", lambda old: old.set("a", "1"))
        assert dict(catalog.image.client_metrics["s"]) == {"a": "1"}
        await catalog.alter_client_metrics_configs("s", lambda _: NO_CONFIGS)
        assert "s" not in catalog.image.client_metrics
        assert await store.get(client_metrics_config_key("s")) is None

    run(scenario)


def test_deleted_group_configs_leave_no_key(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        await catalog.alter_group_configs("g", lambda old: old.set("a", "1"))
        await catalog.alter_group_configs("g", lambda old: old.set("b", "2"))
        assert dict(catalog.image.group_configs["g"]) == {"a": "1", "b": "2"}
        await catalog.alter_group_configs("g", lambda _: NO_CONFIGS)
        assert "g" not in catalog.image.group_configs
        assert await store.get(group_config_key("g")) is None

    run(scenario)


def test_broker_configs_of_one_and_of_all(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        await catalog.alter_broker_configs(1, lambda old: old.set("a", "1"))
        await catalog.alter_broker_configs(1, lambda old: old.set("b", "2"))
        await catalog.alter_broker_configs(None, lambda old: old.set("c", "3"))
        assert dict(catalog.image.broker_configs[1]) == {"a": "1", "b": "2"}
        assert dict(catalog.image.default_broker_configs) == {"c": "3"}

    run(scenario)


def test_partition_updates_compare_the_epoch(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        (topic,) = await create(catalog, "a")
        wanted = PartitionRecord(replicas=(1, 2), leader=1, leader_epoch=4, isr=(1,))
        update = PartitionUpdate(topic.topic_id, 0, wanted, 0)
        updates = [replace_partition(catalog, update) for _ in range(5)]
        results = await asyncio.gather(*updates, return_exceptions=True)
        winners = [result for result in results if isinstance(result, PartitionRecord)]
        losers = [result for result in results if isinstance(result, BrokerError)]
        assert [winner.partition_epoch for winner in winners] == [1]
        assert {loser.code for loser in losers} == {ErrorCode.INVALID_UPDATE_VERSION}
        assert catalog.image.partition("a", 0) == winners[0]
        assert winners[0].leader_epoch == 4
        with pytest.raises(BrokerError) as raised:
            await replace_partition(catalog, PartitionUpdate(topic.topic_id, 1, wanted, 0))
        assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def test_producer_ids_are_assigned_once_even_after_a_restart(run: Run) -> None:
    given: list[int] = []

    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        blocks = await asyncio.gather(*(catalog.allocate_producer_ids() for _ in range(5)))
        assert all(len(block) == 1000 for block in blocks)
        given.extend(producer_id for block in blocks for producer_id in block)

    run(scenario)
    run(scenario)
    assert sorted(given) == list(range(10_000))


def test_the_cluster_keeps_its_id(run: Run) -> None:
    ids = []

    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        ids.append(catalog.cluster_id)

    run(scenario)
    run(scenario)
    assert ids[0] == ids[1]
    assert len(ids[0]) == 22


def test_a_second_incarnation_is_rejected(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        again = await catalog.register_broker(BROKER)
        assert catalog.image.brokers[1] == again
        other = BrokerRecord(node_id=1, endpoints=(), incarnation="other")
        with pytest.raises(BrokerError) as raised:
            await catalog.register_broker(other)
        assert raised.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION

    run(scenario)


def test_two_catalogs_on_one_store_agree(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        async with opened(store) as other:
            assert other.cluster_id == catalog.cluster_id
            await asyncio.gather(
                create(catalog, *(f"a{n}" for n in range(100))),
                create(other, *(f"b{n}" for n in range(100))),
            )
            await catalog.reached(other.image.revision)
            await other.reached(catalog.image.revision)
            assert catalog.image.topics == other.image.topics
            assert len(other.image.topics) == 200

    run(scenario)


def test_a_failing_store_is_an_error_per_topic(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        async def broken(
            self: SqliteStore, compares: Sequence[Compare], changes: Sequence[Change]
        ) -> TransactResult:
            raise MetadataStoreError("disk full")

        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "transact", broken)
            results = await catalog.create_topics([NewTopic("a", [[1]]), NewTopic("b", [])])
        assert codes(results) == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INVALID_PARTITIONS]
        await create(catalog, "a")

    run(scenario)


def test_subscribers_are_notified_until_they_unsubscribe(run: Run) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        created: list[str] = []

        def subscriber(image: ClusterImage, delta: ImageDelta) -> None:
            assert catalog.image is image
            created.extend(topic.name for topic in delta.created)

        leave = catalog.subscribe(subscriber)
        await create(catalog, "a")
        assert created == ["a"]
        leave()
        await create(catalog, "b")
        assert created == ["a"]

    run(scenario)


class LostLink(DirectLink):
    """Loses the responses of changes while `is_lost` is set."""

    __slots__ = ("is_lost",)

    def __init__(self) -> None:
        self.is_lost = False

    async def respond(self, changed: bool) -> None:
        if changed and self.is_lost:
            raise UncertainError("lost")


def test_a_lost_response_is_a_timeout_and_no_id_is_assigned_twice() -> None:
    async def main() -> None:
        link = LostLink()
        catalog = await Catalog.open(
            MemoryStore(SystemClock()).connect(link),
            supervisor=Supervisor(),
            random=random.Random(1),
            topic_defaults=TopicConfig(),
        )
        await catalog.register_broker(BROKER)
        first = await catalog.allocate_producer_ids(10)
        link.is_lost = True
        results = await catalog.create_topics([NewTopic("a", [[1]])])
        assert codes(results) == [ErrorCode.REQUEST_TIMED_OUT]
        with pytest.raises(BrokerError) as raised:
            await catalog.allocate_producer_ids(10)
        assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        link.is_lost = False
        assert codes(await catalog.create_topics([NewTopic("a", [[1]])])) == [
            ErrorCode.TOPIC_ALREADY_EXISTS
        ]
        # No broker gets the block of the lost response.
        assert (await catalog.allocate_producer_ids(10)).start == first.stop + 10
        await catalog.close()

    asyncio.run(main())


def test_a_store_without_the_cluster_is_not_changed() -> None:
    async def main() -> None:
        data = MemoryStore(SystemClock())
        with pytest.raises(MetadataStoreError, match="has no cluster yet"):
            await Catalog.open(
                data.connect(),
                supervisor=Supervisor(),
                random=random.Random(1),
                topic_defaults=TopicConfig(),
                cluster_id="known-before",
            )
        assert data.revision == 0

    asyncio.run(main())
