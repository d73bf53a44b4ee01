from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from groups.classic_world import subscription
from groups.coordinator_home import PARTITION_COUNT, GroupHome, ReplyResults, commit_of
from harness.in_process.replica_home import run_home, turns, turns_until
from millstream.coordination.effects import Effects, ProducerIdAndEpoch
from millstream.coordination.journal import JournalOptions, TransactionEnd
from millstream.coordination.key_partition import partition_of
from millstream.coordination.shard import ShardState
from millstream.groups.classic.classic_group import ClassicGroup, ClassicGroupSettings
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.groups.group import Caller
from millstream.groups.group_coordinator import GroupCoordinator
from millstream.groups.group_shard import GroupSettings
from millstream.groups.group_shards import GroupCoordinatorOptions
from millstream.metadata.image import ClusterImage
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures, CallbackKind
from millstream.model.reply import Reply, ReplyKind
from millstream.records.batch import iterate_batches
from millstream.replication.leader.follower_state import FollowerFetch
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.consumer_protocol import ConsumerProtocolAssignment
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.sync_group import SyncGroupRequest
from millstream.wire.schema import encode_prefixed

RETENTION_MS = 1000
PART = encode_prefixed(
    ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartitions(topic="t", partitions=[0, 1])
        ]
    ),
    0,
)
OPTIONS = GroupCoordinatorOptions(
    offsets_retention_ms=RETENTION_MS,
    groups=GroupSettings(classic=ClassicGroupSettings(initial_rebalance_delay_ms=0)),
    journal=JournalOptions(commit_timeout_ms=60_000),
)


def run(path: Path, body: Callable[[GroupHome], Awaitable[None]], **options: Any) -> None:
    run_home(GroupHome(path, options.get("options", OPTIONS)), body)


async def loaded(home: GroupHome) -> None:
    shards = home.shards._shards
    await turns_until(
        lambda: all(each.state is ShardState.ACTIVE for each in shards.values()), "not loaded"
    )


def offset_of(coordinator: GroupCoordinator, group_id: str, topic: str, number: int) -> int | None:
    found = coordinator.offsets(group_id).get(topic, number)
    return None if found is None else found.offset


def join(
    home: GroupHome, responses: ReplyResults, name: str, member_id: str = "", **fields: Any
) -> None:
    request = JoinGroupRequest(
        group_id=fields.pop("group_id", "g"),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=subscription("t"))],
    )
    for field, value in fields.items():
        setattr(request, field, value)
    home.coordinator.join(request, Caller("c", "/127.0.0.1", 3), responses.reply(name))


async def stable_member(home: GroupHome, responses: ReplyResults) -> str:
    """Create generation 1 of group g with one member; return its id."""
    join(home, responses, "stable join")
    home.pass_time(1)
    await turns(3)
    member_id: str = responses.got["stable join"].member_id
    home.coordinator.sync(
        SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=member_id,
            assignments=[SyncGroupRequest.Assignment(member_id=member_id, assignment=PART)],
        ),
        responses.reply("stable sync"),
    )
    await turns(3)
    assert responses.got["stable sync"].assignment == PART
    return member_id


