"""Brokers that replicate to each other over real sockets and logs."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.in_process.replica_set import Node, ReplicaSet, run, until
from harness.raw.raw_client import values_batch
from millstream.broker.context import Context
from millstream.broker.handlers import metadata
from millstream.log.flush.ticket import FlushTicket
from millstream.log.log import PartitionLog
from millstream.metadata.cluster_record import leaving_key
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.metadata.store.port import Delete, Put
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_LEADER
from millstream.records.batch import check_produced
from millstream.replication.follower import fetcher
from millstream.replication.leader.follower_session import FollowerSession
from millstream.replication.partition import Partition

#: A long poll that does not expire within a test.
LONG_POLL = {"replica_fetch_wait_max_ms": "120000"}
QUICK_LAG = {"replica_lag_time_max_ms": "1000", "replica_fetch_wait_max_ms": "50"}


def append(partition: Partition, *values: bytes) -> None:
    """Append like a produce request, on a broker that no client can reach."""
    batch = memoryview(values_batch(*values))
    partition.append(batch, check_produced(batch), acks_all=True)


def test_acks_all_is_acknowledged_when_every_isr_member_has_the_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2, 3])
            for number in range(20):
                row = await brokers.produce("t", b"%d" % number)
                assert (row.error_code, row.base_offset) == (0, number)
                # When the response arrives, every member already has the record.
                assert all(brokers[n].partition("t").log.log_end_offset > number for n in (1, 2, 3))
            await brokers.until_equal("t", [1, 2, 3])

    run(scenario())


def test_consumers_see_no_record_that_an_isr_member_lacks(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2, 3])
            await brokers.produce("t", b"committed")
            await brokers[3].replicator.stop()
            waiting = await brokers.send("t", b"not yet")
            await until(
                lambda: brokers[2].partition("t").log.log_end_offset == 2, "one follower to have it"
            )
            row = await brokers.fetch("t", 1, at=1)
            assert (row.error_code, row.high_watermark, row.records) == (0, 1, b"")
            assert not waiting.done()
            brokers[3].replicator.start(brokers[3].catalog.image)
            response = await waiting
            assert response.responses[0].partition_responses[0].error_code == 0
            assert (await brokers.fetch("t", 1, at=1)).high_watermark == 2

    run(scenario())


def test_a_new_partition_does_not_wait_for_the_end_of_a_long_poll(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2, **LONG_POLL) as brokers:
            for name in ("first", "second", "third"):
                await brokers.create(name, [1, 2])
                assert (await brokers.produce(name, b"v")).error_code == 0

    run(scenario())


def test_several_fetchers_share_a_leader(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2, num_replica_fetchers="3") as brokers:
            sessions = brokers[1].replicator.sessions
            names = [f"t{number}" for number in range(12)]
            for name in names:
                await brokers.create(name, [1, 2])
                assert (await brokers.produce(name, b"a")).error_code == 0
            before = sessions.of(2)
            assert len(before) == 3
            assert sum(map(len, before)) == 12
            # Each fetcher opens a new session, which replaces its earlier one.
            brokers.drop_connections(1)
            for name in names:
                assert (await brokers.produce(name, b"b")).error_code == 0
            assert len(sessions) == 3
            assert not set(before) & set(sessions.of(2))
            for name in names:
                await brokers.elect(name, 2)
                assert (await brokers.produce(name, b"c")).error_code == 0
                await brokers.until_equal(name, [1, 2])
            assert len(brokers[2].replicator.sessions) == 3

    run(scenario())


def test_a_follower_that_was_down_catches_up_and_joins_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2, 3], segment_bytes=100_000)
            await brokers.produce("t", b"before")
            await brokers[3].stop()
            await brokers.change("t", isr=(1, 2))
            for number in range(40):
                assert (await brokers.produce("t", b"%d" % number * 10_000)).error_code == 0
            assert len(brokers[1].partition("t").log.segments) > 2
            await brokers[3].start()
            await brokers.until_isr("t", {1, 2, 3})
            await brokers.produce("t", b"after")
            await brokers.until_equal("t", [1, 2, 3])
            assert brokers[1].replicator.stats.isr_expands == 1

    run(scenario())


def test_leadership_changes_lose_no_acknowledged_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2, 3])
            expected = []
            for number in range(6):
                expected.append((number, b"%d" % number))
                assert (await brokers.produce("t", expected[-1][1])).error_code == 0
                leader = brokers.record("t").leader
                await brokers.elect("t", leader % 3 + 1)
                refused = await brokers.produce("t", b"late", to=leader)
                assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert refused.current_leader is not None
                assert refused.current_leader.leader_id == leader % 3 + 1
            await brokers.until_equal("t", [1, 2, 3])
            assert brokers.values("t", 1) == expected

    run(scenario())


def test_a_deposed_leader_commits_nothing_and_truncates_to_the_new_leader(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2, 3])
            await brokers.produce("t", b"kept")
            await brokers[1].isolate()
            deposed = brokers[1].partition("t")
            append(deposed, b"lost 1", b"lost 2")
            append(deposed, b"lost 3")
            assert (deposed.high_watermark, deposed.log.log_end_offset) == (1, 4)
            brokers[1].is_running = False
            await brokers.elect("t", 2, isr=(2, 3))
            await brokers.produce("t", b"new 1")
            await brokers[1].stop(clean=False)
            await brokers[1].start()
            await brokers.until_isr("t", {1, 2, 3})
            await brokers.until_equal("t", [1, 2, 3])
            assert brokers.values("t", 1) == [(0, b"kept"), (1, b"new 1")]
            assert brokers[1].replicator.stats.truncations == 1

    run(scenario())


def test_several_epochs_of_lost_records_are_truncated_step_by_step(tmp_path: Path) -> None:
    """The new leader does not know the deposed leader's epochs, so one response is not enough."""

    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2) as brokers:
            await brokers.create("t", [1, 2])
            await brokers.produce("t", b"kept")
            await brokers[2].stop()
            for number in range(3):
                await brokers.elect("t", 1, isr=(1,))
                append(brokers[1].partition("t"), b"lost %d" % number)
            await brokers[1].stop()
            brokers[2].is_running = False
            await brokers[2].start()
            await brokers.elect("t", 2, isr=(2,))
            await brokers.produce("t", b"new")
            await brokers[1].start()
            await brokers.until_isr("t", {1, 2})
            await brokers.until_equal("t", [1, 2])
            assert brokers.values("t", 1) == [(0, b"kept"), (1, b"new")]

    run(scenario())


