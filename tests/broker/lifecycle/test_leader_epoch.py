"""After an unclean stop, a broker begins a new leader epoch where its log may have lost records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from harness.in_process.broker_home import NODE_ID, BrokerHome, append, record_of, run
from millstream.broker.lifecycle import leader_epoch
from millstream.broker.lifecycle.leader_epoch import raise_leader_epochs
from millstream.broker.lifecycle.local_storage import LocalStorage
from millstream.metadata import partition_change
from millstream.metadata.catalog import Catalog
from millstream.metadata.partition_change import PartitionChange, update_partitions
from millstream.metadata.store.port import UnavailableError
from millstream.model.error import BrokerError

OTHER = NODE_ID + 1
Scenario = Callable[[LocalStorage, Catalog], Awaitable[None]]


def on_broker(path: Path, scenario: Scenario) -> None:
    async def main() -> None:
        home = BrokerHome(path)
        async with home.open() as (runtime, catalog):
            storage = await home.start_storage(runtime, catalog, t=1, empty=1)
            await scenario(storage, catalog)

    run(main())


async def raise_epochs(storage: LocalStorage, catalog: Catalog) -> None:
    await raise_leader_epochs(NODE_ID, storage.directory, catalog)


def before_the_first_update(
    monkeypatch: pytest.MonkeyPatch, interfere: Callable[[Catalog], Awaitable[object]]
) -> list[PartitionChange]:
    """Change the metadata between the decision and its first update; return all updates tried."""
    tried: list[PartitionChange] = []

    async def update(catalog: Catalog, changes: Sequence[PartitionChange]) -> list[bool]:
        tried.extend(changes)
        if len(tried) == 1:
            await interfere(catalog)
        return await update_partitions(catalog, changes)

    monkeypatch.setattr(partition_change, "update_partitions", update)
    return tried


async def change(catalog: Catalog, **fields: object) -> None:
    """Change the record of t-0, as another broker does."""
    found, before = catalog.image.topic("t"), record_of(catalog, "t")
    assert found is not None
    after = msgspec.structs.replace(before, **fields)
    stored = await update_partitions(catalog, [PartitionChange(found.topic_id, 0, before, after)])
    assert stored == [True]


def test_a_log_with_records_gets_a_new_epoch_and_an_empty_log_keeps_its_epoch(
    tmp_path: Path,
) -> None:
    async def scenario(storage: LocalStorage, catalog: Catalog) -> None:
        append(storage, "t")
        await raise_epochs(storage, catalog)
        assert record_of(catalog, "t").leader_epoch == 1
        assert record_of(catalog, "t").leader == NODE_ID
        assert record_of(catalog, "empty").leader_epoch == 0

    on_broker(tmp_path, scenario)


def test_partitions_of_other_leaders_keep_their_epoch(tmp_path: Path) -> None:
    async def scenario(storage: LocalStorage, catalog: Catalog) -> None:
        append(storage, "t")
        await change(catalog, leader=OTHER)
        await raise_epochs(storage, catalog)
        assert record_of(catalog, "t").leader_epoch == 0

    on_broker(tmp_path, scenario)


def test_more_partitions_than_are_updated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path)
        async with home.open() as (runtime, catalog):
            storage = await home.start_storage(runtime, catalog, t=5)
            for number in range(5):
                append(storage, "t", number=number)
            monkeypatch.setattr(leader_epoch, "CONCURRENT_UPDATES_MAX", 2)
            await raise_epochs(storage, catalog)
            assert [record_of(catalog, "t", number).leader_epoch for number in range(5)] == [1] * 5

    run(scenario())


def test_a_change_by_another_broker_in_between_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def change_isr(catalog: Catalog) -> None:
        await change(catalog, isr=(NODE_ID, OTHER))

    async def scenario(storage: LocalStorage, catalog: Catalog) -> None:
        append(storage, "t")
        tried = before_the_first_update(monkeypatch, change_isr)
        await raise_epochs(storage, catalog)
        assert len(tried) > 1
        assert record_of(catalog, "t").isr == (NODE_ID, OTHER)
        assert record_of(catalog, "t").leader_epoch == 1

    on_broker(tmp_path, scenario)


def test_an_election_in_between_ends_the_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elect_other(catalog: Catalog) -> None:
        await change(catalog, leader=OTHER, leader_epoch=7)

    async def scenario(storage: LocalStorage, catalog: Catalog) -> None:
        append(storage, "t")
        before_the_first_update(monkeypatch, elect_other)
        await raise_epochs(storage, catalog)
        assert record_of(catalog, "t").leader == OTHER
        assert record_of(catalog, "t").leader_epoch == 7

    on_broker(tmp_path, scenario)


def test_a_topic_that_is_deleted_in_between_does_not_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def delete(catalog: Catalog) -> None:
        deleted = (await catalog.delete_topics(["t"]))[0]
        assert not isinstance(deleted, BrokerError)

    async def scenario(storage: LocalStorage, catalog: Catalog) -> None:
        append(storage, "t")
        tried = before_the_first_update(monkeypatch, delete)
        await raise_epochs(storage, catalog)
        assert len(tried) == 1
        assert catalog.image.topic("t") is None

    on_broker(tmp_path, scenario)


def test_an_unreachable_store_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the new epoch, consumers would not notice that records were lost."""

    async def fail(catalog: Catalog) -> None:
        raise UnavailableError("the store is unreachable")

    async def scenario(storage: LocalStorage, catalog: Catalog) -> None:
        append(storage, "t")
        before_the_first_update(monkeypatch, fail)
        with pytest.raises(UnavailableError):
            await raise_epochs(storage, catalog)

    on_broker(tmp_path, scenario)
