"""Lag in partitions that other brokers lead, while their leaders respond and after they stop."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.lag.lag_home import World, run
from millstream.broker.lag import lag_sweep
from millstream.broker.lag.partition_backlog import UNLIMITED, Backlog, KnownRecord
from millstream.broker.lag.remote_backlog import BacklogQuery, RemoteBacklogs
from millstream.metadata.cluster_record import PartitionRecord, TopicRecord
from millstream.metadata.image import ClusterImage
from millstream.model.error import ErrorCode
from millstream.model.sentinel import NO_LEADER

TOPIC_ID = b"remote".ljust(16)


class Leaders(RemoteBacklogs):
    """Brokers 2 and 3: responds with `backlogs`, and records the queries."""

    def __init__(self) -> None:
        #: The backlog of partition N of the topic `remote`, or the error of its leader.
        self.backlogs: dict[int, Backlog | ErrorCode] = {}
        self.sent: list[list[BacklogQuery]] = []

    async def query(self, queries: Sequence[BacklogQuery], timeout_s: float) -> None:
        assert timeout_s > 0
        self.sent.append(list(queries))
        await asyncio.sleep(0)
        for query in queries:
            found = self.backlogs[query.position[1]]
            if isinstance(found, ErrorCode):
                query.error = found
            else:
                query.backlog = found._replace(
                    offset=max(found.offset, query.position[2]),
                    has_unread=query.position[2] < found.end_offset,
                )

    @property
    def positions(self) -> list[list[tuple[int, int, int]]]:
        """Return leader, partition and offset of all queries, by request."""
        return [[(each.leader, *each.position[1:]) for each in sent] for sent in self.sent]


class RemoteWorld(World):
    """Adds the topic `remote`, whose partition N is led by broker `leaders[N]`."""

    def __init__(self, path: Path, *leaders: int, **options: int) -> None:
        super().__init__(path, **options)
        self.image = self.led_by(*leaders)
        self.leaders = Leaders()

    def led_by(self, *leaders: int) -> ClusterImage:
        partitions = tuple(
            PartitionRecord(replicas=(2, 3), leader=leader, leader_epoch=0, isr=(2, 3))
            for leader in leaders
        )
        topic = TopicRecord("remote", TOPIC_ID, partitions)
        image = self.picture(t=3, u=1)
        return ClusterImage(
            topics=image.topics.set("remote", topic),
            topic_names=image.topic_names.set(TOPIC_ID, "remote"),
        )

    def begin(self) -> None:
        super().begin()
        self.lag._sources = dataclasses.replace(self.lag._sources, remote=self.leaders)

    def tell(self, number: int, end: int, age_s: float, headroom_s: float = 3600.0) -> None:
        self.leaders.backlogs[number] = Backlog(
            0, end, True, self.clock.now_ms - int(age_s * 1000), headroom_s
        )


@pytest.fixture
def world(tmp_path: Path) -> RemoteWorld:
    return RemoteWorld(tmp_path, 2, 3, 2)


def test_every_partition_has_a_row(world: RemoteWorld) -> None:
    async def body(world: RemoteWorld) -> None:
        world.produce("t", count=10)
        for number in range(3):
            world.tell(number, end=20 + number, age_s=number)
        await world.commit(
            "g", ("remote", 0, 5), ("t", 0, 4), ("remote", 1, 21), ("remote", 2, 0), ("t", 1, 0)
        )
        (found,) = (await world.lag.collect()).groups
        assert [row[:3] for row in found.partitions] == [
            ("remote", 0, 5),
            ("remote", 1, 21),
            ("remote", 2, 0),
            ("t", 0, 4),
            ("t", 1, 0),
        ]
        assert [row.records for row in found.partitions] == [15, 0, 22, 6, 0]
        assert [row.seconds for row in found.partitions] == [0.0, 0.0, 2.0, 5.0, 0.0]
        assert all(row.is_current for row in found.partitions)
        assert (found.records, found.records_max, found.unknown_partitions) == (43, 22, 0)
        assert found.headroom_seconds_min == 3600
        assert world.leaders.positions == [[(2, 0, 5), (3, 1, 21), (2, 2, 0)]]

    run(world, body)


def test_groups_at_one_offset_share_a_query(world: RemoteWorld) -> None:
    async def body(world: RemoteWorld) -> None:
        world.tell(0, end=20, age_s=7)
        for number in range(5):
            await world.commit(f"g{number}", ("remote", 0, 5))
        found = await world.lag.collect()
        assert [each.records for each in found.groups] == [15] * 5
        assert world.leaders.positions == [[(2, 0, 5)]]
        assert world.leaders.sent[0][0].known is None
        await world.lag.collect()
        written_ms = world.clock.now_ms - 7000
        assert world.leaders.sent[1][0].known == KnownRecord(5, written_ms), "no search is needed"
        await world.commit("g0", ("remote", 0, 6))
        await world.lag.collect()
        assert {each.position[2]: each.known for each in world.leaders.sent[2]} == {
            5: KnownRecord(5, written_ms),
            6: None,
        }

    run(world, body)


def test_a_leader_that_does_not_respond_is_queried_once_a_round(
    world: RemoteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_sweep, "_WINDOW", 4)

    async def body(world: RemoteWorld) -> None:
        world.leaders.backlogs[0] = ErrorCode.NETWORK_EXCEPTION
        world.tell(1, end=30, age_s=1)
        for number in range(8):
            await world.commit(f"g{number}", ("remote", 0, number), ("remote", 1, number))
        found = await world.lag.collect()
        assert len(found.groups) == 8
        assert all(len(each.partitions) == 2 for each in found.groups)
        assert all(each.unknown_partitions == 1 for each in found.groups)
        assert sorted(each.records for each in found.groups) == list(range(23, 31))
        sent = [leader for request in world.leaders.positions for leader, _, _ in request]
        assert (sent.count(2), sent.count(3)) == (2, 8)
        await world.lag.collect()
        sent = [leader for request in world.leaders.positions for leader, _, _ in request]
        assert (sent.count(2), sent.count(3)) == (4, 16), "and again in the next round"

    run(world, body)


def test_the_last_values_are_adjusted_for_the_time_since(world: RemoteWorld) -> None:
    async def body(world: RemoteWorld) -> None:
        world.tell(0, end=20, age_s=7)
        world.tell(1, end=30, age_s=0, headroom_s=UNLIMITED)
        await world.commit("g", ("remote", 0, 5), ("remote", 1, 30), ("remote", 2, 0))
        world.leaders.backlogs[2] = ErrorCode.REQUEST_TIMED_OUT
        await world.lag.collect()
        for number in range(3):
            world.leaders.backlogs[number] = ErrorCode.REQUEST_TIMED_OUT
        for minutes in (10, 20, 120):
            world.clock.now_ms += 600_000 if minutes <= 20 else 6_000_000
            (found,) = (await world.lag.collect()).groups
            behind, read, never = found.partitions
            passed_s = minutes * 60
            assert (behind.records, behind.end_offset) == (15, 20)
            assert behind.seconds == 7 + passed_s
            assert behind.headroom_seconds == max(3600 - passed_s, 0)
            assert (read.records, read.seconds, read.headroom_seconds) == (0, 0.0, UNLIMITED)
            assert never[2:] == (0, None, None, None, None, False)
            assert not behind.is_current
            assert not read.is_current
            assert found.unknown_partitions == 3
            assert (found.records, found.seconds_max) == (15, 7 + passed_s)
        world.tell(0, end=50, age_s=1)
        (found,) = (await world.lag.collect()).groups
        assert (found.partitions[0].records, found.partitions[0].is_current) == (45, True)
        assert found.unknown_partitions == 2

    run(world, body)


def test_a_commit_while_the_leader_does_not_respond(world: RemoteWorld) -> None:
    async def body(world: RemoteWorld) -> None:
        world.tell(0, end=20, age_s=7)
        await world.commit("g", ("remote", 0, 5))
        await world.lag.collect()
        world.leaders.backlogs[0] = ErrorCode.NETWORK_EXCEPTION
        await world.commit("g", ("remote", 0, 9))
        (found,) = (await world.lag.collect()).groups
        assert found.partitions[0][2:] == (9, 20, 11, None, None, False)
        await world.commit("g", ("remote", 0, 20))
        (found,) = (await world.lag.collect()).groups
        assert found.partitions[0][2:] == (20, 20, 0, 0.0, UNLIMITED, False)

    run(world, body)


@pytest.mark.parametrize("leader", [NO_LEADER, 1])
def test_a_partition_without_a_leader_has_a_row(tmp_path: Path, leader: int) -> None:
    """Broker 1 is this broker, which does not lead the partition yet."""

    async def body(world: RemoteWorld) -> None:
        await world.commit("g", ("remote", 0, 5))
        (found,) = (await world.lag.collect()).groups
        assert found.partitions[0][2:] == (5, None, None, None, None, False)
        assert found.unknown_partitions == 1
        assert world.leaders.sent == []

    run(RemoteWorld(tmp_path, leader), body)


def test_a_leader_that_no_longer_leads_may_be_queried_again(
    world: RemoteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_sweep, "_WINDOW", 1)

    async def body(world: RemoteWorld) -> None:
        world.leaders.backlogs[0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        world.tell(2, end=20, age_s=7)
        await world.commit("g", ("remote", 0, 5), ("remote", 2, 5))
        (found,) = (await world.lag.collect()).groups
        assert [row.records for row in found.partitions] == [None, 15]
        assert world.leaders.positions == [[(2, 0, 5)], [(2, 2, 5)]]

    run(world, body)


def test_the_next_leader_is_queried(world: RemoteWorld) -> None:
    async def body(world: RemoteWorld) -> None:
        world.tell(0, end=20, age_s=7)
        await world.commit("g", ("remote", 0, 5))
        await world.lag.collect()
        world.image = world.led_by(3, 3, 3)
        await world.lag.collect()
        assert world.leaders.positions == [[(2, 0, 5)], [(3, 0, 5)]]

    run(world, body)


def test_partitions_that_do_not_exist_have_no_row(world: RemoteWorld) -> None:
    async def body(world: RemoteWorld) -> None:
        await world.commit("g", ("remote", 3, 5), ("nowhere", 0, 5))
        offsets = world.shards.of("g").offsets["g"]
        ((_, _, committed),) = [each for each in offsets if each[0] == "remote"]
        # The committed offset belongs to a deleted topic of the same name.
        offsets._put("remote", 0, committed._replace(topic_id=b"earlier".ljust(16)))
        (found,) = (await world.lag.collect()).groups
        assert found.partitions == []
        assert world.leaders.sent == []

    run(world, body)


def test_groups_of_other_coordinators_are_not_shown(world: RemoteWorld) -> None:
    async def body(world: RemoteWorld) -> None:
        await world.commit("g", ("t", 0, 5))
        await world.commit("h", ("t", 0, 5))
        await world.lag.collect()
        assert {each.group_id for each in world.lag.shown()} == {"g", "h"}
        checks: list[None] = []
        world.lag.check_lease = lambda: checks.append(None)
        world.shards._close(world.shards.index_of("g"), ErrorCode.NOT_COORDINATOR)
        assert {each.group_id for each in world.lag.shown()} == {"h"}
        assert checks == [None]

    run(world, body)


def test_waiting_for_leaders_is_not_counted_as_work(world: RemoteWorld) -> None:
    async def body(world: RemoteWorld) -> None:
        query = world.leaders.query

        async def slowly(queries: Any, timeout_s: float) -> None:
            world.clock.now_ms += 4000
            await query(queries, timeout_s)

        world.leaders.query = slowly  # type: ignore[method-assign]
        world.tell(0, end=20, age_s=7)
        await world.commit("g", ("remote", 0, 5))
        await world.lag.collect()
        assert world.lag.stats.duration_seconds == world.lag.stats.waited_seconds == 4

    run(world, body)