def test_a_restart_with_an_old_high_watermark_loses_nothing(tmp_path: Path) -> None:
    """A follower that truncated to its high watermark would lose a record, because the leader dies
    before the follower can fetch the record again."""

    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2) as brokers:
            await brokers.create("t", [1, 2])
            await brokers.produce("t", b"a")
            await brokers.produce("t", b"b")
            brokers[2].partition("t").high_watermark = 0
            await brokers[2].stop(clean=False)
            await brokers[2].start()
            await brokers[1].stop(clean=False)
            await brokers.elect("t", 2, isr=(2,))
            await until(lambda: brokers[2].partition("t").is_leader, "the election")
            assert brokers.values("t", 2) == [(0, b"a"), (1, b"b")]
            assert brokers[2].partition("t").high_watermark == 2

    run(scenario())


def test_a_new_leader_continues_from_the_high_watermark_it_knew(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2, 3])
            await brokers.produce("t", b"a")
            await brokers.until_equal("t", [1, 2, 3])
            await brokers[3].replicator.stop()
            await brokers.send("t", b"b")
            await until(lambda: brokers[2].partition("t").log.log_end_offset == 2, "b at 2")
            await brokers.elect("t", 2)
            await until(lambda: brokers[2].partition("t").is_leader, "the election")
            # Brokers 1 and 2 have the record. Only a fetch of broker 3 shows whether 3 has it.
            await until(lambda: brokers[1].partition("t").leader_epoch == 1, "1 to follow")
            assert brokers[2].partition("t").high_watermark == 1
            brokers[3].replicator.start(brokers[3].catalog.image)
            await brokers.until_equal("t", [1, 2, 3])
            assert brokers.values("t", 3) == [(0, b"a"), (1, b"b")]

    run(scenario())


