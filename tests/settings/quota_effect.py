"""Effects of the settings for quotas, the rate of connections, and the audit trail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from harness.raw.raw_client import encode_frame, produce_request
from millstream.security.audit_event import AUDIT_TOPIC
from millstream.wire.messages.alter_client_quotas import AlterClientQuotasRequest
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.metadata import MetadataRequest
from settings.effect import broker_effect
from settings.world import World

_Entry = AlterClientQuotasRequest.Entry


async def _set_quota(world: World, entity: tuple[str, str | None], name: str, value: float) -> None:
    kind, owner = entity
    entry = _Entry(
        entity=[_Entry.Entity(entity_type=kind, entity_name=owner)],
        ops=[_Entry.Op(key=name, value=value)],
    )
    (row,) = (await world.call(AlterClientQuotasRequest(entries=[entry]))).entries
    assert row.error_code == 0, row.error_message


async def _throttle_ms(world: World, size: int) -> int:
    """Return for how long a producer of one large batch is throttled."""
    await world.broker()
    await world.topic()
    await _set_quota(world, ("client-id", None), "producer_byte_rate", 1000)
    response = await world.call(produce_request("t", world.now_batch(bytes(size))), 12)
    return round(response.throttle_time_ms, -2)


@broker_effect("quota.window.num", 2, 11)
async def _a_burst_of_the_whole_window_is_allowed(world: World) -> object:
    return await _throttle_ms(world, 5000)


@broker_effect("quota.window.size.seconds", 1, 5)
async def _longer_samples_allow_larger_bursts(world: World) -> object:
    return await _throttle_ms(world, 20_000)


async def _mutations_allowed(world: World) -> int:
    """Return how many topics of ten partitions a client may create at once."""
    await world.broker()
    await _set_quota(world, ("client-id", None), "controller_mutation_rate", 5)
    topics = [
        CreateTopicsRequest.Topic(name=f"t{number}", num_partitions=10, replication_factor=1)
        for number in range(12)
    ]
    response = await world.call(CreateTopicsRequest(topics=topics))
    return sum(not row.error_code for row in response.topics)


broker_effect("controller.quota.window.num", 2, 11)(_mutations_allowed)
broker_effect("controller.quota.window.size.seconds", 1, 4)(_mutations_allowed)


@broker_effect("max.connection.creation.rate", 1, 1000)
async def _new_connections_wait_for_their_turn(world: World) -> object:
    await world.broker(quota_window_num="1")
    await world.topic()
    await asyncio.sleep(60)
    lines = [await world.line() for _ in range(5)]
    for line in lines:
        line.transport.write(encode_frame(MetadataRequest(topics=[]), 12, 1))
    await asyncio.sleep(0.5)
    return sum(bool(line.received) for line in lines)


@broker_effect("metrics.quota.labels.max", 0, 10)
async def _clients_with_metrics_of_their_own(world: World) -> object:
    server = await world.broker()
    await world.topic()
    await _set_quota(world, ("client-id", None), "producer_byte_rate", 1_000_000)
    await world.produce(world.now_batch(b"v"))
    rows = (await server.metrics()).splitlines()
    (row,) = [row for row in rows if row.startswith("millstream_client_produce_bytes_total{")]
    return "_other" in row


@broker_effect("connection.max.requests.per.pass", 1, 1000)
async def _requests_before_other_connections_have_their_turn(world: World) -> object:
    server = await world.broker()
    await world.topic()
    line = await world.line()
    await asyncio.sleep(1)
    (connection,) = [each for each in server._acceptor._connections if each.address == "other"]
    transport = _CountedWrites(connection._transport)
    connection._transport = transport  # type: ignore[assignment]
    frames = [encode_frame(MetadataRequest(topics=[]), 12, number) for number in range(10)]
    line.transport.write(b"".join(frames))
    await asyncio.sleep(1)
    return transport.count


class _CountedWrites:
    """A transport that counts the writes: a pass ends with one."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.count = 0

    def writelines(self, parts: Any) -> None:
        self.count += 1
        self._transport.writelines(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


# The audit trail


async def _has_audit_topic(world: World) -> bool:
    await world.topic()
    await asyncio.sleep(10)
    return world.services().replicas.get(AUDIT_TOPIC, 0) is not None


@broker_effect("audit.enable", "true", "false")
async def _changes_are_recorded(world: World) -> object:
    await world.broker()
    return await _has_audit_topic(world)


@broker_effect("audit.topic.retention.ms", 1000, 100_000_000)
async def _events_expire(world: World) -> object:
    await world.broker(audit_enable="true")
    assert await _has_audit_topic(world)
    topic = world.services().catalog.image.topic(AUDIT_TOPIC)
    assert topic is not None
    return topic.configs["retention.ms"]


@broker_effect("audit.queue.max.events", 1, 1000)
async def _events_that_wait(world: World) -> object:
    server = await world.broker(audit_enable="true")
    topics = [
        CreateTopicsRequest.Topic(name=f"t{number}", num_partitions=1, replication_factor=1)
        for number in range(5)
    ]
    await world.call(CreateTopicsRequest(topics=topics))
    rows = (await server.metrics()).splitlines()
    return [row for row in rows if row.startswith("millstream_audit_events_dropped_total")]


async def _audit_files(world: World, **settings: str) -> list[tuple[str, int]]:
    """Return the audit files after twenty changes, with the number of events in each."""
    given = {"audit_enable": "true", "audit_file": "/data/audit/first", **settings}
    await world.broker(**given)
    for number in range(20):
        await world.topic(f"t{number}")
        await asyncio.sleep(5)
    disk = world.services().directory.storage.disk
    folder = Path("/data/audit")
    return sorted((name, disk.read(folder / name).count(b"\n")) for name in disk.listdir(folder))


@broker_effect("audit.file", "/data/audit/first", "/data/audit/second")
async def _events_in_a_file(world: World) -> object:
    return await _audit_files(world)


@broker_effect("audit.file.max.bytes", 500, 1_000_000)
async def _audit_files_have_a_bounded_size(world: World) -> object:
    return await _audit_files(world)


@broker_effect("audit.file.max.files", 2, 5)
async def _audit_files_have_a_bounded_number(world: World) -> object:
    return await _audit_files(world, audit_file_max_bytes="500")
