"""The cases for a cluster of three brokers: the cost of losing a broker, and of three replicas.

failover   a partition's leader is killed; the time until a producer with default settings gets an
           acknowledgement for a record that it sent afterwards
restart    every broker is restarted in turn under load; the longest wait of a producer
speed      throughput and latency with acks=all
catch-up   a broker returns after many records were written, while producers continue
scale      many partitions: start, memory, idle CPU, and the loss of a broker
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import admin

from bench import rows, tools
from bench.case import Bar, Case, Figure, Plan, Section, Suite
from bench.cluster import CLUSTERS, SCALE_START_SECONDS_MAX, Cluster
from bench.cluster_load import Observer, SteadyProducer, committed_records
from millstream.process.readiness import wait_until

FAILOVER_RATE = 100
FAILOVER_SECONDS_MAX = 60.0
RESTART_RATE = 1_000
RESTART_PARTITIONS = 6
RECORD_BYTES = 1024
CATCH_UP_PARTITIONS = 4
CATCH_UP_SECONDS_MAX = 900.0
RATE_SECONDS = 10.0
FILL_BATCH_BYTES = 500_000
PARTITIONS_PER_TOPIC = 100
TOPICS_PER_REQUEST = 10
SCALE_SECONDS_MAX = 600.0
IDLE_SECONDS = 10.0
MANY = 10**9


def suite() -> Suite:
    return Suite(CLUSTERS, sections(), warm_up, BARS)


def sections() -> list[Section]:
    return [
        Section("failover", True, [Case("failover", measure_failover)]),
        Section("restart", True, [Case("restart", measure_restart)]),
        Section("speed", True, [*throughput_cases(), *latency_cases()]),
        Section("catch-up", True, [Case("catch-up", measure_catch_up)]),
        Section("scale", False, [Case("scale", measure_scale)]),
    ]


THROUGHPUT_LABELS = {1: "1 KiB, 1 partition, acks=all", 8: "1 KiB, 8 partitions, acks=all"}
LATENCY_RATES = (1_000, 20_000)
FAILOVER = "failover, time to the next ack"
RESTART = "controlled restart of each broker"
CATCH_UP = "catch-up, producers' rate kept"
SCALE_FAILOVER = "scale, a broker killed, all partitions led again"

BARS = (
    Bar(f"{FAILOVER}, median", 4.0),
    Bar(f"{FAILOVER}, worst", 7.0, is_worst=True),
    Bar(f"{RESTART}, errors", 0.0, is_worst=True),
    Bar(f"{RESTART}, longest wait for an ack", 500.0, is_worst=True),
    *(
        Bar(f"produce, {client}, {label}", 0.9, is_ratio=True)
        for client in ("Java", "kcat")
        for label in THROUGHPUT_LABELS.values()
    ),
    *(
        Bar(f"ack latency, {client}, {rate:,} records/s, acks=all, p99", 1.0, is_ratio=True)
        for client in ("librdkafka", "Java")
        for rate in LATENCY_RATES
    ),
    Bar(CATCH_UP, 70.0, is_worst=True),
    Bar(SCALE_FAILOVER, 10.0, is_worst=True),
)


def warm_up(cluster: Cluster, plan: Plan) -> None:
    topic = tools.create_topic(cluster, "warm-up", 3)
    Observer(cluster).wait_until_whole([topic])
    tools.producer_performance(cluster, topic, plan.warm_up_records, RECORD_BYTES, acks="all")
    tools.delete_topics(cluster, topic)


# Losing brokers


def measure_failover(cluster: Cluster, plan: Plan) -> list[Figure]:
    topic = tools.create_topic(cluster, "failover", 1)
    observer = Observer(cluster)
    took: list[float] = []
    with SteadyProducer(cluster, topic, 1, FAILOVER_RATE) as producer:
        for _ in range(plan.kills):
            observer.wait_until_whole([topic])
            producer.first_ack_after(time.monotonic(), FAILOVER_SECONDS_MAX)
            node = cluster.nodes[observer.leader(topic)]
            killed_at = time.monotonic()
            node.kill()
            took.append(producer.first_ack_after(killed_at, FAILOVER_SECONDS_MAX) - killed_at)
            node.start()
    return [
        Figure(f"{FAILOVER}, median", statistics.median(took), "s", higher_is_better=False),
        Figure(f"{FAILOVER}, worst", max(took), "s", higher_is_better=False),
    ]


def measure_restart(cluster: Cluster, plan: Plan) -> list[Figure]:
    topic = tools.create_topic(cluster, "restart", RESTART_PARTITIONS)
    observer = Observer(cluster)
    observer.wait_until_whole([topic])
    with SteadyProducer(cluster, topic, RESTART_PARTITIONS, RESTART_RATE) as producer:
        # The first records wait for connections.
        time.sleep(plan.warm_up_seconds)
        producer.acks.clear()
        for node in cluster.nodes.values():
            node.stop()
            node.start()
            observer.wait_until_whole([topic])
            time.sleep(plan.warm_up_seconds)
    wait_ms = producer.longest_wait_seconds() * 1e3
    return [
        Figure(f"{RESTART}, longest wait for an ack", wait_ms, "ms", higher_is_better=False),
        Figure(f"{RESTART}, errors", len(producer.errors), "records", higher_is_better=False),
    ]


# Speed


def throughput_cases() -> Iterator[Case]:
    for partitions, label in THROUGHPUT_LABELS.items():
        yield Case(f"throughput {label}", throughput_of(partitions, label))


def throughput_of(partitions: int, label: str) -> Callable[[Cluster, Plan], list[Figure]]:
    def measure(cluster: Cluster, plan: Plan) -> list[Figure]:
        topic = tools.create_topic(cluster, f"speed-{partitions}", partitions)
        Observer(cluster).wait_until_whole([topic])
        java_records = plan.bytes_java // 4 // RECORD_BYTES
        java, cpu = rows.metered(
            cluster,
            lambda: tools.producer_performance(
                cluster, topic, java_records, RECORD_BYTES, acks="all"
            )[0],
        )
        records = plan.bytes_kcat // 4 // RECORD_BYTES
        kcat, kcat_cpu = rows.metered(
            cluster,
            lambda: tools.kcat_producer(cluster, topic, records, RECORD_BYTES, "none", "all"),
        )
        tools.delete_topics(cluster, topic)
        name = "brokers' CPU"
        return [
            *rows.rates(f"produce, Java, {label}", java)[1:],
            *rows.rates(f"produce, kcat, {label}", kcat)[1:],
            Figure(f"{name}, Java, {label}", per_gigabyte(cpu, java_records), "s/GB", False),
            Figure(f"{name}, kcat, {label}", per_gigabyte(kcat_cpu, records), "s/GB", False),
        ]

    return measure


def per_gigabyte(cpu_seconds: float, records: int) -> float:
    return cpu_seconds / (records * RECORD_BYTES / rows.GIGABYTE)


def latency_cases() -> Iterator[Case]:
    for rate in LATENCY_RATES:
        yield Case(f"ack latency {rate} records/s acks=all", rows.ack_latency_of(rate, "all"))


# Catch-up


@contextmanager
def running(command: list[str]) -> Iterator[None]:
    """Run a load program in the background."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure_catch_up(cluster: Cluster, plan: Plan) -> list[Figure]:
    size = int(os.environ.get("BENCH_CATCH_UP_BYTES", plan.catch_up_bytes))
    topic = tools.create_topic(cluster, "catch-up", CATCH_UP_PARTITIONS)
    observer = Observer(cluster)
    observer.wait_until_whole([topic])
    load = tools.producer_load(cluster, topic, MANY, RECORD_BYTES, acks="all")
    count = functools.partial(committed_records, cluster, topic, CATCH_UP_PARTITIONS)
    with running(load):
        time.sleep(plan.warm_up_seconds * 2)
        before = rate_of(count, lambda: time.sleep(RATE_SECONDS))
    away = list(cluster.nodes.values())[-1]
    away.stop()
    fill(cluster, topic, size)
    with running(load):
        time.sleep(plan.warm_up_seconds * 2)
        away.start()
        begin = time.monotonic()
        during = rate_of(count, lambda: observer.wait_until_whole([topic], CATCH_UP_SECONDS_MAX))
        seconds = time.monotonic() - begin
    tools.delete_topics(cluster, topic)
    return [
        Figure(CATCH_UP, during / before * 100, "%", higher_is_better=True),
        Figure("catch-up, time until in sync", seconds, "s", higher_is_better=False),
        Figure("catch-up, producers' rate before", before, "records/s", higher_is_better=True),
    ]


