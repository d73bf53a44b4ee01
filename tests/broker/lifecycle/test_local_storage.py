"""The data folder of a broker from its lock to the clean-shutdown marker, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.in_process.broker_home import (
    NODE_ID,
    BrokerHome,
    append,
    create_topic,
    record_of,
    registered,
    run,
)
from harness.in_process.replica_set import until
from millstream.broker.lifecycle.local_storage import LocalStorage
from millstream.log.directory.data_directory import CLEAN_MARKER, META, WrongDirectoryError
from millstream.log.directory.lock import DirectoryInUseError
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_LEADER


def is_clean(path: Path) -> bool:
    return (path / CLEAN_MARKER).exists()


async def crash(home: BrokerHome) -> None:
    """Write one record to `t` and stop without the clean-shutdown marker."""
    async with home.open() as (runtime, catalog):
        storage = await home.start_storage(runtime, catalog, t=1)
        append(storage, "t")
    assert is_clean(home.path)
    (home.path / CLEAN_MARKER).unlink()


# The identity of the folder


def test_a_new_folder_gets_the_ids_of_cluster_and_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path)
        async with home.open() as (runtime, catalog):
            storage = LocalStorage(runtime)
            assert not storage.is_identified
            await storage.identify(home.config, catalog)
            assert storage.is_identified
            assert storage.directory.meta["cluster.id"] == catalog.cluster_id
        async with home.open() as (runtime, _):
            again = LocalStorage(runtime)
            assert again.is_identified
            assert again.directory.directory_id == storage.directory.directory_id
            assert again.directory.meta["node.id"] == str(NODE_ID)

    run(scenario())


def test_a_folder_of_another_cluster_is_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = BrokerHome(tmp_path)
        async with first.open() as (runtime, catalog):
            await first.start_storage(runtime, catalog)
        other = BrokerHome(tmp_path)
        async with other.open() as (runtime, catalog):
            catalog.cluster_id = "another"
            storage = LocalStorage(runtime)
            with pytest.raises(WrongDirectoryError, match="but this is another"):
                await storage.identify(other.config, catalog)

    run(scenario())


def test_a_folder_is_locked_until_the_start_is_undone(tmp_path: Path) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path)
        async with home.open() as (runtime, _), home.open() as (second, _):
            LocalStorage(runtime)
            with pytest.raises(DirectoryInUseError):
                LocalStorage(second)
        async with home.open() as (runtime, _):
            LocalStorage(runtime)

    run(scenario())


# Lost disks


def test_an_empty_folder_leaves_the_isr_of_the_logs_that_it_lacks(tmp_path: Path) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path / "first")
        await crash(home)
        replaced = BrokerHome(tmp_path / "second")
        replaced.store = home.store
        async with replaced.open() as (runtime, catalog):
            await replaced.start_storage(runtime, catalog)
            record = record_of(catalog, "t")
            assert (record.leader, record.isr, record.elr) == (NO_LEADER, (), (NODE_ID,))

    run(scenario())


def test_a_folder_whose_logs_exist_stays_in_the_isr(tmp_path: Path) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path)
        await crash(home)
        async with home.open() as (runtime, catalog):
            await home.start_storage(runtime, catalog)
            record = record_of(catalog, "t")
            assert (record.leader, record.isr) == (NODE_ID, (NODE_ID,))

    run(scenario())


def test_an_empty_folder_gets_no_identity_while_another_process_has_the_broker_id(
    tmp_path: Path,
) -> None:
    """The other process may have the right disk, and must stay in the ISR."""

    async def scenario() -> None:
        home = BrokerHome(tmp_path / "first")
        await crash(home)
        replaced = BrokerHome(tmp_path / "second")
        replaced.store = home.store
        async with replaced.open() as (runtime, catalog), registered(catalog, NODE_ID):
            storage = LocalStorage(runtime)
            with pytest.raises(BrokerError) as caught:
                await storage.identify(replaced.config, catalog)
            assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
            assert not storage.is_identified
            assert record_of(catalog, "t").isr == (NODE_ID,)
        assert not (replaced.path / META).exists()

    run(scenario())


# Clean and unclean stops


def test_a_start_that_fails_before_it_opens_logs_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path)
        async with home.open() as (runtime, catalog):
            await home.start_storage(runtime, catalog)
        assert is_clean(home.path)
        async with home.open() as (runtime, _):
            LocalStorage(runtime)
            assert not is_clean(home.path)
        assert is_clean(home.path)

    run(scenario())


def test_an_unclean_folder_stays_unclean_until_its_logs_are_recovered(tmp_path: Path) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path)
        await crash(home)
        async with home.open() as (runtime, catalog):
            storage = LocalStorage(runtime)
            await storage.identify(home.config, catalog)
        assert not is_clean(home.path)
        async with home.open() as (runtime, catalog):
            await home.start_storage(runtime, catalog)
        assert is_clean(home.path)

    run(scenario())


def test_recovery_shows_its_progress_and_begins_a_new_leader_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path)
        await crash(home)
        async with home.open() as (runtime, catalog):
            shown: list[str] = []
            storage = LocalStorage(runtime)
            await storage.identify(home.config, catalog)
            await storage.start(home.config, catalog, shown.append)
            assert shown == ["recovering logs after an unclean stop: 1 of 1"]
            assert record_of(catalog, "t").leader_epoch == 1
            assert storage.replicas.find("t", 0).log.log_end_offset == 1

    run(scenario())


def test_a_clean_start_recovers_nothing_and_keeps_the_leader_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path)
        async with home.open() as (runtime, catalog):
            storage = await home.start_storage(runtime, catalog, t=1)
            append(storage, "t")
        async with home.open() as (runtime, catalog):
            shown: list[str] = []
            storage = LocalStorage(runtime)
            await storage.identify(home.config, catalog)
            await storage.start(home.config, catalog, shown.append)
            assert shown == []
            assert record_of(catalog, "t").leader_epoch == 0
            assert storage.replicas.find("t", 0).log.log_end_offset == 1

    run(scenario())


def test_an_unclean_start_leaves_an_isr_with_another_member(tmp_path: Path) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path)
        async with home.open() as (runtime, catalog):
            storage = LocalStorage(runtime)
            await storage.identify(home.config, catalog)
            async with registered(catalog, NODE_ID + 1):
                await create_topic(catalog, "shared", (NODE_ID, NODE_ID + 1))
            assert set(record_of(catalog, "shared").isr) == {NODE_ID, NODE_ID + 1}
        assert not is_clean(home.path)
        async with home.open() as (runtime, catalog):
            await home.start_storage(runtime, catalog)
            record = record_of(catalog, "shared")
            assert record.isr == (NODE_ID + 1,)
            assert record.leader != NODE_ID

    run(scenario())


def test_the_folder_of_a_deleted_topic_is_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path)
        async with home.open() as (runtime, catalog):
            append(await home.start_storage(runtime, catalog, t=1), "t")
            assert (tmp_path / "t-0").exists()
        async with home.open() as (runtime, catalog):
            await catalog.delete_topics(["t"])
            storage = await home.start_storage(runtime, catalog)
            assert not (tmp_path / "t-0").exists()
            assert storage.replicas.get("t", 0) is None
            await until(lambda: not list(tmp_path.glob("t-0.*")), "the renamed folder to be gone")

    run(scenario())


# Background work


@pytest.mark.parametrize("is_enabled", [True, False])
def test_compaction_runs_if_it_is_enabled(tmp_path: Path, is_enabled: bool) -> None:
    async def scenario() -> None:
        home = BrokerHome(tmp_path, log_cleaner_enable=str(is_enabled).lower())
        async with home.open() as (runtime, catalog):
            await home.start_storage(runtime, catalog)
            names = {task.name for task in runtime.supervisor.tasks}
            assert any(name.startswith("log-cleaner") for name in names) == is_enabled, names

    run(scenario())