def test_the_isr_shrinks_by_lag_and_grows_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path, **QUICK_LAG) as brokers:
            await brokers.create("t", [1, 2, 3])
            await brokers.produce("t", b"a")
            await brokers[3].replicator.stop()
            waiting = await brokers.send("t", b"b", timeout_ms=60_000)
            await brokers.until_isr("t", {1, 2})
            # The pending record is committed without the removed replica.
            assert (await waiting).responses[0].partition_responses[0].error_code == 0
            assert brokers.record("t").leader_epoch == 0
            brokers[3].replicator.start(brokers[3].catalog.image)
            await brokers.until_isr("t", {1, 2, 3})
            await brokers.produce("t", b"c")
            await brokers.until_equal("t", [1, 2, 3])
            stats = brokers[1].replicator.stats
            assert stats.isr_shrinks > 0
            assert stats.isr_expands > 0

    run(scenario())


def test_too_few_in_sync_replicas_before_and_after_the_append(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2, **QUICK_LAG) as brokers:
            await brokers.create("t", [1, 2], min_insync_replicas=2)
            assert (await brokers.produce("t", b"a")).error_code == 0
            await brokers[2].replicator.stop()
            after = await brokers.produce("t", b"b", timeout_ms=60_000)
            assert after.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            before = await brokers.produce("t", b"c")
            assert before.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            leader = brokers[1].partition("t")
            assert (leader.high_watermark, leader.log.log_end_offset) == (1, 2)
            brokers[2].replicator.start(brokers[2].catalog.image)
            await brokers.until_isr("t", {1, 2})
            assert (await brokers.produce("t", b"d")).error_code == 0
            await brokers.until_equal("t", [1, 2])

    run(scenario())


def test_a_replica_that_lost_committed_records_leaves_the_isr_until_it_has_them(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2, 3])
            for number in range(5):
                await brokers.produce("t", b"%d" % number)
            seen: list[tuple[int, ...]] = []

            def watch(image: ClusterImage, delta: ImageDelta) -> None:
                seen.extend(new.partitions[0].isr for _, new in delta.changed)
                isr = image.topics["t"].partitions[0].isr
                if 2 in isr and seen:
                    assert brokers[2].partition("t").log.log_end_offset >= 5

            await brokers[2].stop(clean=False)
            shutil.rmtree(tmp_path / "2")
            brokers[1].catalog.subscribe(watch)
            await brokers[2].start()
            await until(lambda: len(seen) >= 2, "the ISR to change twice")
            assert [set(isr) for isr in seen] == [{1, 3}, {1, 2, 3}]
            await brokers.until_equal("t", [1, 2, 3])

    run(scenario())


def test_a_log_that_ends_before_the_leaders_start_restarts_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2) as brokers:
            await brokers.create("t", [1, 2])
            await brokers.produce("t", b"a")
            await brokers[2].stop()
            await brokers.change("t", isr=(1,))
            for number in range(6):
                await brokers.produce("t", b"%d" % number)
            brokers[1].partition("t").delete_records(4)
            await brokers[2].start()
            await brokers.until_isr("t", {1, 2})
            await brokers.until_equal("t", [1, 2])
            assert brokers[2].partition("t").log.log_start_offset == 4
            assert [offset for offset, _ in brokers.values("t", 2)] == [4, 5, 6]

    run(scenario())


def test_the_log_start_offset_follows_the_leaders(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2) as brokers:
            await brokers.create("t", [1, 2])
            for number in range(4):
                await brokers.produce("t", b"%d" % number)
            brokers[1].partition("t").delete_records(3)
            await brokers.produce("t", b"more")
            follower = brokers[2].partition("t")
            await until(lambda: follower.log.log_start_offset == 3, "the log start to follow")
            await brokers.until_equal("t", [1, 2])

    run(scenario())


def test_a_broker_that_registers_again_continues_under_its_new_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2, 3])
            await brokers.produce("t", b"a")
            await brokers[2].register()
            assert (await brokers.produce("t", b"b")).error_code == 0
            await brokers.until_equal("t", [1, 2, 3])
            epoch = brokers[1].catalog.image.brokers[2].epoch
            leadership = brokers[1].partition("t").leadership
            assert leadership is not None
            await until(lambda: leadership.followers[2].broker_epoch == epoch, "the new epoch")

    run(scenario())


