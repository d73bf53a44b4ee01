"""The cases for one broker, grouped into sections that share one start of the broker.

A case runs tools against a running broker and returns figures. A figure's name is its row in the
report. Every section starts with a new broker and a warm-up that no figure includes.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka

from bench import group_rows, tools
from bench.brokers import Broker, Target
from bench.case import Case, Figure, Plan, Section

GIGABYTE = 1e9
MEBIBYTE = 2**20
FIRST_ACK_SECONDS_MAX = 60.0
IDLE_SECONDS = 3.0
OVERSLEEP_SECONDS = 0.001
OVERSLEEP_TIMES = 3000
TRANSACTION_PARTITIONS = 3


def sections() -> list[Section]:
    return [
        Section("start", False, [Case("start", measure_start)]),
        Section("throughput", True, [*throughput_cases(), Case("memory loaded", measure_memory)]),
        Section(
            "latency",
            True,
            [*latency_cases(), *end_to_end_cases(), Case("oversleep", measure_oversleep)],
        ),
        Section("requests", True, [Case("requests", measure_requests)]),
        Section("groups", True, list(group_rows.cases())),
        Section("transactions", True, list(transaction_cases())),
    ]


def warm_up(broker: Target, plan: Plan) -> None:
    topic = tools.create_topic(broker, "warm-up", 1)
    tools.producer_performance(broker, topic, plan.warm_up_records, 1024, acks=1)
    tools.assigned_consumer(broker, topic, 1, plan.warm_up_records)
    # A JVM compiles hot code, and small requests take another path than large ones.
    tools.python("tiny_requests", broker, topic=topic, seconds=plan.tiny_warm_up_seconds)
    tools.delete_topics(broker, topic)


def measure_start(broker: Broker, plan: Plan) -> list[Figure]:
    """Measure the time from process start to the first acknowledged record, and idle memory."""
    broker.start()
    tools.create_topic(broker, "start", 1)
    broker.stop()
    begin = time.monotonic()
    broker.server.start(wait=False)
    first_acknowledged_record(broker, "start")
    seconds = time.monotonic() - begin
    time.sleep(IDLE_SECONDS)
    resident = broker.usage().resident_bytes / MEBIBYTE
    broker.stop()
    return [
        Figure("start to first acknowledged record", seconds, "s", higher_is_better=False),
        Figure("resident memory, idle", resident, "MiB", higher_is_better=False),
    ]


def first_acknowledged_record(broker: Broker, topic: str) -> None:
    """Return once a librdkafka producer has sent a record, with retries."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        **broker.client_properties,
        "acks": "1",
        "linger.ms": 0,
        "reconnect.backoff.ms": 2,
        "reconnect.backoff.max.ms": 5,
        "retry.backoff.ms": 5,
        "retry.backoff.max.ms": 5,
        "topic.metadata.refresh.fast.interval.ms": 5,
        "log_level": 0,
        "error_cb": lambda _error: None,
    }
    outcomes: list[Any] = []
    producer = confluent_kafka.Producer(settings)
    producer.produce(topic, b"first", on_delivery=lambda error, _message: outcomes.append(error))
    deadline = time.monotonic() + FIRST_ACK_SECONDS_MAX
    while not outcomes and time.monotonic() < deadline:
        producer.poll(0.01)
    if outcomes != [None]:
        raise RuntimeError(f"{broker.name} acknowledged no record after its start: {outcomes}")


def throughput_cases() -> Iterator[Case]:
    for size, label in ((1024, "1 KiB"), (100, "100 B")):
        for partitions in (1, 8):
            for codec in ("none", "lz4"):
                name = f"{label}, {partitions} partition{'s' * (partitions > 1)}, {codec}"
                yield Case(f"throughput {name}", throughput_of(name, size, partitions, codec))


def throughput_of(
    name: str, size: int, partitions: int, codec: str
) -> Callable[[Target, Plan], list[Figure]]:
    def measure(broker: Target, plan: Plan) -> list[Figure]:
        return [
            *java_throughput(broker, plan, name, size, partitions, codec),
            *librdkafka_throughput(broker, plan, name, size, partitions, codec),
        ]

    return measure