def rate_of(committed: Callable[[], int], work: Callable[[], object]) -> float:
    """Return the committed records per second while `action` runs."""
    count, begin = committed(), time.monotonic()
    work()
    return (committed() - count) / (time.monotonic() - begin)


def fill(cluster: Cluster, topic: str, size: int) -> None:
    """Write records in large batches, which no figure includes."""
    options: dict[str, Any] = {"acks": "all", "batch_size": FILL_BATCH_BYTES, "linger_ms": 50}
    left = size
    while left > 0:
        records = min(left, 10**9) // RECORD_BYTES + 1
        tools.producer_performance(cluster, topic, records, RECORD_BYTES, **options)
        left -= records * RECORD_BYTES


# Scale


def measure_scale(cluster: Cluster, plan: Plan) -> list[Figure]:
    cluster.start()
    observer = Observer(cluster)
    topics = plan.scale_partitions // PARTITIONS_PER_TOPIC
    begin = time.monotonic()
    create_many(cluster, topics)
    wait_until(lambda: is_whole(observer, plan), "all partitions in sync", SCALE_SECONDS_MAX)
    created = time.monotonic() - begin
    cluster.stop_brokers()
    begin = time.monotonic()
    cluster.start_brokers(SCALE_START_SECONDS_MAX)
    wait_until(lambda: is_whole(observer, plan), "all partitions in sync", SCALE_SECONDS_MAX)
    started = time.monotonic() - begin
    before = cluster.usage()
    time.sleep(IDLE_SECONDS)
    after = cluster.usage()
    idle = (after.cpu_seconds - before.cpu_seconds) / IDLE_SECONDS * 100
    leaderships, failover = kill_one(cluster, observer, plan)
    label = f"scale, {plan.scale_partitions:,} partitions"
    return [
        Figure(f"{label}, created and in sync", created, "s", higher_is_better=False),
        Figure(f"{label}, start until in sync", started, "s", higher_is_better=False),
        Figure(
            f"{label}, memory of all brokers",
            after.resident_bytes / rows.MEBIBYTE,
            "MiB",
            higher_is_better=False,
        ),
        Figure(f"{label}, idle CPU of all brokers", idle, "% of a core", higher_is_better=False),
        Figure(SCALE_FAILOVER, failover, "s", higher_is_better=False),
        Figure("scale, leaderships that moved", leaderships, "partitions", higher_is_better=True),
    ]