def test_metadata_does_not_name_a_leader_that_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "_LOST_S_MAX", 3600.0)

    def told_leader(node: Node) -> tuple[int, int]:
        services = SimpleNamespace(catalog=node.catalog, replicator=node.replicator)
        context = cast("Context", SimpleNamespace(services=services))
        (row,) = metadata._describe(node.catalog.image.topics["t"], context).partitions
        return row.leader_id, row.error_code

    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2) as brokers:
            await brokers.create("t", [1, 2])
            assert (await brokers.produce("t", b"v")).error_code == 0
            assert told_leader(brokers[2]) == (1, ErrorCode.NONE)
            await brokers[1].stop(clean=False)
            await until(
                lambda: brokers[2].replicator.lost_leaders() == [1], "the loss to be noticed"
            )
            assert brokers[2].partition("t").state.leader == 1, "the metadata are not updated yet"
            assert told_leader(brokers[2]) == (NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE)
            await brokers[1].start()
            await until(lambda: told_leader(brokers[2]) == (1, ErrorCode.NONE), "its return")

    run(scenario())


def test_a_leader_that_disconnected_is_named_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This broker may be the only one that can't reach the leader."""
    monkeypatch.setattr(fetcher, "_LOST_S_MAX", 0.01)

    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2) as brokers:
            await brokers.create("t", [1, 2])
            await brokers.produce("t", b"v")
            await brokers[1].stop(clean=False)
            stats = brokers[2].replicator.stats
            await until(lambda: stats.connection_failures, "the loss to be noticed")
            await until(lambda: not brokers[2].replicator.lost_leaders(), "the loss to expire")
            await brokers[1].start()

    run(scenario())


def test_a_follower_reconnects_to_a_leader_that_does_not_respond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        settings = {"replica_fetch_wait_max_ms": "50", "replica_socket_timeout_ms": "100"}
        async with ReplicaSet(tmp_path, 2, **settings) as brokers:
            await brokers.create("t", [1, 2])
            await brokers.produce("t", b"before")
            failures = brokers[2].replicator.stats.connection_failures
            with monkeypatch.context() as patch:
                patch.setattr(FollowerSession, "wait", lambda *_: None)
                await until(
                    lambda: brokers[2].replicator.stats.connection_failures > failures + 1,
                    "the follower to reconnect more than once",
                )
            assert (await brokers.produce("t", b"after")).error_code == 0

    run(scenario())


def test_replicas_are_added_and_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2])
            for number in range(5):
                await brokers.produce("t", b"%d" % number)
            await brokers.change("t", replicas=(1, 2, 3), adding=(3,))
            await brokers.until_isr("t", {1, 2, 3})
            await brokers.until_equal("t", [1, 2, 3])
            await brokers.change("t", replicas=(1, 3), isr=(1, 3), adding=())
            await until(lambda: brokers[2].replicas.get("t", 0) is None, "2 to drop its replica")
            assert (await brokers.produce("t", b"after")).error_code == 0
            await brokers.until_equal("t", [1, 3])

    run(scenario())


@pytest.mark.parametrize("acks", [1, -1])
def test_a_follower_flushes_records_before_it_acknowledges_them(tmp_path: Path, acks: int) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2, log_flush_before_ack="true") as brokers:
            await brokers.create("t", [1, 2])
            for number in range(3):
                assert (await brokers.produce("t", b"%d" % number, acks=acks)).error_code == 0
                if acks == -1:
                    assert brokers[2].partition("t").log.recovery_point == number + 1
            await brokers.until_equal("t", [1, 2])

    run(scenario())


def test_consumers_read_from_the_replica_in_their_rack(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path, replica_selector_class="rack") as brokers:
            await brokers.create("t", [1, 2, 3])
            await brokers.produce("t", b"a")
            await brokers.until_equal("t", [1, 2, 3])
            row = await brokers.fetch("t", 0, at=1, rack="rack-3")
            assert (row.preferred_read_replica, row.records) == (3, b"")
            for rack in ("", "rack-1", "rack-9"):
                row = await brokers.fetch("t", 0, at=1, rack=rack)
                assert row.preferred_read_replica == -1
                assert row.records
            row = await brokers.fetch("t", 0, at=3, rack="rack-3")
            assert (row.error_code, row.high_watermark) == (0, 1)
            assert row.records

    run(scenario())