def java_throughput(
    broker: Target, plan: Plan, name: str, size: int, partitions: int, codec: str
) -> list[Figure]:
    records = plan.bytes_java // max(size, 200)
    topic = tools.create_topic(broker, f"java-{size}-{partitions}-{codec}", partitions)
    produced, cpu_in = metered(
        broker,
        lambda: tools.producer_performance(
            broker, topic, records, size, acks=1, compression_type=codec
        )[0],
    )
    if plan.groups:
        read = lambda: tools.consumer_performance(broker, topic, records)  # noqa: E731
    else:
        read = lambda: tools.assigned_consumer(broker, topic, partitions, records)  # noqa: E731
    consumed, cpu_out = metered(broker, read)
    tools.delete_topics(broker, topic)
    gigabytes = records * size / GIGABYTE
    return [
        *rates(f"produce, Java, {name}", produced),
        *rates(f"consume, Java, {name}", consumed),
        Figure(f"broker CPU in, Java, {name}", cpu_in / gigabytes, "s/GB", higher_is_better=False),
        Figure(
            f"broker CPU out, Java, {name}", cpu_out / gigabytes, "s/GB", higher_is_better=False
        ),
    ]


def librdkafka_throughput(
    broker: Target, plan: Plan, name: str, size: int, partitions: int, codec: str
) -> list[Figure]:
    records = plan.bytes_kcat // max(size, 200)
    topic = tools.create_topic(broker, f"librdkafka-{size}-{partitions}-{codec}", partitions)
    # Debian's kcat cannot log in: see `load/write.py`.
    is_secure = bool(broker.client_properties)
    client = "librdkafka" if is_secure else "kcat"
    send = tools.librdkafka_producer if is_secure else tools.kcat_producer
    produced, _ = metered(broker, lambda: send(broker, topic, records, size, codec))
    consumed, _ = metered(
        broker, lambda: tools.librdkafka_consumer(broker, topic, partitions, records)
    )
    tools.delete_topics(broker, topic)
    return [
        *rates(f"produce, {client}, {name}", produced),
        *rates(f"consume, librdkafka, {name}", consumed),
    ]


def metered(broker: Target, work: Callable[[], tools.Throughput]) -> tuple[tools.Throughput, float]:
    """Run the work after pending write-back, and return the broker's CPU seconds too."""
    os.sync()
    before = broker.usage().cpu_seconds
    done = work()
    return done, broker.usage().cpu_seconds - before


def rates(name: str, found: tools.Throughput) -> list[Figure]:
    return [
        Figure(name, found.records_per_second, "records/s", higher_is_better=True),
        Figure(name, found.megabytes_per_second, "MiB/s", higher_is_better=True),
    ]


def measure_oversleep(broker: Target, plan: Plan) -> list[Figure]:
    """Measure how late this machine wakes a sleeping process while the broker is idle.

    No latency can be steadier than that."""
    late: list[float] = []
    for _ in range(OVERSLEEP_TIMES):
        begin = time.monotonic()
        time.sleep(OVERSLEEP_SECONDS)
        late.append((time.monotonic() - begin - OVERSLEEP_SECONDS) * 1e3)
    name = "the machine itself: oversleeps 1 ms by, p99"
    p99 = statistics.quantiles(late, n=100)[98]
    return [Figure(name, p99, "ms", higher_is_better=False)]


def measure_memory(broker: Target, plan: Plan) -> list[Figure]:
    resident = broker.usage().resident_bytes / MEBIBYTE
    return [Figure("resident memory, loaded", resident, "MiB", higher_is_better=False)]


def latency_cases() -> Iterator[Case]:
    for rate in (1_000, 20_000):
        for acks in ("1", "all"):
            yield Case(f"ack latency {rate} records/s acks={acks}", ack_latency_of(rate, acks))


