"""Effects of the broker settings for connections, requests and topics."""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import ExitStack
from typing import Any

from harness.raw.raw_client import encode_frame, fetch_request, produce_request
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.metadata import MetadataRequest
from settings.effect import broker_effect
from settings.world import PeerError, RealWorld, World


@broker_effect("socket.request.max.bytes", 1000, 100_000)
async def _large_requests_end_their_connection(world: World) -> object:
    await world.broker()
    await world.topic()
    try:
        return (await world.produce(world.now_batch(bytes(5000)))).error_code
    except PeerError:
        return "closed"


@broker_effect("connections.max.idle.ms", 5000, 500_000)
async def _idle_connections_are_closed(world: World) -> object:
    await world.broker()
    return await world.is_closed_after(20)


@broker_effect("connection.partial.request.timeout.ms", 2000, 500_000)
async def _requests_must_arrive_in_full(world: World) -> object:
    await world.broker()
    return await world.is_closed_after(20, bytes((0, 0, 1, 0, 0)))


@broker_effect("connection.write.timeout.ms", 3000, 500_000)
async def _responses_must_be_read(world: World) -> object:
    await world.broker()
    await world.topic()
    for _ in range(5):
        await world.produce(world.now_batch(bytes(50_000)))
    line = await world.line()
    line.transport.pause_reading()
    for number in range(20):
        line.transport.write(encode_frame(fetch_request([("t", 0, 0)]), 12, number))
    await asyncio.sleep(20)
    return line.is_lost


async def _is_read_behind(world: World, has_response: bool) -> bool:
    """Return whether a Produce request is handled while a Fetch before it waits."""
    await world.broker()
    await world.topic()
    await world.produce(world.now_batch(bytes(1000)))
    line = await world.line()
    waiting = fetch_request([("t", 0, 1)], max_wait_ms=30_000, min_bytes=10**6)
    line.transport.write(encode_frame(waiting, 12, 1))
    if has_response:
        line.transport.write(encode_frame(fetch_request([("t", 0, 0)]), 12, 2))
    await asyncio.sleep(1)
    line.transport.write(encode_frame(produce_request("t", world.now_batch(b"v")), 12, 3))
    await asyncio.sleep(1)
    return world.log().log_end_offset == 2


@broker_effect("connection.max.inflight.requests", 1, 1000)
async def _requests_at_work(world: World) -> object:
    return await _is_read_behind(world, has_response=False)


@broker_effect("connection.max.inflight.bytes", 100, 10**8)
async def _responses_kept_back(world: World) -> object:
    return await _is_read_behind(world, has_response=True)


@broker_effect("queued.max.request.bytes", 20_000, 10**8)
async def _requests_wait_for_memory(world: World) -> object:
    await world.broker(socket_request_max_bytes="16384")
    await world.topic()
    frame = encode_frame(produce_request("t", world.now_batch(bytes(12_000))), 12, 1)
    first, second = await world.line(), await world.line()
    first.transport.write(frame[:10_000])
    await asyncio.sleep(1)
    second.transport.write(frame[:10_000])
    await asyncio.sleep(1)
    second.transport.write(frame[10_000:])
    await asyncio.sleep(1)
    return world.log().log_end_offset


async def _lines_alive(world: World) -> int:
    await world.broker()
    await world.topic()
    lines = [await world.line() for _ in range(3)]
    await asyncio.sleep(1)
    return sum(not line.is_lost for line in lines)


broker_effect("max.connections", 100, 2)(_lines_alive)
broker_effect("max.connections.per.ip", 100, 2)(_lines_alive)
broker_effect("max.connections.per.ip.overrides", "", "other:2")(_lines_alive)


@broker_effect("shutdown.drain.timeout.ms", 1000, 20_000)
async def _a_stop_waits_for_requests(world: World) -> object:
    await world.broker()
    await world.topic("first")
    world.links[1].slow_s = 10
    waiting = asyncio.ensure_future(_create(world, 1))
    await asyncio.sleep(1)
    world.links[1].slow_s = 0
    await world.stop()
    try:
        return (await waiting).error_code
    except PeerError:
        return "closed"


@broker_effect("socket.listen.backlog.size", 1, 100, real=True)
async def _connections_that_wait_to_be_accepted(world: RealWorld) -> object:
    await world.broker()
    with ExitStack() as stack:
        pending: list[socket.socket] = []
        for _ in range(30):
            each = stack.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(world.address(1))
            pending.append(each)
        # This code blocks the broker's event loop, so no connection is accepted meanwhile.
        return len(select.select([], pending, [], 0.2)[1]) == 30


def _buffer(setting: str, option: int) -> None:
    @broker_effect(setting, 8192, 65536, real=True)
    async def size(world: RealWorld) -> object:
        server = await world.broker()
        await world.topic()
        (connection,) = server._acceptor._connections
        transport: Any = connection._transport
        return transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, option)


_buffer("socket.send.buffer.bytes", socket.SO_SNDBUF)
_buffer("socket.receive.buffer.bytes", socket.SO_RCVBUF)


@broker_effect("fetch.max.bytes", 1024, 100_000)
async def _records_of_one_response(world: World) -> object:
    await world.broker()
    await world.topic()
    await world.fill(5, 500)
    return len((await world.fetch(0)).records)


@broker_effect("max.incremental.fetch.session.cache.slots", 0, 10)
async def _fetch_sessions(world: World) -> object:
    await world.broker()
    await world.topic()
    request = fetch_request([("t", 0, 0)], session_epoch=0, max_wait_ms=0)
    return (await world.call(request, 12)).session_id > 0


# Topics


async def _auto_created(world: World) -> Any:
    request = MetadataRequest(topics=[MetadataRequest.Topic(name="auto")])
    await world.call(request)
    await asyncio.sleep(1)
    return (await world.call(request)).topics[0]


@broker_effect("num.partitions", 1, 3)
async def _partitions_by_default(world: World) -> object:
    await world.broker()
    return len((await _auto_created(world)).partitions)


@broker_effect("auto.create.topics.enable", "true", "false")
async def _topics_are_created(world: World) -> object:
    await world.broker()
    return (await _auto_created(world)).error_code


@broker_effect("delete.topic.enable", "true", "false")
async def _topics_are_deleted(world: World) -> object:
    await world.broker()
    await world.topic()
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name="t")], timeout_ms=1000)
    return (await world.call(request)).responses[0].error_code


async def _create(world: World, partitions: int) -> Any:
    topic = CreateTopicsRequest.Topic(name="t", num_partitions=partitions, replication_factor=-1)
    return (await world.call(CreateTopicsRequest(topics=[topic]))).topics[0]


@broker_effect("default.replication.factor", 1, 2)
async def _replicas_by_default(world: World) -> object:
    await world.brokers(2)
    return (await _create(world, 1)).replication_factor


@broker_effect("max.partitions.per.topic", 2, 10)
async def _partitions_at_most(world: World) -> object:
    await world.broker()
    return (await _create(world, 5)).error_code


@broker_effect("cluster.settle.ms", 0, 1_000_000)
async def _brokers_may_join(world: World) -> object:
    await world.broker()
    try:
        async with asyncio.timeout(20):
            await world.coordinator()
    except TimeoutError:
        return "waits for brokers"
    return "created"
