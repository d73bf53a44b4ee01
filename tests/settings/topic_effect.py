"""Effects of the topic settings, and of the broker settings that are their defaults."""

from __future__ import annotations

import asyncio
from random import Random

from millstream.model.sentinel import NO_LEADER
from millstream.records.batch import scan
from millstream.records.record import Record
from settings.effect import topic_effect
from settings.world import World, batch

HOUR_MS = 3_600_000
#: Text whose compressed size depends on the compression level.
_random = Random(1)
_WORDS = [bytes(_random.choices(b"abcdefghij", k=_random.randint(2, 9))) for _ in range(400)]
TEXT = b" ".join(_random.choices(_WORDS, k=8000))


def stored(world: World) -> list[tuple[int, int]]:
    """Return the compression type and size of each batch of the topic."""
    log = world.log()
    data = log.read(0, 1 << 20, log.log_end_offset, True).read()
    return [(header.codec, header.size) for _, header in scan(data)]


def segments(world: World) -> int:
    return len(world.log().segments)


@topic_effect("cleanup.policy", "delete", "compact")
async def _records_need_keys(world: World) -> object:
    await world.broker()
    await world.topic()
    return (await world.produce(world.now_batch(b"v"))).error_code


@topic_effect("compression.type", "producer", "gzip")
async def _batches_are_compressed(world: World) -> object:
    await world.broker()
    await world.topic()
    await world.produce(world.now_batch(TEXT))
    return stored(world)[0][0]


def _levels(codec: str, first: int, second: int) -> None:
    @topic_effect(f"compression.{codec}.level", first, second)
    async def compressed_size(world: World) -> object:
        await world.broker()
        await world.topic(configs={"compression.type": codec})
        await world.produce(world.now_batch(TEXT, TEXT))
        return stored(world)


_levels("gzip", 1, 9)
_levels("lz4", 9, 12)
_levels("zstd", 1, 19)


# Compaction

_COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1000"}
_CLEANER = {"log_cleaner_enable": "true", "log_cleaner_backoff_ms": "100"}


async def compacted(world: World, values: list[bytes | None], **configs: str) -> None:
    """Create a topic in which one key has these values, each in a segment; the last is active."""
    await world.broker(**_CLEANER)
    await world.topic(configs={**_COMPACTED, **configs})
    for value in values:
        record = [Record(0, world.clock.wall_ms(), b"key", value, [])]
        row = await world.produce(batch_of(record))
        assert row.error_code == 0, row
        await asyncio.sleep(2)
    await asyncio.sleep(10)


def batch_of(records: list[Record]) -> bytearray:
    from millstream.records.builder import build_batch

    return build_batch(records)


async def offsets_left(world: World) -> list[int]:
    """Return the offsets of the batches that have records after compaction."""
    log = world.log()
    data = log.read(0, 1 << 20, log.log_end_offset, True).read()
    return [header.base_offset for _, header in scan(data) if header.count]


@topic_effect("delete.retention.ms", 1000, 10**9)
async def _tombstones_expire(world: World) -> object:
    await compacted(world, [b"a", None, b"b", b"c"], **{"cleanup.policy": "compact"})
    record = [Record(0, world.clock.wall_ms(), b"gone", None, [])]
    await world.produce(batch_of(record))
    for _ in range(4):
        await asyncio.sleep(3)
        await world.produce(batch_of([Record(0, world.clock.wall_ms(), b"other", b"v", [])]))
    await asyncio.sleep(10)
    return 4 in await offsets_left(world)


@topic_effect("max.compaction.lag.ms", 2**63 - 1, 1000)
async def _old_records_are_compacted(world: World) -> object:
    await compacted(world, [b"a", b"b", b"c"], **{"min.cleanable.dirty.ratio": "1"})
    return 0 in await offsets_left(world)


@topic_effect("min.cleanable.dirty.ratio", 1, 0)
async def _dirty_logs_are_compacted(world: World) -> object:
    await world.broker(**_CLEANER)
    await world.topic(configs={"cleanup.policy": "compact", "segment.ms": "1000"})
    for value in (b"a", b"b", b"c"):
        await world.produce(batch_of([Record(0, world.clock.wall_ms(), b"key", value, [])]))
        await asyncio.sleep(2)
    await asyncio.sleep(10)
    return 0 in await offsets_left(world)


@topic_effect("min.compaction.lag.ms", 0, 10**9)
async def _young_records_stay(world: World) -> object:
    await compacted(world, [b"a", b"b", b"c"])
    return 0 in await offsets_left(world)


# Segments, flushing and retention

_OFTEN = {"log_retention_check_interval_ms": "1000"}


@topic_effect("file.delete.delay.ms", 0, 10**6)
async def _files_are_removed_later(world: World) -> object:
    await world.broker(**_OFTEN)
    await world.topic(configs={"segment.bytes": "200", "retention.bytes": "1"})
    await world.fill(4)
    await asyncio.sleep(5)
    return any(name.endswith(".deleted") for name in world.files())


@topic_effect("flush.messages", 1, 1000)
async def _records_are_flushed_by_number(world: World) -> object:
    await world.broker()
    await world.topic()
    await world.fill(5)
    return world.log().recovery_point


@topic_effect("flush.ms", 1000, 10**6)
async def _records_are_flushed_by_age(world: World) -> object:
    await world.broker()
    await world.topic()
    await world.fill(5)
    return world.log().recovery_point > 0


@topic_effect("index.interval.bytes", 1, 10**6)
async def _index_entries(world: World) -> object:
    await world.broker()
    await world.topic()
    await world.fill(5)
    return len(world.log().segments[-1].offset_index)


