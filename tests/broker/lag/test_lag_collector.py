"""Lag on a real data folder and coordinator, with a clock that does not advance by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.lag.lag_home import World, run
from groups.coordinator_home import PARTITION_COUNT
from harness.in_process.log_home import NOW_MS
from millstream.broker.lag import partition_backlog
from millstream.broker.lag.partition_backlog import UNLIMITED
from millstream.log.reading import backlog
from millstream.records.builder import build_batch

HOUR_MS = 3_600_000


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_records_and_seconds_behind(world: World) -> None:
    async def body(world: World) -> None:
        world.produce("t", count=10)
        await world.commit("g", ("t", 0, 4), ("t", 1, 0))
        world.clock.now_ms += 60_000
        row = await world.row("g")
        assert (row.committed_offset, row.end_offset, row.records) == (4, 10, 6)
        assert row.seconds == 5 + 60
        empty = await world.row("g", "t", 1)
        assert (empty.records, empty.seconds, empty.headroom_seconds) == (0, 0.0, UNLIMITED)

    run(world, body)


def test_a_group_at_the_end_has_no_lag(world: World) -> None:
    async def body(world: World) -> None:
        world.produce("t", count=10)
        await world.commit("g", ("t", 0, 10))
        world.clock.now_ms += HOUR_MS
        row = await world.row("g")
        assert (row.records, row.seconds, row.headroom_seconds) == (0, 0.0, UNLIMITED)
        # A client may commit an offset beyond the end of the log.
        await world.commit("g", ("t", 0, 99))
        assert (await world.row("g")).records == 0

    run(world, body)


def test_at_the_end_of_a_compacted_topic(world: World) -> None:
    async def body(world: World) -> None:
        world.configure("t", cleanup_policy=frozenset({"compact"}))
        partition = world.partition_of("t")
        world.produce("t", count=5)
        await world.commit("g", ("t", 0, 3))
        assert (await world.row("g")).records == 2
        # Compaction removed the records, and left an empty batch that keeps the offsets.
        empty = build_batch([], base_offset=5, last_offset_delta=4)
        partition.log.truncate_to(3)
        partition.log.append_as_follower(memoryview(empty))
        partition.high_watermark = partition.log.log_end_offset
        await world.lag.collect()
        row = await world.row("g")
        assert (row.end_offset, row.records, row.seconds) == (10, 0, 0.0)

    run(world, body)


def test_lag_ends_at_open_transactions_and_does_not_count_markers(world: World) -> None:
    async def body(world: World) -> None:
        world.produce("t", count=10)
        world.produce("t", is_transactional=True, producer=(7, 0, 0))
        await world.commit("g", ("t", 0, 8))
        await world.commit("h", ("t", 0, 10))
        held = await world.row("g")
        assert (held.end_offset, held.records) == (10, 2)
        assert (await world.row("h")).records == 0
        world.partition_of("t").append_marker(7, 0, commit=True, coordinator_epoch=0)
        assert (await world.row("g")).end_offset == 12
        assert (await world.row("h")).records == 2
        await world.commit("h", ("t", 0, 11))
        after = await world.row("h")
        assert (after.records, after.seconds, after.headroom_seconds) == (0, 0.0, UNLIMITED)

    run(world, body)


def test_headroom_by_time(world: World) -> None:
    async def body(world: World) -> None:
        world.configure("t", retention_ms=HOUR_MS)
        world.produce("t", count=10)
        await world.commit("g", ("t", 0, 4))
        assert (await world.row("g")).headroom_seconds == 3600
        world.clock.now_ms += 600_000
        assert (await world.row("g")).headroom_seconds == 3000
        world.clock.now_ms += 2 * HOUR_MS
        assert (await world.row("g")).headroom_seconds == 0
        world.configure("t", retention_ms=-1)
        assert (await world.row("g")).headroom_seconds == UNLIMITED

    run(world, body)


def test_headroom_by_size_from_the_recent_rate(world: World) -> None:
    async def body(world: World) -> None:
        world.configure("t", retention_ms=-1, retention_bytes=100_000, segment_bytes=2000)
        world.produce("t", value=b"x" * 1000)
        await world.commit("g", ("t", 0, 0))
        await world.lag.collect()
        assert (await world.row("g")).headroom_seconds == UNLIMITED, "no rate is known yet"
        before = world.partition_of("t").log.size_bytes
        world.produce("t", count=20, value=b"x" * 1000)
        world.clock.now_ms += 10_000
        await world.lag.collect()
        log = world.partition_of("t").log
        rate = (log.size_bytes - before) / 10
        left = 100_000 - (log.size_bytes - log.segments[0].size)
        assert (await world.row("g")).headroom_seconds == pytest.approx(left / rate)

    run(world, body)


def test_lag_excludes_deleted_records(world: World) -> None:
    async def body(world: World) -> None:
        world.produce("t", count=10)
        await world.commit("g", ("t", 0, 4))
        world.partition_of("t").delete_records(7)
        row = await world.row("g")
        assert (row.records, row.seconds, row.headroom_seconds) == (3, 2.0, 0.0)
        world.partition_of("t").delete_records(-1)
        row = await world.row("g")
        assert (row.records, row.headroom_seconds) == (0, UNLIMITED), (
            "a group at the end has nothing that retention could delete"
        )

    run(world, body)


def test_a_group_is_the_worst_of_its_partitions(world: World) -> None:
    async def body(world: World) -> None:
        world.configure("u", retention_ms=HOUR_MS)
        world.produce("t", 0, 10)
        world.produce("t", 1, 3)
        world.produce("u", 0, 20)
        await world.commit("g", ("t", 0, 0), ("t", 1, 0), ("u", 0, 19), ("nowhere", 0, 5))
        (found,) = (await world.lag.collect()).groups
        assert (found.group_id, found.state, found.members) == ("g", "Empty", 0)
        assert (found.records, found.records_max, found.seconds_max) == (14, 10, 9.0)
        assert found.headroom_seconds_min == 3600
        assert len(found.partitions) == 3, "a topic that is not here has no lag"

    run(world, body)


def test_a_round_measures_each_position_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[int] = []
    search = backlog.first_unread_batch

    def counted(log: object, offset: int, end: int) -> object:
        searches.append(offset)
        return search(log, offset, end)  # type: ignore[arg-type]

    monkeypatch.setattr(backlog, "first_unread_batch", counted)

    async def body(world: World) -> None:
        world.produce("t", count=10)
        for number in range(5):
            await world.commit(f"g{number}", ("t", 0, 4))
        await world.lag.collect()
        await world.lag.collect()
        assert searches == [4], "one search serves all groups at this offset, in both rounds"
        await world.commit("g0", ("t", 0, 6))
        await world.lag.collect()
        assert searches == [4, 6]

    run(world, body)


def test_a_round_yields_to_the_event_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_backlog, "_OFFSETS_PER_TURN", 10)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def body(world: World) -> None:
        world.produce("t")
        for number in range(100):
            await world.commit(f"g{number}", ("t", 0, 0), ("t", 1, 0))
        counting = asyncio.create_task(count_turns())
        await world.lag.collect()
        counting.cancel()
        assert turns >= 19

    run(world, body)


def test_logs_are_not_loaded_to_stay(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def body(world: World) -> None:
        world.produce("t", count=10)
        await world.commit("g", ("t", 0, 4))
        await world.commit("done", ("t", 0, 10))
        await world.close()
        world.begin()
        async with asyncio.timeout(90):
            while len(world.shards.serving()) < PARTITION_COUNT:  # noqa: ASYNC110
                await asyncio.sleep(0)
        log = world.partition_of("t").log
        assert not log.is_loaded
        assert (await world.row("done")).records == 0
        assert (await world.row("g")).seconds == 5
        assert not log.is_loaded

    run(world, body)


def test_damage_fails_one_row_and_not_the_round(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: World) -> None:
        world.produce("t", count=10)
        world.produce("u", count=10)
        await world.commit("g", ("t", 0, 4), ("u", 0, 4))
        log = world.partition_of("t").log
        segment = log.segments[0]
        segment.positions.clear()
        segment.log.get().write(b"\xff" * 200, 0)
        (found,) = (await world.lag.collect()).groups
        damaged, sound = found.partitions
        assert (damaged.records, damaged.seconds, damaged.headroom_seconds) == (6, None, None)
        assert sound.seconds == 5
        assert world.lag.failures == 1
        await world.lag.collect()
        assert caplog.text.count("the lag in t-0 cannot be measured") == 1

    run(world, body)


def test_past_the_budget_groups_are_added_up(tmp_path: Path) -> None:
    world = World(tmp_path, groups_max=2, partitions_max=3)

    async def body(world: World) -> None:
        world.produce("t", count=10)
        await world.commit("a", ("t", 0, 9), ("t", 1, 0))
        await world.lag.collect()
        await world.commit("b\0", ("t", 0, 8))
        await world.commit("c", ("t", 0, 7), ("t", 1, 0))
        await world.lag.collect()
        await world.commit("d", ("t", 0, 0))
        found = await world.lag.collect()
        assert {each.group_id: len(each.partitions) for each in found.groups} == {"a": 2, "c": 0}
        assert {each.group_id: each.records for each in found.groups} == {"a": 1, "c": 3}
        assert found.folded is not None
        assert (found.folded.group_id, found.folded_groups) == ("_other", 2)
        assert (found.folded.records, found.folded.records_max) == (12, 10)
        assert found.folded.seconds_max == 9
        assert found.folded_partitions == 4
        assert found.states == {"Empty": 4}

    run(world, body)


def test_unused_groups_are_not_counted(world: World) -> None:
    async def body(world: World) -> None:
        world.shards.of("blank").groups["blank"] = world.shards.of("blank").new_classic("blank")
        assert (await world.lag.collect()).groups == []
        assert await world.lag.of_group("nobody") is None

    run(world, body)


def test_the_clock_of_a_producer_may_be_ahead(world: World) -> None:
    async def body(world: World) -> None:
        world.produce("t", timestamp=NOW_MS + 3000)
        await world.commit("g", ("t", 0, 0))
        assert (await world.row("g")).seconds == 0

    run(world, body)