def test_commits_of_one_loop_iteration_share_a_batch_and_survive(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        for number in range(100):
            commit = commit_of("g", ("t", number, number * 7))
            home.coordinator.commit(commit, responses.reply(str(number)))
        assert responses.got == {}
        await turns(3)
        assert list(responses.got.values()) == [None] * 100
        log = home.partition(partition_of("g", PARTITION_COUNT)).log
        data = log.read(0, 10**6, log.log_end_offset, True).read()
        assert int.from_bytes(data[8:12]) + 12 == len(data), "one batch"
        coordinator = await home.reopen()
        with pytest.raises(BrokerError) as refused:
            coordinator.offsets("g")
        assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(BrokerError):
            list(home.shards.all_groups())
        await loaded(home)
        assert [offset_of(coordinator, "g", "t", number) for number in range(100)] == [
            number * 7 for number in range(100)
        ]
        (group,) = home.shards.all_groups()
        assert (group.group_id, group.state_name, group.protocol_type) == ("g", "Empty", None)

    run(tmp_path, body)


def test_many_records_are_split_into_batches_that_fit(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        for number in range(30):
            offsets = [("topic" * 40, number * 1000 + each, each) for each in range(1000)]
            home.coordinator.commit(commit_of("g", *offsets), responses.reply(str(number)))
        await turns(3)
        assert list(responses.got.values()) == [None] * 30
        assert home.end_offsets() == 30_000
        coordinator = await home.reopen()
        await loaded(home)
        assert offset_of(coordinator, "g", "topic" * 40, 29_999) == 999

    run(tmp_path, body)


def test_a_heartbeat_succeeds_while_the_group_is_loaded(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        member_id = await stable_member(home, ReplyResults())
        coordinator = await home.reopen()
        with pytest.raises(BrokerError) as refused:
            coordinator.offsets("g")
        assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert coordinator.heartbeat("g", member_id, None, 1) == ErrorCode.NONE
        assert coordinator.heartbeat("g", "nobody", None, 1) == ErrorCode.NONE
        await loaded(home)
        assert coordinator.heartbeat("g", member_id, None, 1) == ErrorCode.NONE
        assert coordinator.heartbeat("g", "nobody", None, 1) == ErrorCode.UNKNOWN_MEMBER_ID

    run(tmp_path, body)


def test_members_and_their_assignment_survive_a_restart(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        member_id = await stable_member(home, ReplyResults())
        coordinator = await home.reopen()
        await loaded(home)
        assert coordinator.heartbeat("g", member_id, None, 1) == ErrorCode.NONE
        home.pass_time(9999)
        assert coordinator.heartbeat("g", member_id, None, 1) == ErrorCode.NONE
        home.pass_time(10_001)
        assert coordinator.heartbeat("g", member_id, None, 1) == ErrorCode.UNKNOWN_MEMBER_ID

    run(tmp_path, body)


def test_requests_that_no_group_can_serve(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        join(home, responses, "no id", group_id="")
        join(home, responses, "short", session_timeout_ms=5999)
        join(home, responses, "long", session_timeout_ms=1_800_001)
        join(home, responses, "unknown", "somebody")
        coordinator = home.coordinator
        coordinator.sync(SyncGroupRequest(group_id="g"), responses.reply("sync"))
        coordinator.leave("g", [LeaveGroupRequest.Member()], responses.reply("leave"))
        coordinator.commit(commit_of("g", ("t", 0, 1), generation=1), responses.reply("commit"))
        coordinator.delete_group("g", responses.reply("delete"))
        coordinator.delete_offsets("g", [("t", 0)], responses.reply("delete offsets"))
        assert responses.got == {
            "no id": ErrorCode.INVALID_GROUP_ID,
            "short": ErrorCode.INVALID_SESSION_TIMEOUT,
            "long": ErrorCode.INVALID_SESSION_TIMEOUT,
            "unknown": ErrorCode.UNKNOWN_MEMBER_ID,
            "sync": ErrorCode.UNKNOWN_MEMBER_ID,
            "leave": ErrorCode.UNKNOWN_MEMBER_ID,
            "commit": ErrorCode.GROUP_ID_NOT_FOUND,
            "delete": ErrorCode.GROUP_ID_NOT_FOUND,
            "delete offsets": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        assert coordinator.heartbeat("g", "m", None, 1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert not coordinator.offsets("g")
        assert list(home.shards.all_groups()) == []
        assert home.end_offsets() == 0

    run(tmp_path, body)


def test_a_rejected_commit_changes_nothing(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        member_id = await stable_member(home, responses)
        before = home.end_offsets()
        stale = commit_of("g", ("t", 0, 5), member_id=member_id, generation=0)
        home.coordinator.commit(stale, responses.reply("stale"))
        home.coordinator.commit(commit_of("g", ("t", 0, 5)), responses.reply("unknown"))
        assert responses.got["stale"] == ErrorCode.ILLEGAL_GENERATION
        assert responses.got["unknown"] == ErrorCode.UNKNOWN_MEMBER_ID
        current = commit_of("g", ("t", 0, 6), member_id=member_id, generation=1)
        home.coordinator.commit(current, responses.reply("current"))
        await turns(3)
        assert responses.got["current"] is None
        assert offset_of(home.coordinator, "g", "t", 0) == 6
        assert home.end_offsets() == before + 1

    run(tmp_path, body)


def test_state_whose_append_failed_is_reloaded_from_the_log(
    tmp_path: Path, monkeypatch: Any
) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        home.coordinator.commit(commit_of("g", ("t", 0, 5)), responses.reply("before"))
        await turns(3)
        partition = home.partition(partition_of("g", PARTITION_COUNT))

        def fail(*_: object, **__: object) -> None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(type(partition), "append", fail)
            home.coordinator.commit(commit_of("g", ("t", 0, 6)), responses.reply("lost"))
            join(home, responses, "waiting")
            await turns(3)
        assert responses.got["lost"] == ErrorCode.NOT_COORDINATOR
        assert responses.got["waiting"].error_code == ErrorCode.NOT_COORDINATOR
        await loaded(home)
        assert offset_of(home.coordinator, "g", "t", 0) == 5
        home.coordinator.commit(commit_of("g", ("t", 0, 7)), responses.reply("after"))
        await turns(3)
        assert responses.got["after"] is None

    run(tmp_path, body)


def test_no_reply_is_delivered_before_its_records_are_committed(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        home.apply_image(home.picture(isr=(1, 2), epoch=1))
        responses = ReplyResults()
        coordinator = home.coordinator
        coordinator.commit(commit_of("g", ("t", 0, 5)), responses.reply("commit"))
        await turns(3)
        coordinator.respond("g", responses.reply("read"), "a response made of it")
        await turns(3)
        assert responses.got == {}
        partition = home.partition(partition_of("g", PARTITION_COUNT))
        assert partition.leadership is not None
        follower = partition.leadership.followers[2]
        end_offset = partition.log.log_end_offset
        follower.fetched(FollowerFetch(2, 1, end_offset, 0, 0.0), end_offset)
        partition.advance_high_watermark()
        assert responses.got == {"commit": None, "read": "a response made of it"}
        coordinator.commit(commit_of("g", ("t", 0, 6)), responses.reply("too late"))
        await turns(3)
        home.apply_image(home.picture(leader=2, isr=(1, 2), epoch=2))
        assert responses.got["too late"] == ErrorCode.NOT_COORDINATOR

    run(tmp_path, body)


def test_a_commit_times_out_if_replicas_do_not_fetch(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        home.apply_image(home.picture(isr=(1, 2), epoch=1))
        response: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        reply: Reply[Any] = Reply(
            ReplyKind.OFFSET_COMMIT, CallbackFailures(), response.set_result, response.set_result
        )
        home.coordinator.commit(commit_of("g", ("t", 0, 5)), reply)
        assert await asyncio.wait_for(response, 90) == ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(
        tmp_path, body, options=GroupCoordinatorOptions(journal=JournalOptions(commit_timeout_ms=1))
    )


def test_a_group_that_moves_away_and_comes_back(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        member_id = await stable_member(home, responses)
        join(home, responses, "newcomer")
        assert "newcomer" not in responses.got
        home.apply_image(home.picture(leader=2, isr=(1, 2), epoch=1))
        assert responses.got["newcomer"].error_code == ErrorCode.NOT_COORDINATOR
        code = home.coordinator.heartbeat("g", member_id, None, 1)
        assert code == ErrorCode.NOT_COORDINATOR
        assert len(home.shards._timers) == 0
        home.apply_image(home.picture(epoch=2))
        await loaded(home)
        assert home.coordinator.heartbeat("g", member_id, None, 1) == ErrorCode.NONE
        home.apply_image(ClusterImage())
        code = home.coordinator.heartbeat("g", member_id, None, 1)
        assert code == ErrorCode.NOT_COORDINATOR

    run(tmp_path, body)


def test_offsets_of_a_deleted_topic_are_deleted(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        home.apply_image(home.picture(t=1, u=1))
        responses = ReplyResults()
        home.coordinator.commit(commit_of("g", ("t", 0, 1), ("u", 0, 2)), responses.reply("it"))
        await turns(3)
        home.apply_image(home.picture(u=1))
        await turns(3)
        coordinator = await home.reopen()
        await loaded(home)
        assert offset_of(coordinator, "g", "t", 0) is None
        assert offset_of(coordinator, "g", "u", 0) == 2

    run(tmp_path, body)


def test_a_group_expires_with_its_last_offset(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        commit = commit_of("g", ("t", 0, 1), ("t", 1, 1))
        home.coordinator.commit(commit, responses.reply("it"))
        # The offsets were committed in 1970.
        assert await home.shards.expire_offsets() == 2
        await turns(3)
        assert list(home.shards.all_groups()) == []
        await home.reopen()
        await loaded(home)
        assert list(home.shards.all_groups()) == []
        assert await home.shards.expire_offsets() == 0

    run(tmp_path, body)


def test_a_group_with_members_keeps_its_offsets(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        member_id = await stable_member(home, responses)
        fields: dict[str, Any] = {"member_id": member_id, "generation": 1}
        commit = commit_of("g", ("t", 0, 1), ("other", 0, 1), **fields)
        home.coordinator.commit(commit, responses.reply("commit"))
        home.coordinator.delete_group("g", responses.reply("delete"))
        assert responses.got["delete"] == ErrorCode.NON_EMPTY_GROUP
        places = [("t", 0), ("other", 0)]
        home.coordinator.delete_offsets("g", places, responses.reply("delete offsets"))
        await turns(3)
        assert responses.got["delete offsets"] == [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ErrorCode.NONE,
        ]
        assert await home.shards.expire_offsets() == 0
        leaving = [LeaveGroupRequest.Member(member_id=member_id)]
        home.coordinator.leave("g", leaving, responses.reply("leave"))
        assert await home.shards.expire_offsets() == 0, "only after the retention"
        home.pass_time(RETENTION_MS + 1)
        assert await home.shards.expire_offsets() == 1
        assert home.coordinator.find("g") is None

    run(tmp_path, body)


def test_a_deleted_group_leaves_nothing_behind(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        member_id = await stable_member(home, responses)
        fields: dict[str, Any] = {"member_id": member_id, "generation": 1}
        commit = commit_of("g", ("t", 0, 1), **fields)
        home.coordinator.commit(commit, responses.reply("commit"))
        leaving = [LeaveGroupRequest.Member(member_id=member_id)]
        home.coordinator.leave("g", leaving, responses.reply("leave"))
        home.coordinator.delete_group("g", responses.reply("delete"))
        await turns(3)
        assert responses.got["delete"] is None
        assert home.coordinator.find("g") is None
        coordinator = await home.reopen()
        await loaded(home)
        assert coordinator.find("g") is None
        assert not coordinator.offsets("g")

    run(tmp_path, body)


def test_failed_joins_leave_no_group(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        for number in range(500):
            responses = ReplyResults()
            request = JoinGroupRequest(
                group_id=f"g{number}",
                session_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequest.Protocol(name="range")],
            )
            caller = Caller("c", "/127.0.0.1", 9)
            home.coordinator.join(request, caller, responses.reply())
            assert responses.got["it"].error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert len(list(home.shards.all_groups())) == 500
        while home.shards._timers:
            home.pass_time(10_001)
        assert list(home.shards.all_groups()) == []
        assert home.end_offsets() == 0

    run(tmp_path, body)


def test_a_damaged_record_is_skipped(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        home.coordinator.commit(commit_of("g", ("t", 0, 1)), responses.reply("one"))
        await turns(3)
        shard = home.shards.of("g")
        records: list[tuple[bytes, bytes | None]] = [
            (b"\0\1\0", b"x"),
            (b"\0\2\0\1g", b"\0\x09?"),
            (b"\x7f\0", b"unknown kind"),
            (b"", b""),
        ]
        shard.carry_out("g", Effects(records=records))
        home.coordinator.commit(commit_of("g", ("t", 1, 2)), responses.reply("two"))
        await turns(3)
        coordinator = await home.reopen()
        await loaded(home)
        assert offset_of(coordinator, "g", "t", 0) == 1
        assert offset_of(coordinator, "g", "t", 1) == 2

    run(tmp_path, body)


def consumer_heartbeat(home: GroupHome, responses: ReplyResults, name: str, epoch: int = 0) -> None:
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="new", member_epoch=epoch)
    if epoch == 0:
        request.rebalance_timeout_ms = 30_000
        request.subscribed_topic_names = ["t"]
        request.topic_partitions = []
    home.coordinator.consumer_heartbeat(
        request, Caller("c", "/127.0.0.1", 1), responses.reply(name)
    )


def test_a_group_that_changed_its_protocol_survives_a_restart(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        home.apply_image(home.picture(t=2))
        responses = ReplyResults()
        member_id = await stable_member(home, responses)
        consumer_heartbeat(home, responses, "up")
        await turns(3)
        assert responses.got["up"].error_code == ErrorCode.NONE
        coordinator = await home.reopen()
        await loaded(home)
        group = coordinator.find("g")
        assert isinstance(group, ConsumerGroup)
        assert set(group.state.members) == {member_id, "new"}
        consumer_heartbeat(home, responses, "down", epoch=-1)
        await turns(3)
        coordinator = await home.reopen()
        await loaded(home)
        classic = coordinator.find("g")
        assert isinstance(classic, ClassicGroup)
        assert list(classic.roster.members) == [member_id]

    run(tmp_path, body)


def test_a_protocol_change_that_the_settings_forbid_is_rejected(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        await stable_member(home, responses)
        consumer_heartbeat(home, responses, "up")
        assert responses.got["up"] == ErrorCode.GROUP_ID_NOT_FOUND

    settings = GroupSettings(
        classic=ClassicGroupSettings(initial_rebalance_delay_ms=0), allows_upgrade=False
    )
    run(tmp_path, body, options=GroupCoordinatorOptions(groups=settings))


def test_an_empty_group_is_replaced_by_one_of_the_other_protocol(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        home.apply_image(home.picture(t=2))
        responses = ReplyResults()
        home.coordinator.commit(commit_of("g", ("t", 0, 5)), responses.reply("commit"))
        consumer_heartbeat(home, responses, "join")
        consumer_heartbeat(home, responses, "leave", epoch=-1)
        await turns(3)
        assert isinstance(home.coordinator.find("g"), ConsumerGroup)
        await stable_member(home, responses)
        coordinator = await home.reopen()
        await loaded(home)
        assert isinstance(coordinator.find("g"), ClassicGroup)
        assert offset_of(coordinator, "g", "t", 0) == 5

    run(tmp_path, body)


# Transactions


async def commit_pending(
    home: GroupHome, group_id: str, producer: ProducerIdAndEpoch, offset: int
) -> None:
    responses = ReplyResults()
    commit = commit_of(group_id, ("t", 0, offset), producer=producer)
    home.coordinator.commit(commit, responses.reply())
    await turns(3)
    assert responses.got == {"it": None}


async def complete_transaction(
    home: GroupHome, producer: ProducerIdAndEpoch, *, is_commit: bool
) -> None:
    responses = ReplyResults()
    for index in range(PARTITION_COUNT):
        end = TransactionEnd(producer, is_commit, coordinator_epoch=0)
        home.coordinator.end_transaction(index, end, responses.reply(str(index)))
    await turns(3)
    assert set(responses.got.values()) == {None}


def test_offsets_of_a_transaction_are_committed_by_its_marker(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        await commit_pending(home, "g", ProducerIdAndEpoch(7, 0), 10)
        await commit_pending(home, "h", ProducerIdAndEpoch(8, 0), 20)
        await commit_pending(home, "i", ProducerIdAndEpoch(9, 0), 30)
        assert [offset_of(home.coordinator, name, "t", 0) for name in "ghi"] == [None] * 3
        await home.reopen()
        await loaded(home)
        assert home.coordinator.offsets("g").is_unstable("t", 0)
        await complete_transaction(home, ProducerIdAndEpoch(7, 0), is_commit=True)
        await complete_transaction(home, ProducerIdAndEpoch(8, 0), is_commit=False)
        expected = [10, None, None]
        assert [offset_of(home.coordinator, name, "t", 0) for name in "ghi"] == expected
        assert home.coordinator.find("h") is None, "there is nothing left of it"
        assert home.coordinator.find("i") is not None
        await home.reopen()
        await loaded(home)
        assert [offset_of(home.coordinator, name, "t", 0) for name in "ghi"] == expected
        assert home.coordinator.offsets("i").is_unstable("t", 0)

    run(tmp_path, body)


def test_offsets_of_different_transactions_share_no_batch(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        for number, producer in enumerate(
            (None, ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(8, 0))
        ):
            commit = commit_of("g", ("t", number, number), producer=producer)
            home.coordinator.commit(commit, responses.reply(str(number)))
        await turns(3)
        partition = home.partition(partition_of("g", PARTITION_COUNT))
        data = partition.log.read(0, 1 << 20, 100, True).read()
        found = [
            (header.producer_id, header.producer_epoch, header.is_transactional, header.count)
            for _, header in iterate_batches(data, verify_crc=True)
        ]
        assert found == [(-1, -1, False, 1), (7, 3, True, 2), (8, 0, True, 1)]

    run(tmp_path, body)


def test_a_fenced_producer_commits_no_offsets(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        await commit_pending(home, "g", ProducerIdAndEpoch(7, 1), 10)
        late = commit_of("g", ("t", 0, 5), producer=ProducerIdAndEpoch(7, 0))
        home.coordinator.commit(late, responses.reply("late"))
        await turns(3)
        assert responses.got == {"late": ErrorCode.INVALID_PRODUCER_EPOCH}
        await loaded(home)
        assert home.coordinator.offsets("g").is_unstable("t", 0)
        await complete_transaction(home, ProducerIdAndEpoch(7, 1), is_commit=True)
        assert offset_of(home.coordinator, "g", "t", 0) == 10

    run(tmp_path, body)


def test_a_fenced_broker_coordinates_nothing_and_reloads_afterwards(tmp_path: Path) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        home.coordinator.commit(commit_of("g", ("t", 0, 5)), responses.reply())
        await turns(3)
        home.apply_image(home.picture(isr=(1, 2), epoch=1))
        await loaded(home)
        assert offset_of(home.coordinator, "g", "t", 0) == 5
        home.replicas.fence(True)
        home.shards.match_leadership(home.image)
        with pytest.raises(BrokerError) as refused:
            home.coordinator.offsets("g")
        assert refused.value.code == ErrorCode.NOT_COORDINATOR
        home.replicas.fence(False)
        home.shards.match_leadership(home.image)
        with pytest.raises(BrokerError) as refused:
            home.coordinator.offsets("g")
        assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await loaded(home)
        assert offset_of(home.coordinator, "g", "t", 0) == 5

    run(tmp_path, body)


# Timers

SLOW_JOIN = GroupCoordinatorOptions(
    groups=GroupSettings(
        classic=ClassicGroupSettings(
            initial_rebalance_delay_ms=0, new_member_join_timeout_ms=30_001
        )
    ),
    journal=JournalOptions(commit_timeout_ms=60_000),
)


def test_a_member_that_has_just_joined_survives_many_due_timers(
    tmp_path: Path,
) -> None:
    """After a stall many timers are due. The first one expires the session of the other member,
    which completes the join; the later timers belong to the state before."""

    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        gone = await stable_member(home, responses)
        join(home, responses, "newcomer")
        await turns(3)
        assert "newcomer" not in responses.got
        home.pass_time(30_005)
        await turns(3)
        joined = responses.got["newcomer"]
        assert (joined.error_code, joined.leader) == (0, joined.member_id)
        (group,) = home.shards.all_groups()
        assert isinstance(group, ClassicGroup)
        assert list(group.roster.members) == [joined.member_id] != [gone]

    run(tmp_path, body, options=SLOW_JOIN)


def test_a_stalled_broker_reads_heartbeats_before_sessions_expire(
    tmp_path: Path,
) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        member_id = await stable_member(home, responses)
        (group,) = home.shards.all_groups()
        assert isinstance(group, ClassicGroup)

        def stand_still(ms: int) -> None:
            home.clock.now_ms += ms
            home.shards._woken()

        stand_still(30_005)
        assert list(group.roster.members) == [member_id]
        assert home.coordinator.heartbeat("g", member_id, None, 1) == ErrorCode.NONE
        home.clock.now_ms += 105
        home.shards._woken()
        assert list(group.roster.members) == [member_id]
        # Without a heartbeat the session is prolonged only once.
        stand_still(30_005)
        stand_still(30_005)
        assert group.is_empty

    run(tmp_path, body)


def test_a_timer_that_raises_is_retried_and_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(home: GroupHome) -> None:
        responses = ReplyResults()
        for group_id in ("bad", "good"):
            join(home, responses, group_id, group_id=group_id)
        home.pass_time(1)
        await turns(3)
        expire = ClassicGroup.expire
        fails = True

        def raise_for_one(self: ClassicGroup, now_ms: int, key: tuple[str, str]) -> Effects:
            if fails and self.group_id == "bad":
                raise RuntimeError("a bug")
            return expire(self, now_ms, key)

        def is_empty(group_id: str) -> bool:
            return home.shards.of(group_id).groups[group_id].is_empty

        monkeypatch.setattr(ClassicGroup, "expire", raise_for_one)
        home.pass_time(10_001)
        assert (is_empty("bad"), is_empty("good")) == (False, True)
        assert home.replicas.failures.counts[CallbackKind.TIMER] == 1
        fails = False
        home.pass_time(5001)
        assert is_empty("bad")

    run(tmp_path, body)