@topic_effect("max.message.bytes", 100, 10_000)
async def _large_batches_are_rejected(world: World) -> object:
    await world.broker()
    await world.topic()
    return (await world.produce(world.now_batch(bytes(1000)))).error_code


@topic_effect("message.timestamp.after.max.ms", 10 * HOUR_MS, HOUR_MS)
async def _timestamps_of_the_future(world: World) -> object:
    await world.broker()
    await world.topic()
    at = world.clock.wall_ms() + 5 * HOUR_MS
    return (await world.produce(batch(b"v", timestamp=at))).error_code


@topic_effect("message.timestamp.before.max.ms", 10 * HOUR_MS, HOUR_MS)
async def _timestamps_of_the_past(world: World) -> object:
    await world.broker()
    await world.topic()
    at = world.clock.wall_ms() - 5 * HOUR_MS
    return (await world.produce(batch(b"v", timestamp=at))).error_code


@topic_effect("message.timestamp.type", "CreateTime", "LogAppendTime")
async def _whose_time(world: World) -> object:
    await world.broker()
    await world.topic()
    return (await world.produce(world.now_batch(b"v"))).log_append_time_ms < 0


@topic_effect("retention.bytes", -1, 1)
async def _old_segments_go_by_size(world: World) -> object:
    await world.broker(**_OFTEN)
    await world.topic(configs={"segment.bytes": "200"})
    await world.fill(5)
    await asyncio.sleep(3)
    return segments(world) > 1


@topic_effect("retention.ms", 10 * HOUR_MS, HOUR_MS)
async def _old_segments_go_by_age(world: World) -> object:
    await world.broker(**_OFTEN)
    await world.topic()
    await world.fill(2)
    world.clock.offset_ms += 5 * HOUR_MS
    await asyncio.sleep(3)
    return world.log().log_start_offset


@topic_effect("segment.bytes", 200, 10_000)
async def _full_segments_roll(world: World) -> object:
    await world.broker()
    await world.topic()
    await world.fill(5)
    return segments(world)


@topic_effect("segment.index.bytes", 16, 10_000)
async def _full_indexes_roll(world: World) -> object:
    await world.broker()
    await world.topic(configs={"index.interval.bytes": "1"})
    await world.fill(8)
    return segments(world)


@topic_effect("segment.ms", 10 * HOUR_MS, HOUR_MS)
async def _old_active_segments_roll(world: World) -> object:
    await world.broker()
    await world.topic()
    await world.fill(1)
    world.clock.offset_ms += 5 * HOUR_MS
    await world.fill(1)
    return segments(world)


@topic_effect("segment.jitter.ms", 0, 99 * HOUR_MS)
async def _segments_roll_at_different_times(world: World) -> object:
    await world.broker()
    await world.topic(configs={"segment.ms": str(100 * HOUR_MS)})
    await world.fill(1)
    world.clock.offset_ms += 99 * HOUR_MS
    await world.fill(1)
    return segments(world)


# Replicas


async def catches_up(world: World, configs: dict[str, str] | None = None, **settings: str) -> bool:
    """Return whether a restarted follower gets ten batches, one at a time, within three seconds."""
    settings |= {"min_insync_replicas": "1", "replica_fetch_max_bytes": "1"}
    await world.brokers(2, **settings)
    await world.topic(replicas=[1, 2], configs=configs)
    await world.kill(2)
    await world.until(lambda: len(state(world).isr) == 1, "the follower to be missed")
    for _ in range(10):
        await world.produce(world.now_batch(bytes(1000)), acks=1)
    await world.start(2, **settings)
    await world.change(4, "2", world.given.own_change, 2)
    await asyncio.sleep(3)
    return world.log(node_id=2).log_end_offset == 10


def state(world: World, partition: int = 0, node_id: int = 1):  # type: ignore[no-untyped-def]
    record = world.services(node_id).catalog.image.partition("t", partition)
    assert record is not None
    return record


@topic_effect("follower.replication.throttled.replicas", "", "0:2")
async def _followers_are_throttled(world: World) -> object:
    return await catches_up(world, follower_replication_throttled_rate="1")


@topic_effect("leader.replication.throttled.replicas", "", "0:1")
async def _leaders_are_throttled(world: World) -> object:
    return await catches_up(world, leader_replication_throttled_rate="1")


@topic_effect("min.insync.replicas", 1, 2)
async def _too_few_in_sync(world: World) -> object:
    await world.brokers(2)
    await world.topic(replicas=[1, 2])
    await world.kill(2)
    await world.until(lambda: len(state(world).isr) == 1, "the follower to be missed")
    return (await world.produce(world.now_batch(b"v"))).error_code


async def without_in_sync_replica(world: World) -> None:
    """Leave only a replica alive that is not in sync. Broker 1 is the controller."""
    await world.brokers(3, min_insync_replicas="1")
    await world.topic(replicas=[2, 3])
    await world.kill(3)
    await world.until(lambda: state(world).isr == (2,), "the follower to be missed")
    row = await world.produce(world.now_batch(b"v"), node_id=2)
    assert row.error_code == 0, row
    await world.kill(2)
    await world.until(lambda: state(world).leader == NO_LEADER, "the leader to be missed")
    await world.start(3, min_insync_replicas="1")


@topic_effect("unclean.leader.election.enable", "false", "true")
async def _anybody_leads(world: World) -> object:
    await without_in_sync_replica(world)
    await asyncio.sleep(5)
    return state(world).leader