def test_followers_serve_no_consumers_by_default(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2) as brokers:
            await brokers.create("t", [1, 2])
            await brokers.produce("t", b"a")
            row = await brokers.fetch("t", 0, at=1, rack="rack-2")
            assert row.preferred_read_replica == -1
            assert row.records
            row = await brokers.fetch("t", 0, at=2, rack="rack-2")
            assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario())


def test_a_deletion_completes_when_every_in_sync_replica_has_trimmed_its_log(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path, **LONG_POLL) as brokers:
            await brokers.create("t", [1, 2, 3])
            for number in range(5):
                await brokers.produce("t", b"%d" % number)
            row = await brokers.delete_records("t", 3)
            assert (row.error_code, row.low_watermark) == (0, 3)
            assert [brokers[n].partition("t").log.log_start_offset for n in (1, 2, 3)] == [3] * 3
            await brokers[3].replicator.stop()
            row = await brokers.delete_records("t", 4, timeout_ms=200)
            assert (row.error_code, row.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 3)
            # The deletion does not wait for replicas outside the ISR.
            waiting = asyncio.create_task(brokers.delete_records("t", 5, timeout_ms=60_000))
            await until(
                lambda: brokers[2].partition("t").log.log_start_offset == 5, "the other replica"
            )
            assert not waiting.done()
            await brokers.change("t", isr=(1, 2))
            assert (await waiting).low_watermark == 5

    run(scenario())


def test_a_leaving_broker_does_not_join_the_isr_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2, 3])
            await brokers[2].catalog.transact([], [Put(leaving_key(2), b"{}")])
            await brokers.change("t", isr=(1,))
            await brokers.until_isr("t", {1, 3})
            await brokers.produce("t", b"a")
            await brokers.until_equal("t", [1, 2, 3])
            await brokers.produce("t", b"b")
            await brokers.until_equal("t", [1, 2, 3])
            assert set(brokers.record("t").isr) == {1, 3}
            await brokers[2].catalog.transact([], [Delete(leaving_key(2))])
            await brokers.produce("t", b"c")
            await brokers.until_isr("t", {1, 2, 3})

    run(scenario())


def test_a_partition_that_raises_does_not_stop_fetches_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2) as brokers:
            for name in ("bad", "good"):
                await brokers.create(name, [1, 2])
                await brokers.produce(name, b"before")
            bugs = [RuntimeError("a bug")] * 3
            append_as_follower = Partition.append_as_follower

            def fail(self: Partition, *arguments: Any) -> None:
                if bugs and self.topic_partition.topic == "bad":
                    raise bugs.pop()
                append_as_follower(self, *arguments)

            monkeypatch.setattr(Partition, "append_as_follower", fail)
            waiting = await brokers.send("bad", b"after")
            assert (await brokers.produce("good", b"after")).error_code == 0
            row = (await waiting).responses[0].partition_responses[0]
            assert row.error_code == 0
            assert brokers[2].supervisor.failures["replica-fetcher"] == 3
            assert brokers[2].replicator.stats.connection_failures == 0
            await brokers.until_equal("bad", [1, 2])

    run(scenario())


def test_a_follower_acknowledges_nothing_that_it_could_not_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower's disk is full for a while. Its log does not go offline."""

    async def scenario() -> None:
        async with ReplicaSet(tmp_path, 2, log_flush_before_ack="true") as brokers:
            await brokers.create("t", [1, 2])
            await brokers.produce("t", b"before")
            follower = brokers[2].partition("t").log
            begin, attempts = PartitionLog.begin_flush, 0

            def fail(self: PartitionLog, *, is_last: bool = False) -> FlushTicket | None:
                nonlocal attempts
                if self is follower and attempts < 3:
                    attempts += 1
                    assert brokers[1].partition("t").high_watermark == 1
                    raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "no room")
                return begin(self, is_last=is_last)

            monkeypatch.setattr(PartitionLog, "begin_flush", fail)
            row = await brokers.produce("t", b"after")
            assert (row.error_code, attempts) == (0, 3)
            assert follower.recovery_point == 2

    run(scenario())