def create_many(cluster: Cluster, topics: int) -> None:
    client = admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
    names = [f"scale-{number}" for number in range(topics)]
    for begin in range(0, topics, TOPICS_PER_REQUEST):
        wanted = [
            admin.NewTopic(name, PARTITIONS_PER_TOPIC, cluster.replicas)
            for name in names[begin : begin + TOPICS_PER_REQUEST]
        ]
        for future in client.create_topics(wanted, operation_timeout=60).values():
            future.result(120)


def is_whole(observer: Observer, plan: Plan) -> bool:
    found = list(observer.partitions())
    return len(found) >= plan.scale_partitions and all(
        each.leader >= 0 and len(each.isrs) == len(each.replicas) for each in found
    )


def kill_one(cluster: Cluster, observer: Observer, plan: Plan) -> tuple[int, float]:
    """Kill a broker. Return its number of led partitions, and the seconds until others lead them.

    Leadership is balanced first: after a start, the broker that stopped last leads everything."""
    tools.java(
        "org.apache.kafka.tools.LeaderElectionCommand",
        *("--bootstrap-server", cluster.bootstrap),
        *("--election-type", "PREFERRED", "--all-topic-partitions"),
    )
    victim = min(cluster.nodes)
    count = sum(each.leader == victim for each in observer.partitions())

    def is_led() -> bool:
        found = list(observer.partitions())
        return len(found) >= plan.scale_partitions and all(
            each.leader not in (-1, victim) for each in found
        )

    begin = time.monotonic()
    cluster.nodes[victim].kill()
    wait_until(is_led, "new leaders", SCALE_SECONDS_MAX)
    return count, time.monotonic() - begin
