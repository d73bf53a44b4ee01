"""The cases of `bench.spark`: reading, writing, and the latency of micro-batches.

A case measures one peer: a broker with the format that Spark uses for it.
"""

from __future__ import annotations

import random
import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import confluent_kafka
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from bench import tools
from bench.brokers import Broker
from bench.case import Bar, Figure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 4
CODECS = ("none", "lz4", "zstd")
SIZES = {"100 B": 100, "1 KiB": 1024}
SINKS = ("noop", "count", "Parquet")
SPARK_MAIN = "org.apache.spark.deploy.SparkSubmit"
STAMP = struct.Struct(">d")
WAIT_SECONDS_MAX = 120.0
READ_BAR = 1.0
WRITE_BAR = 0.8


@dataclass(slots=True, frozen=True)
class Plan:
    """The amount of work of each case."""

    bytes_read: int
    bytes_written: int
    latency_seconds: float
    latency_rate: float
    is_warm_up: bool = False

    def warm_up(self) -> Plan:
        """Run before the first figure of a case: compile, connect, fill caches."""
        return replace(
            self, bytes_written=self.bytes_written // 4, latency_seconds=2.0, is_warm_up=True
        )


FULL = Plan(400_000_000, 200_000_000, 20.0, 20.0)
QUICK = Plan(40_000_000, 20_000_000, 5.0, 20.0)


@dataclass(slots=True, frozen=True)
class Data:
    """A topic of records that compress about as well as JSON."""

    size: int
    codec: str

    @property
    def topic(self) -> str:
        return f"read-{self.size}-{self.codec}"


@dataclass(slots=True, frozen=True)
class Peer:
    """A broker and Spark's format for it."""

    name: str
    format: str
    broker: Broker
    spark: SparkSession

    def read(self, topic: str) -> DataFrame:
        return (
            self.spark.read.format(self.format)
            .option("kafka.bootstrap.servers", self.broker.bootstrap)
            .option("subscribe", topic)
            .load()
        )

    def delete(self, topic: str) -> None:
        tools.delete_topics(self.broker, topic)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of Spark and its Python workers so far."""
        children = psutil.Process().children()
        spark = next(child for child in children if SPARK_MAIN in child.cmdline())
        spent = 0.0
        for process in (spark, *spark.children(recursive=True)):
            try:
                spent += sum(process.cpu_times()[:4])
            except psutil.NoSuchProcess:
                continue
        return spent


class Meter:
    """Measures the time and the CPU seconds since its creation."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._begin_cpu = peer.cpu_seconds()
        self._begin = time.monotonic()

    def figures(self, name: str, records: int) -> list[Figure]:
        seconds = time.monotonic() - self._begin
        cpu = (self._peer.cpu_seconds() - self._begin_cpu) / records * 1e6
        return [
            Figure(name, records / seconds, "records/s", True),
            Figure(f"{name}, CPU of Spark", cpu, "µs/record", False),
        ]


class Case(NamedTuple):
    name: str
    measure: Callable[[Peer, Plan], list[Figure]]


def sections() -> list[tuple[Data | None, list[Case]]]:
    """Return the cases by shared topic, in the order in which they run."""
    found: list[tuple[Data | None, list[Case]]] = [
        (Data(size, codec), [_read_case(label, Data(size, codec), sink) for sink in SINKS])
        for label, size in SIZES.items()
        for codec in CODECS
    ]
    writes = [_write_case(label, size, codec) for label, size in SIZES.items() for codec in CODECS]
    return [*found, (None, writes), (None, [Case("micro-batch latency", _latency)])]


