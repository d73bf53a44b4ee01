"""Effects of the broker settings for logs, compaction and metrics."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from harness.otlp import gauge, payload, point
from millstream.env.disk import SystemDisk
from millstream.log.directory.checkpoint import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    read_offsets,
)
from millstream.log.directory.data_directory import CLEAN_MARKER
from millstream.records.record import Record
from millstream.wire.messages.delete_records import DeleteRecordsRequest
from millstream.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.push_telemetry import PushTelemetryRequest
from settings.effect import CLIENT_METRICS_EFFECTS, Effect, broker_effect
from settings.topic_effect import batch_of, compacted, offsets_left, segments
from settings.world import CLIENT_METRICS, RealWorld, World
from sim.disk import SimFile


def offsets(world: World, name: str, node_id: int = 1) -> dict[str, int]:
    """Return the offsets in a checkpoint file."""
    disk = world.services(node_id).directory.storage.disk
    return {str(key): value for key, value in read_offsets(disk, Path("/data") / name).items()}


@broker_effect("log.flush.before.ack", "false", "true")
async def _records_are_flushed_first(world: World) -> object:
    await world.broker()
    await world.topic()
    await world.produce(world.now_batch(b"v"))
    return world.log().recovery_point


@broker_effect("log.flush.offset.checkpoint.interval.ms", 1000, 10**6)
async def _recovery_points_are_written(world: World) -> object:
    await world.broker()
    await world.topic(configs={"flush.messages": "1"})
    await world.fill(5)
    return "t-0" in offsets(world, RECOVERY_POINTS)


@broker_effect("replica.high.watermark.checkpoint.interval.ms", 1000, 10**6)
async def _high_watermarks_are_written(world: World) -> object:
    await world.broker()
    await world.topic()
    await world.fill(5)
    return "t-0" in offsets(world, HIGH_WATERMARKS)


@broker_effect("log.flush.start.offset.checkpoint.interval.ms", 1000, 10**6)
async def _log_starts_are_written(world: World) -> object:
    await world.brokers(2)
    await world.topic(replicas=[1, 2])
    await world.fill(2)
    rows = DeleteRecordsRequest.Topic
    topic = rows(name="t", partitions=[rows.Partition(partition_index=0, offset=1)])
    await world.call(DeleteRecordsRequest(topics=[topic], timeout_ms=5000))
    # The leader writes it for the request, the follower with its timer.
    await asyncio.sleep(5)
    assert world.log(node_id=2).log_start_offset == 1
    return "t-0" in offsets(world, LOG_STARTS, 2)


async def _expires(world: World) -> bool:
    await world.broker(log_retention_check_interval_ms="1000")
    await world.topic(configs={"segment.bytes": "200", "retention.bytes": "1"})
    await world.fill(5)
    await asyncio.sleep(3)
    return segments(world) == 1


broker_effect("log.retention.check.interval.ms", 1000, 10**6)(_expires)
broker_effect("log.initial.task.delay.ms", 0, 10**6)(_expires)


@broker_effect("log.open.files.max", 16, 1000)
async def _open_files(world: World) -> object:
    await world.broker()
    await world.topic(partitions=30)
    for number in range(30):
        await world.produce(world.now_batch(b"v"), partition=number)
    return world.services().directory.storage.files.open_files > 16


async def _producers(world: World) -> int:
    await world.broker(
        producer_id_expiration_ms="1000", producer_id_expiration_check_interval_ms="1000"
    )
    await world.topic()
    fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    row = await world.produce(world.now_batch(b"v", **fields))
    assert row.error_code == 0, row
    await asyncio.sleep(10)
    return len(list(world.log().producer_state.entries))


broker_effect("producer.id.expiration.ms", 1000, 10**8)(_producers)
broker_effect("producer.id.expiration.check.interval.ms", 1000, 10**8)(_producers)


class MeetingDisk(SystemDisk):
    """Makes two threads with a given name wait for each other when they open a log file."""

    def __init__(self, thread: str, patience_s: float) -> None:
        self._thread = thread
        self._patience_s = patience_s
        self._barrier = threading.Barrier(2)
        self._is_over = False
        #: Whether two threads waited at the same time.
        self.has_met = False

    def _meet(self, path: Path) -> None:
        name = threading.current_thread().name
        is_meant = name.startswith(self._thread) and path.name.endswith(".log")
        if not is_meant or self._is_over:
            return
        try:
            self._barrier.wait(self._patience_s)
            self.has_met = True
        except threading.BrokenBarrierError:
            # No other thread came.
            pass
        self._is_over = True

    def open(self, path: Path, *, create: bool = False, readonly: bool = False):  # type: ignore[no-untyped-def]
        self._meet(path)
        return super().open(path, create=create, readonly=readonly)


def patience(world: RealWorld, setting: str) -> float:
    """Return a long timeout if two threads are expected to meet, and a short one otherwise."""
    value = {**world.given.broker, **world.given.broker_change}[setting]
    return 60.0 if value == "2" else 0.2


@broker_effect("num.recovery.threads.per.data.dir", 1, 2, real=True)
async def _logs_are_recovered_side_by_side(world: RealWorld) -> object:
    server = await world.broker()
    await world.topic(partitions=2)
    for number in range(2):
        await world.produce(world.now_batch(b"v"), partition=number)
    folder = server.services.directory.path
    await world.stop()
    (folder / CLEAN_MARKER).unlink()
    patience_s = patience(world, "num.recovery.threads.per.data.dir")
    world.disk = disk = MeetingDisk("millstream-recovery", patience_s)
    await world.start(1)
    return disk.has_met


# Compaction


@broker_effect("log.cleaner.enable", "false", "true")
async def _logs_are_cleaned(world: World) -> object:
    await compacted(world, [b"a", b"b", b"c"])
    return await offsets_left(world)


broker_effect("log.cleaner.backoff.ms", 100, 10**6)(_logs_are_cleaned)

_MANY_THREADS = {"log_cleaner_enable": "true", "log_cleaner_threads": "64"}


async def _cleanings(world: World, keys: int, **settings: str) -> int:
    """Return the number of rounds that the compaction of a log with `keys` keys takes."""
    server = await world.broker(**_MANY_THREADS, log_cleaner_backoff_ms="100", **settings)
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "99"}
    await world.topic(configs=configs)
    now = world.clock.wall_ms()
    for start in range(0, keys, 50):
        records = [Record(i, now, b"%d" % (start + i), b"v", []) for i in range(50)]
        await world.produce(batch_of(records))
    await asyncio.sleep(20)
    return server.cleaner.stats.runs


@broker_effect("log.cleaner.dedupe.buffer.size", 64 * 2**20, 2**20)
async def _keys_of_one_round(world: World) -> object:
    return await _cleanings(world, 1000)


@broker_effect("log.cleaner.io.buffer.load.factor", 0.9, 0.2)
async def _how_full_the_memory_gets(world: World) -> object:
    return await _cleanings(world, 500, log_cleaner_dedupe_buffer_size=str(2**20))


@contextmanager
def largest_read() -> Iterator[list[int]]:
    """Collect the sizes of reads into buffers, which only compaction does."""
    sizes: list[int] = []
    original = SimFile.pread_into

    def pread_into(self: SimFile, buffer: memoryview, position: int) -> int:
        sizes.append(len(buffer))
        return original(self, buffer, position)

    with mock.patch.object(SimFile, "pread_into", pread_into):
        yield sizes


@broker_effect("log.cleaner.io.buffer.size", 512 * 1024, 1024)
async def _bytes_read_at_a_time(world: World) -> object:
    with largest_read() as sizes:
        await world.broker(log_cleaner_enable="true", log_cleaner_backoff_ms="100")
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        await world.topic(configs={**configs, "segment.ms": "30000"})
        for _ in range(30):
            await world.produce(batch_of([Record(0, world.clock.wall_ms(), b"k", bytes(90), [])]))
        await asyncio.sleep(40)
        await world.produce(batch_of([Record(0, world.clock.wall_ms(), b"k", b"v", [])]))
        await asyncio.sleep(10)
        return max(sizes)


async def _real_logs(world: RealWorld, count: int) -> None:
    """Create logs for compaction."""
    await world.broker(
        log_cleaner_enable="true",
        log_cleaner_backoff_ms="10",
        log_flush_scheduler_interval_ms="10",
    )
    for number in range(count):
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        await world.topic(f"t{number}", configs={**configs, "segment.bytes": "50"})
    for _ in range(3):
        for number in range(count):
            record = Record(0, world.services().clock.wall_ms(), b"key", b"v", [])
            await world.produce(batch_of([record]), f"t{number}")


@broker_effect("log.cleaner.threads", 1, 2, real=True)
async def _logs_are_cleaned_side_by_side(world: RealWorld) -> object:
    world.disk = disk = MeetingDisk("log-cleaner", patience(world, "log.cleaner.threads"))
    await _real_logs(world, 2)
    stats = world.servers[1].cleaner.stats
    await world.until(lambda: disk.has_met or stats.runs >= 2, "logs to be cleaned")
    return disk.has_met


@broker_effect("log.cleaner.io.max.bytes.per.second", 1.7976931348623157e308, 1, real=True)
async def _cleaning_is_slow(world: RealWorld) -> object:
    await _real_logs(world, 1)
    cleaner = world.servers[1].cleaner
    waiting = cleaner._io_limit._changed._waiters  # type: ignore[attr-defined]
    await world.until(lambda: waiting or cleaner.stats.runs, "a log to be cleaned, or a wait")
    return bool(cleaner.stats.runs)


# Metrics


async def labels(world: World, metric: str, label: str) -> int:
    """Return the number of values of a label of a metric."""
    text = await world.servers[1].metrics()
    return len(set(re.findall(rf'^{metric}{{.*\b{label}="(.*?)"', text, re.MULTILINE)))


async def _topics(world: World) -> None:
    await world.broker()
    for name in ("a", "b", "c"):
        await world.topic(name)
        await world.produce(world.now_batch(b"v"), name)


@broker_effect("metrics.topic.labels.max", 1, 10)
async def _topics_are_shown(world: World) -> object:
    await _topics(world)
    return await labels(world, "millstream_topic_received_bytes_total", "topic")


@broker_effect("metrics.partition.labels.max", 1, 10)
async def _partitions_are_shown(world: World) -> object:
    await _topics(world)
    return await labels(world, "millstream_log_size_bytes", "topic")


async def _groups(world: World) -> None:
    await world.broker(http_listen="127.0.0.1:0", metrics_lag_interval_ms="1000")
    await world.topic()
    await world.fill(2)
    await world.coordinator()
    rows = OffsetCommitRequest.Topic
    topic = rows(name="t", partitions=[rows.Partition(partition_index=0, committed_offset=1)])
    for group in ("a", "b", "c"):
        await world.call(OffsetCommitRequest(group_id=group, topics=[topic]), 9)
    await asyncio.sleep(5)


@broker_effect("metrics.lag.interval.ms", 1000, 0)
async def _lag_is_shown(world: World) -> object:
    await _groups(world)
    return await labels(world, "millstream_consumer_group_lag_records_sum", "group")


@broker_effect("metrics.group.labels.max", 1, 10)
async def _groups_are_shown(world: World) -> object:
    await _groups(world)
    return await labels(world, "millstream_consumer_group_lag_records_sum", "group")


@broker_effect("metrics.group.partition.labels.max", 1, 10)
async def _partitions_of_groups_are_shown(world: World) -> object:
    await _groups(world)
    return await labels(world, "millstream_consumer_group_lag_records", "group")


async def pushed(world: World, count: int) -> int:
    """Push `count` series; return the error code."""
    await world.broker(http_listen="127.0.0.1:0")
    await world.change(CLIENT_METRICS, "all", {"metrics": "*", "interval.ms": "1000"})
    subscription = await world.call(GetTelemetrySubscriptionsRequest(client_instance_id=bytes(16)))
    data = payload(gauge("org.apache.kafka.x", *(point(1, n=str(n)) for n in range(count))))
    request = PushTelemetryRequest(
        client_instance_id=subscription.client_instance_id,
        subscription_id=subscription.subscription_id,
        metrics=data,
    )
    return int((await world.call(request)).error_code)


@broker_effect("telemetry.max.bytes", 100, 10**6)
async def _payloads_of_clients(world: World) -> object:
    return await pushed(world, 20)


@broker_effect("metrics.client.labels.max", 1, 1000)
async def _series_of_clients(world: World) -> object:
    assert await pushed(world, 20) == 0
    text = await world.servers[1].metrics()
    return len(re.findall(r"^kafka_client_x\b.*", text, re.MULTILINE))


# Client metrics subscriptions


async def _subscription(world: World) -> object:
    await world.broker(http_listen="127.0.0.1:0")
    given = {"metrics": "*", "interval.ms": "1000", **world.given.subscription}
    assert await world.change(CLIENT_METRICS, "s", given) == 0
    found = await world.call(GetTelemetrySubscriptionsRequest(client_instance_id=bytes(16)))
    return found.push_interval_ms, found.requested_metrics


for _name, _values in {
    "interval.ms": ("1000", "2000"),
    "match": ("client_id=client", "client_id=nobody"),
    "metrics": ("org.apache.a", "org.apache.b"),
}.items():
    CLIENT_METRICS_EFFECTS[_name] = Effect(_subscription, _values)
