"""Effects of the settings for groups, offsets and transactions, of brokers and groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from harness.raw.raw_client import produce_request
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.log.log import PartitionLog
from millstream.records.batch import scan
from millstream.transactions.state_topic import TRANSACTIONS_TOPIC
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.list_transactions import ListTransactionsRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest
from settings.effect import GROUP_EFFECTS, Effect, Scenario, broker_effect
from settings.world import GROUP, World

MEMBER_ID_REQUIRED = 79
#: A subscription to the topic t.
_SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"


async def join(world: World, session_timeout_ms: int = 10_000) -> Any:
    """Let a member join the classic group `g`; return the last response."""
    protocol = JoinGroupRequest.Protocol(name="range", metadata=_SUBSCRIPTION)
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=1000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    response = await world.call(request)
    if response.error_code == MEMBER_ID_REQUIRED:
        request.member_id = response.member_id
        response = await world.call(request)
    return response


async def heartbeat(world: World, member_id: str = "m", epoch: int = 0, **fields: Any) -> Any:
    """Return the response to a heartbeat in the consumer group `g`; epoch 0 joins."""
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch)
    if epoch == 0:
        request.rebalance_timeout_ms = 60_000
        request.subscribed_topic_names = ["t"]
        request.topic_partitions = []
    for name, value in fields.items():
        setattr(request, name, value)
    return await world.call(request)


async def group_world(world: World, **settings: str) -> None:
    await world.broker(**settings)
    await world.topic()
    await world.coordinator()
    await world.change(GROUP, "g", world.given.group_change)


@broker_effect("group.min.session.timeout.ms", 6000, 20_000)
async def _sessions_are_long_enough(world: World) -> object:
    await group_world(world)
    return (await join(world)).error_code


@broker_effect("group.max.session.timeout.ms", 60_000, 8000)
async def _sessions_are_short_enough(world: World) -> object:
    await group_world(world)
    return (await join(world)).error_code


@broker_effect("group.initial.rebalance.delay.ms", 0, 5000)
async def _a_new_group_waits_for_members(world: World) -> object:
    await group_world(world)
    begun = world.loop.time()
    await join(world)
    return world.loop.time() - begun > 1


@broker_effect("group.max.size", 1, 10)
async def _members_of_a_group(world: World) -> object:
    await group_world(world)
    await join(world)
    return (await join(world)).error_code


# The consumer protocol


async def _is_fenced(world: World) -> object:
    await group_world(world)
    joined = await heartbeat(world)
    await asyncio.sleep(50)
    return (await heartbeat(world, epoch=joined.member_epoch)).error_code


broker_effect("group.consumer.session.timeout.ms", 45_000, 55_000)(_is_fenced)


async def _interval(world: World) -> object:
    await group_world(world)
    return (await heartbeat(world)).heartbeat_interval_ms


broker_effect("group.consumer.heartbeat.interval.ms", 5000, 6000)(_interval)


async def _assignment_waits(world: World) -> object:
    """Return whether a member that joins a large group has partitions a second later."""
    await group_world(world)
    for number in range(105):
        await heartbeat(world, f"m{number}")
    await asyncio.sleep(1)
    (group,) = (await world.call(ConsumerGroupDescribeRequest(group_ids=["g"]))).groups
    return group.assignment_epoch == group.group_epoch


broker_effect("group.consumer.assignment.interval.ms", 0, 15_000)(_assignment_waits)


def _bound(setting: str, first: int, second: int, own: str) -> None:
    """Register a broker's limit on a group setting; `own` is allowed by the first limit only."""

    @broker_effect(f"group.consumer.{setting}", first, second)
    async def is_allowed(world: World) -> object:
        await group_world(world)
        name = "consumer." + setting.removeprefix("min.").removeprefix("max.")
        return await world.change(GROUP, "g", {name: own})


_bound("min.session.timeout.ms", 45_000, 55_000, "50000")
_bound("max.session.timeout.ms", 60_000, 46_000, "50000")
_bound("min.heartbeat.interval.ms", 5000, 7000, "6000")
_bound("max.heartbeat.interval.ms", 15_000, 5500, "6000")
_bound("min.assignment.interval.ms", 0, 2000, "1500")
_bound("max.assignment.interval.ms", 15_000, 1200, "1500")