def fill(peer: Peer, data: Data, plan: Plan) -> None:
    """Write the same keyed records to every peer."""
    tools.create_topic(peer.broker, data.topic, PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": peer.broker.bootstrap,
            "compression.type": data.codec,
            "linger.ms": 50,
            "batch.size": 256 * 1024,
            "queue.buffering.max.messages": 500_000,
        }
    )
    values = _values(data.size)
    for number in range(plan.bytes_read // data.size):
        while True:
            try:
                producer.produce(
                    data.topic,
                    values[number % len(values)],
                    b"%012d" % number,
                    partition=number % PARTITIONS,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(WAIT_SECONDS_MAX):
        raise RuntimeError(f"not all records of {data.topic} were sent")


def _values(size: int, count: int = 1009) -> list[bytes]:
    """Return values of which half repeats, as field names do."""
    chooser = random.Random(size)
    fixed = bytes(chooser.choices(b"abcdefghijklmnopqrstuvwxyz", k=size // 2))
    rest = size - len(fixed)
    return [fixed + bytes(chooser.choices(b"0123456789ABCDEF", k=rest)) for _ in range(count)]


def _read_case(label: str, data: Data, sink: str) -> Case:
    name = f"read {label}, {data.codec}, {sink}"

    def measure(peer: Peer, plan: Plan) -> list[Figure]:
        frame = peer.read(data.topic)
        folder = tempfile.mkdtemp(prefix="bench-spark-")
        meter = Meter(peer)
        try:
            if sink == "noop":
                frame.write.format("noop").mode("overwrite").save()
            elif sink == "count":
                if frame.count() != plan.bytes_read // data.size:
                    raise RuntimeError(f"{peer.name} did not read every record of {data.topic}")
            else:
                frame.write.mode("overwrite").parquet(f"{folder}/table")
            return meter.figures(name, plan.bytes_read // data.size)
        finally:
            shutil.rmtree(folder)

    return Case(name, measure)


def _write_case(label: str, size: int, codec: str) -> Case:
    name = f"write {label}, {codec}"

    def measure(peer: Peer, plan: Plan) -> list[Figure]:
        records = plan.bytes_written // size
        frame = _written(peer.spark, records, size)
        topic = tools.create_topic(peer.broker, f"write-{time.monotonic_ns()}", PARTITIONS)
        try:
            meter = Meter(peer)
            (
                frame.write.format(peer.format)
                .mode("append")
                .option("kafka.bootstrap.servers", peer.broker.bootstrap)
                .option("kafka.compression.type", codec)
                .option("topic", topic)
                .save()
            )
            figures = meter.figures(name, records)
            found = peer.read(topic).count()
        finally:
            peer.delete(topic)
            frame.unpersist()
        if found != records:
            raise RuntimeError(f"{peer.name} wrote {found} of {records} records")
        return figures

    return Case(name, measure)


def _written(spark: SparkSession, records: int, size: int) -> DataFrame:
    """Return rows to write, in memory, so that no figure includes their creation."""
    text = f"repeat(sha2(cast(id % 1009 as string), 256), {size // 64 + 1})"
    value = f"cast(substring({text}, 1, {size}) as binary)"
    frame = spark.range(records, numPartitions=PARTITIONS).selectExpr(
        "cast(cast(id as string) as binary) as key", f"{value} as value"
    )
    frame.persist().count()
    return frame


def _latency(peer: Peer, plan: Plan) -> list[Figure]:
    """Measure a stream that copies each record at once, while records arrive one by one."""
    source = tools.create_topic(peer.broker, f"latency-in-{time.monotonic_ns()}", 1)
    target = tools.create_topic(peer.broker, f"latency-out-{time.monotonic_ns()}", 1)
    checkpoint = tempfile.mkdtemp(prefix="bench-spark-")
    servers = peer.broker.bootstrap
    query = (
        peer.spark.readStream.format(peer.format)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .select("value")
        .writeStream.format(peer.format)
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        _travel_times(servers, source, target, 3.0, plan.latency_rate)
        batches = _batch_id(query)
        begin = time.monotonic()
        found = _travel_times(servers, source, target, plan.latency_seconds, plan.latency_rate)
        rate = (_batch_id(query) - batches) / (time.monotonic() - begin)
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
        tools.delete_topics(peer.broker, source, target)
    cuts = statistics.quantiles(found, n=100)
    return [
        Figure("micro-batch latency, p50", cuts[49] * 1000, "ms", False),
        Figure("micro-batch latency, p99", cuts[98] * 1000, "ms", False),
        Figure("micro-batches", rate, "batches/s", True),
    ]


def _travel_times(
    servers: str, source: str, target: str, seconds: float, rate: float
) -> list[float]:
    """Return the seconds from sending each record to a read-committed read of its copy."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
        }
    )
    place = TopicPartition(target, 0)
    place.offset = consumer.get_watermark_offsets(place, timeout=30)[1]
    consumer.assign([place])
    count, found = int(seconds * rate), list[float]()
    begin, sent = time.monotonic(), 0
    deadline = begin + seconds + WAIT_SECONDS_MAX
    while len(found) < count and time.monotonic() < deadline:
        while sent < count and time.monotonic() >= begin + sent / rate:
            producer.produce(source, STAMP.pack(time.monotonic()))
            sent += 1
        producer.poll(0)
        found += [_age(message) for message in consumer.consume(100, 0.005)]
    consumer.close()
    if len(found) < count:
        raise RuntimeError(f"only {len(found)} of {count} records arrived in time")
    return found


def _batch_id(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return 0 if progress is None else int(progress["batchId"])


def _age(message: confluent_kafka.Message) -> float:
    if message.error():
        raise RuntimeError(str(message.error()))
    stamp: float = STAMP.unpack(message.value() or b"")[0]
    return time.monotonic() - stamp


BARS = [
    *(
        Bar(f"read {label}, {codec}, {sink}", READ_BAR, is_ratio=True)
        for label in SIZES
        for codec in CODECS
        for sink in SINKS
    ),
    *(
        Bar(f"write {label}, {codec}", WRITE_BAR, is_ratio=True)
        for label in SIZES
        for codec in CODECS
    ),
]