def ack_latency_of(rate: int, acks: str) -> Callable[[Target, Plan], list[Figure]]:
    def measure(broker: Target, plan: Plan) -> list[Figure]:
        label = f"{rate:,} records/s, acks={acks}"
        topic = tools.create_topic(broker, f"ack-latency-{rate}-{acks}", 1)
        seconds = {"seconds": plan.latency_seconds, "warm_up_seconds": plan.warm_up_seconds}
        found = tools.python("ack_latency", broker, topic=topic, rate=rate, acks=acks, **seconds)
        # A starting JVM falls behind the rate, and then catches up in a burst.
        records = int(rate * 2 * plan.latency_seconds)
        _, found_java = tools.producer_performance(
            broker, topic, records, 1024, rate, warm_up_share=0.5, acks=acks, linger_ms=0
        )
        tools.delete_topics(broker, topic)
        return [
            *latencies(f"ack latency, librdkafka, {label}", found),
            *latencies(f"ack latency, Java, {label}", found_java),
        ]

    return measure


def end_to_end_cases() -> Iterator[Case]:
    for rate in (1_000, 20_000):
        yield Case(f"end-to-end latency {rate} records/s", end_to_end_of(rate))


def end_to_end_of(rate: int) -> Callable[[Target, Plan], list[Figure]]:
    def measure(broker: Target, plan: Plan) -> list[Figure]:
        topic = tools.create_topic(broker, f"end-to-end-{rate}", 1)
        seconds = {"seconds": plan.latency_seconds, "warm_up_seconds": plan.warm_up_seconds}
        found = tools.python("end_to_end", broker, topic=topic, rate=rate, acks="all", **seconds)
        tools.delete_topics(broker, topic)
        return latencies(f"end-to-end latency, librdkafka, {rate:,} records/s, acks=all", found)

    return measure


def latencies(name: str, found: dict[str, Any]) -> list[Figure]:
    return [
        Figure(f"{name}, {part}", found[part], "ms", higher_is_better=False)
        for part in ("p50", "p99", "p99.9")
    ]


def measure_requests(broker: Target, plan: Plan) -> list[Figure]:
    topic = tools.create_topic(broker, "tiny", 1)
    before = broker.usage().cpu_seconds
    found = tools.python("tiny_requests", broker, topic=topic, seconds=plan.latency_seconds)
    cpu_micros = (broker.usage().cpu_seconds - before) / found["requests"] * 1e6
    rate = found["requests"] / found["seconds"]
    java, _ = tools.producer_performance(
        broker,
        topic,
        plan.warm_up_records,
        100,
        acks=1,
        linger_ms=0,
        batch_size=0,
        enable_idempotence="false",
        max_in_flight_requests_per_connection=100,
    )
    name = "one-record requests"
    return [
        Figure(f"{name}, librdkafka", rate, "requests/s", higher_is_better=True),
        Figure(f"{name}, librdkafka, broker CPU", cpu_micros, "µs", higher_is_better=False),
        Figure(f"{name}, Java", java.records_per_second, "requests/s", higher_is_better=True),
    ]


def transaction_cases() -> Iterator[Case]:
    for records in (1, 100, 10_000):
        yield Case(f"transactions of {records} records", transactions_of(records))


def transactions_of(records: int) -> Callable[[Target, Plan], list[Figure]]:
    def measure(broker: Target, plan: Plan) -> list[Figure]:
        label = f"transactions of {records:,} record{'s' * (records > 1)}"
        topic = tools.create_topic(broker, f"transactions-{records}", TRANSACTION_PARTITIONS)
        load = tools.TransactionLoad(
            topic, TRANSACTION_PARTITIONS, records, plan.latency_seconds, plan.warm_up_seconds
        )
        figures: list[Figure] = []
        for client, run in (
            ("librdkafka", tools.librdkafka_transactions),
            ("Java", tools.java_transactions),
        ):
            found = run(broker, load)
            rate = found["records"] / found["seconds"]
            figures += [
                Figure(f"{label}, {client}", rate, "records/s", higher_is_better=True),
                *latencies(f"commit latency, {client}, {label}", found),
            ]
        tools.delete_topics(broker, topic)
        return figures

    return measure