@broker_effect("group.consumer.max.size", 1, 10)
async def _members_of_a_consumer_group(world: World) -> object:
    await group_world(world)
    await heartbeat(world, "a")
    return (await heartbeat(world, "b")).error_code


@broker_effect("group.consumer.assignors", "uniform,range", "range")
async def _assignors_on_offer(world: World) -> object:
    await group_world(world)
    return (await heartbeat(world, server_assignor="uniform")).error_code


@broker_effect("group.consumer.migration.policy", "bidirectional", "disabled")
async def _groups_change_their_protocol(world: World) -> object:
    await group_world(world)
    await join(world)
    return (await heartbeat(world)).error_code


def _group_effect(name: str, first: int, second: int, scenario: Scenario) -> None:
    GROUP_EFFECTS[name] = Effect(scenario, (str(first), str(second)))


_group_effect("consumer.session.timeout.ms", 45_000, 55_000, _is_fenced)
_group_effect("consumer.heartbeat.interval.ms", 5000, 6000, _interval)
_group_effect("consumer.assignment.interval.ms", 0, 15_000, _assignment_waits)


# Committed offsets


async def commit(world: World, metadata: str = "") -> int:
    rows = OffsetCommitRequest.Topic
    row = rows.Partition(partition_index=0, committed_offset=1, committed_metadata=metadata)
    request = OffsetCommitRequest(group_id="g", topics=[rows(name="t", partitions=[row])])
    response = await world.call(request, 9)
    return int(response.topics[0].partitions[0].error_code)


async def committed(world: World) -> int:
    rows = OffsetFetchRequest.Group
    group = rows(group_id="g", topics=[rows.Topic(name="t", partition_indexes=[0])])
    response = await world.call(OffsetFetchRequest(groups=[group]), 9)
    return int(response.groups[0].topics[0].partitions[0].committed_offset)


@broker_effect("offset.metadata.max.bytes", 10, 4096)
async def _text_with_an_offset(world: World) -> object:
    await group_world(world)
    return await commit(world, "x" * 100)


@broker_effect("offsets.commit.timeout.ms", 1000, 20_000)
async def _a_commit_waits_for_replicas(world: World) -> object:
    settings = {"offsets_topic_replication_factor": "2", "replica_lag_time_max_ms": "600000"}
    await world.brokers(2, **settings)
    await world.topic(replicas=[1])
    await world.coordinator()
    image = world.services().catalog.image
    leader = image.topics[OFFSETS_TOPIC].partitions[0].leader
    request = OffsetCommitRequest(group_id="g", topics=_rows())
    other = world.processes[3 - leader]
    await asyncio.sleep(2)
    other.hold()
    begun = world.loop.time()
    await world.call(request, 9, leader)
    other.release()
    return world.loop.time() - begun > 10


def _rows() -> list[OffsetCommitRequest.Topic]:
    rows = OffsetCommitRequest.Topic
    return [rows(name="t", partitions=[rows.Partition(partition_index=0, committed_offset=1)])]


@contextmanager
def reads(topic: str) -> Iterator[list[int]]:
    """Collect the sizes of the reads from a topic."""
    sizes: list[int] = []
    original = PartitionLog.read

    def read(self: PartitionLog, offset: int, bytes_max: int, *rest: Any, **named: Any) -> Any:
        if self.topic_partition.topic == topic:
            sizes.append(bytes_max)
        return original(self, offset, bytes_max, *rest, **named)

    with mock.patch.object(PartitionLog, "read", read):
        yield sizes


@broker_effect("offsets.load.buffer.size", 100, 10_000)
async def _offsets_are_read_in_pieces(world: World) -> object:
    await group_world(world)
    await commit(world)
    await world.stop()
    with reads(OFFSETS_TOPIC) as sizes:
        await world.start(1)
        await world.coordinator()
        assert await committed(world) == 1
    return max(sizes)


_CHECK_OFTEN = {"offsets_retention_check_interval_ms": "1000", "offsets_retention_minutes": "1"}


async def _offset_is_kept(world: World) -> object:
    await group_world(world, **_CHECK_OFTEN)
    await commit(world)
    await asyncio.sleep(100)
    return await committed(world)


broker_effect("offsets.retention.minutes", 1, 10_000)(_offset_is_kept)
broker_effect("offsets.retention.check.interval.ms", 1000, 10**9)(_offset_is_kept)


