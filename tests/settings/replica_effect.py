"""Effects of the broker settings for replication and elections."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

from harness.raw.raw_client import fetch_request
from millstream.replication.follower.fetcher import ReplicaFetcher
from millstream.wire.framing import parse_request_header
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from millstream.wire.messages.fetch import FetchRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.schema import codec
from settings.effect import broker_effect
from settings.topic_effect import catches_up, state
from settings.world import World

# Followers


def _fetch_requests(world: World) -> list[FetchRequest]:
    """Return the last Fetch requests of broker 2 to broker 1."""
    found = []
    for _, data in world.wire.sent["broker-2", "broker-1"]:
        header = parse_request_header(data, 4)
        if header.api_key == FetchRequest.api_key:
            found.append(codec(FetchRequest, header.api_version).decode(data, header.body_position))
    return found


async def _followed(world: World, count: int = 0) -> FetchRequest:
    await world.brokers(2)
    await world.topic(replicas=[1, 2])
    await world.fill(count)
    await asyncio.sleep(2)
    return _fetch_requests(world)[-1]


@broker_effect("replica.fetch.response.max.bytes", 1000, 2000)
async def _bytes_of_one_response(world: World) -> object:
    return (await _followed(world)).max_bytes


@broker_effect("replica.fetch.min.bytes", 1, 10)
async def _bytes_that_leaders_wait_for(world: World) -> object:
    return (await _followed(world)).min_bytes


@broker_effect("replica.fetch.wait.max.ms", 500, 300)
async def _time_that_leaders_wait(world: World) -> object:
    return (await _followed(world)).max_wait_ms


@broker_effect("replica.fetch.max.bytes", 1, 10**6)
async def _bytes_of_one_partition(world: World) -> object:
    await world.brokers(2, min_insync_replicas="1")
    await world.topic(replicas=[1, 2])
    await world.kill(2)
    await world.until(lambda: len(state(world).isr) == 1, "the follower to be missed")
    for _ in range(10):
        await world.produce(world.now_batch(bytes(1000)), acks=1)
    sizes: list[int] = []
    original = ReplicaFetcher._append

    def append(self: Any, partition: Any, row: Any) -> int:
        sizes.append(len(row.records or b""))
        return original(self, partition, row)

    with mock.patch.object(ReplicaFetcher, "_append", append):
        await world.start(2)
        await asyncio.sleep(3)
    return max(sizes) > 2000


@broker_effect("replica.fetch.backoff.ms", 100, 10**6)
async def _followers_rest(world: World) -> object:
    await world.brokers(2)
    await world.topic(replicas=[1, 2])
    await asyncio.sleep(1)
    (fetcher,) = world.services(2).replicator._pool._fetchers.values()
    # The backoff grows with consecutive failures, up to the setting.
    return fetcher._pause_s(10)


@broker_effect("replica.socket.timeout.ms", 2000, 10**6)
async def _leaders_are_given_up(world: World) -> object:
    await world.brokers(2)
    await world.topic(replicas=[1, 2])
    await asyncio.sleep(1)
    world.processes[1].hold()
    await asyncio.sleep(10)
    failures = world.services(2).replicator.stats.connection_failures
    world.processes[1].release()
    return failures > 0


@broker_effect("replica.lag.time.max.ms", 1000, 10**6)
async def _followers_fall_out_of_sync(world: World) -> object:
    await world.brokers(2)
    await world.topic(replicas=[1, 2])
    world.processes[2].hold()
    await asyncio.sleep(1)
    await world.produce(world.now_batch(b"v"), acks=1)
    await asyncio.sleep(10)
    isr = state(world).isr
    world.processes[2].release()
    return isr


@broker_effect("replica.selector.class", "", "rack")
async def _consumers_read_nearby(world: World) -> object:
    await world.start(1, broker_rack="a")
    await world.start(2, broker_rack="b")
    await asyncio.sleep(1)
    await world.topic(replicas=[1, 2])
    await world.fill(2)
    request = fetch_request([("t", 0, 0)], rack_id="b", max_wait_ms=0)
    response = await world.call(request, 12)
    return response.responses[0].partitions[0].preferred_read_replica


@broker_effect("num.replica.fetchers", 1, 3)
async def _connections_to_a_leader(world: World) -> object:
    await world.brokers(2)
    await world.topic(partitions=9, replicas=[1, 2])
    await asyncio.sleep(3)
    for number in range(9):
        row = await world.produce(world.now_batch(b"v"), partition=number)
        assert row.error_code == 0, row
    return len(world.services(2).replicator._pool._fetchers)


@broker_effect("replica.catch.up.rate", 1000, 10**9)
async def _followers_catch_up_slowly(world: World) -> object:
    await world.brokers(2, min_insync_replicas="1")
    await world.topic(replicas=[1, 2])
    await world.kill(2)
    await world.until(lambda: len(state(world).isr) == 1, "the follower to be missed")
    for _ in range(100):
        await world.produce(world.now_batch(bytes(1000)), acks=1)
    await world.start(2, min_insync_replicas="1")
    for _ in range(20):
        await world.produce(world.now_batch(bytes(100)), acks=1)
        await asyncio.sleep(0.1)
    return world.log(node_id=2).log_end_offset > 100


def _named_rate(side: str) -> None:
    @broker_effect(f"{side}.replication.throttled.rate", 10**9, 1)
    async def named(world: World) -> object:
        return await catches_up(world, {f"{side}.replication.throttled.replicas": "*"})

    @broker_effect(f"{side}.reassignment.throttled.rate", 10**9, 1)
    async def moving(world: World) -> object:
        await world.brokers(2, replica_fetch_max_bytes="1")
        await world.topic(replicas=[1])
        for _ in range(10):
            await world.produce(world.now_batch(bytes(1000)))
        rows = AlterPartitionReassignmentsRequest.Topic
        where = rows.Partition(partition_index=0, replicas=[1, 2])
        topic = rows(name="t", partitions=[where])
        await world.call(AlterPartitionReassignmentsRequest(topics=[topic]))
        await asyncio.sleep(3)
        return world.log(node_id=2).log_end_offset


_named_rate("leader")
_named_rate("follower")


# The controller


async def _leader_after_a_restart(world: World, **settings: str) -> int:
    """Return the leader of a partition after a restart of its preferred leader."""
    given = {
        "auto_leader_rebalance_enable": "true",
        "leader_imbalance_check_interval_seconds": "5",
        **settings,
    }
    await world.brokers(2, **given)
    await world.topic(replicas=[2, 1])
    await world.kill(2)
    await world.until(lambda: state(world).leader == 1, "another leader")
    await world.start(2, **given)
    await world.until(lambda: len(state(world).isr) == 2, "the replica to be in sync")
    await asyncio.sleep(20)
    return int(state(world).leader)


broker_effect("auto.leader.rebalance.enable", "true", "false")(_leader_after_a_restart)
broker_effect("leader.imbalance.check.interval.seconds", 5, 1000)(_leader_after_a_restart)
broker_effect("leader.imbalance.per.broker.percentage", 10, 100)(_leader_after_a_restart)


@broker_effect("decommissioned.brokers", "", "2")
async def _brokers_are_emptied(world: World) -> object:
    await world.brokers(2)
    await world.topic(replicas=[1 if world.given.broker_change["decommissioned.brokers"] else 2])
    configs = world.given.broker_change
    rows = world.services().catalog.image.default_broker_configs
    assert configs["decommissioned.brokers"] == rows["decommissioned.brokers"]
    topic = MetadataRequest.Topic(name="auto")
    replicas = []
    for _ in range(4):
        topic.name += "x"
        await world.call(MetadataRequest(topics=[topic]))
        await asyncio.sleep(0.5)
        record = world.services().catalog.image.topics[topic.name]
        replicas += record.partitions[0].replicas
    return 2 in replicas


@broker_effect("broker.session.timeout.ms", 3000, 60_000)
async def _silent_brokers_are_taken_for_dead(world: World) -> object:
    await world.brokers(2)
    world.processes[2].hold()
    await asyncio.sleep(20)
    alive = list(world.services().catalog.image.brokers)
    world.processes[2].release()
    return alive