@broker_effect("offsets.topic.compression.codec", 0, 1)
async def _offsets_are_compressed(world: World) -> object:
    await group_world(world)
    await commit(world, "x" * 1000)
    log = world.log(OFFSETS_TOPIC)
    data = log.read(0, 1 << 20, log.log_end_offset, True).read()
    return [header.codec for _, header in scan(data)]


def _internal(name: str, first: object, second: object, topic: str, what: str) -> None:
    """Register a setting of an internal topic, which is observed in the topic."""

    @broker_effect(name, first, second)
    async def made(world: World) -> object:
        await world.brokers(2)
        await world.coordinator("x", int(topic == TRANSACTIONS_TOPIC))
        record = world.services().catalog.image.topics[topic]
        if what == "partitions":
            return len(record.partitions)
        if what == "replicas":
            return len(record.partitions[0].replicas)
        return record.configs[what]


_internal("offsets.topic.num.partitions", 1, 3, OFFSETS_TOPIC, "partitions")
_internal("offsets.topic.replication.factor", 1, 2, OFFSETS_TOPIC, "replicas")
_internal("offsets.topic.segment.bytes", 1000, 2000, OFFSETS_TOPIC, "segment.bytes")
_STATE = "transaction.state.log"
_internal(f"{_STATE}.num.partitions", 1, 3, TRANSACTIONS_TOPIC, "partitions")
_internal(f"{_STATE}.replication.factor", 1, 2, TRANSACTIONS_TOPIC, "replicas")
_internal(f"{_STATE}.segment.bytes", 1000, 2000, TRANSACTIONS_TOPIC, "segment.bytes")
_internal(f"{_STATE}.min.isr", 1, 2, TRANSACTIONS_TOPIC, "min.insync.replicas")


# Transactions


async def init(world: World, version: int = 6, **fields: Any) -> Any:
    fields.setdefault("transaction_timeout_ms", 60_000)
    return await world.call(InitProducerIdRequest(transactional_id="x", **fields), version)


async def transaction_world(world: World, **settings: str) -> None:
    await world.broker(**settings)
    await world.topic()
    await world.coordinator("x", 1)


@broker_effect("transaction.version", 2, 1)
async def _the_version_in_responses(world: World) -> object:
    await world.broker()
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = await world.call(request, 4)
    levels = {each.name: each.max_version_level for each in response.finalized_features}
    return levels.get("transaction.version")


@broker_effect("transaction.max.timeout.ms", 900_000, 1000)
async def _timeouts_of_transactions(world: World) -> object:
    await transaction_world(world)
    return (await init(world)).error_code


@broker_effect("transaction.two.phase.commit.enable", "true", "false")
async def _transactions_are_prepared(world: World) -> object:
    await transaction_world(world)
    return (await init(world, enable_2pc=True)).error_code


@broker_effect("transaction.partition.verification.enable", "true", "false")
async def _partitions_ask_the_coordinator(world: World) -> object:
    await transaction_world(world)
    producer = await init(world, 4)
    data = world.now_batch(
        b"v",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    request = produce_request("t", data)
    request.transactional_id = "x"
    response = await world.call(request, 11)
    return response.responses[0].partition_responses[0].error_code


async def _id_is_known(world: World) -> object:
    often = {"transaction_remove_expired_transaction_cleanup_interval_ms": "1000"}
    await transaction_world(world, transactional_id_expiration_ms="60000", **often)
    await init(world)
    await asyncio.sleep(100)
    return len((await world.call(ListTransactionsRequest())).transaction_states)


broker_effect("transactional.id.expiration.ms", 60_000, 10**9)(_id_is_known)
broker_effect("transaction.remove.expired.transaction.cleanup.interval.ms", 1000, 10**9)(
    _id_is_known
)


@broker_effect("transaction.state.log.load.buffer.size", 100, 10_000)
async def _ids_are_read_in_pieces(world: World) -> object:
    await transaction_world(world)
    assert (await init(world)).error_code == 0
    await world.stop()
    with reads(TRANSACTIONS_TOPIC) as sizes:
        await world.start(1)
        await world.coordinator("x", 1)
        assert len((await world.call(ListTransactionsRequest())).transaction_states) == 1
    return max(sizes)
