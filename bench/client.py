"""`python -m bench.client`: compares Millstream's Python client with confluent-kafka and aiokafka.

All clients use one Millstream broker, in turns, in one process, with the same settings. The rows
measure the steady state. A producer is timed from its first to its last delivery, and checks each
delivery. A consumer is timed from its first records on, and reads each value. A row is the median
of records per second over the repeats, and its ratio to the other client. A second ratio compares
the CPU time of the sending or reading thread, which other load changes less.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiokafka
import confluent_kafka
import confluent_kafka.aio

from bench.brokers import Millstream
from millstream.client import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer
from millstream.client.setting import ConsumerSettings, ProducerSettings

TOPIC = "bench-client"
PARTITIONS = 4
SERVE_EVERY = 256
BATCH = 500
LINGER_MS = 5
#: Sends are awaited in groups of this size, so that memory does not grow with the run.
WINDOW = 10_000


@dataclass
class Meter:
    """Wall and CPU seconds of this thread between `begin` and `end`."""

    wall: float = 0.0
    cpu: float = 0.0
    _began: tuple[float, float] = field(default=(0.0, 0.0))

    def begin(self) -> None:
        self._began = time.perf_counter(), time.thread_time()

    def end(self) -> None:
        self.wall = time.perf_counter() - self._began[0]
        self.cpu = time.thread_time() - self._began[1]


Run = Callable[[str, int, bytes, Meter], None]


def raw_send(servers: str, count: int, value: bytes, meter: Meter) -> None:
    producer = confluent_kafka.Producer(ProducerSettings().properties(servers))
    delivered = 0

    def report(error: object, _message: object) -> None:
        nonlocal delivered
        assert error is None, error
        delivered += 1

    producer.produce(TOPIC, value, on_delivery=report)
    producer.flush()
    meter.begin()
    for number in range(count):
        while True:
            try:
                producer.produce(TOPIC, value, on_delivery=report)
                break
            except BufferError:
                producer.poll(0.1)
        if number % SERVE_EVERY == 0:
            producer.poll(0)
    producer.flush()
    meter.end()
    assert delivered == count + 1


def our_send(servers: str, count: int, value: bytes, meter: Meter) -> None:
    with Producer(servers) as producer:
        producer.send(TOPIC, value).result()
        meter.begin()
        for _ in range(count):
            producer.send(TOPIC, value)
        # Raises if any record was not delivered.
        producer.flush()
        meter.end()


def raw_poll(servers: str, count: int, _value: bytes, meter: Meter) -> None:
    consumer = confluent_kafka.Consumer(ConsumerSettings().properties(servers, None))
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, n, 0) for n in range(PARTITIONS)])
    while not consumer.consume(BATCH, 1.0):
        pass
    meter.begin()
    read = 0
    while read < count:
        for message in consumer.consume(BATCH, 1.0):
            if message.error() is None:
                read += bool(message.value())
    meter.end()
    consumer.close()


def our_poll(servers: str, count: int, _value: bytes, meter: Meter) -> None:
    with Consumer(servers, topics=[TOPIC]) as consumer:
        while not consumer.poll(BATCH):
            pass
        meter.begin()
        read = 0
        while read < count:
            for record in consumer.poll(BATCH):
                read += bool(record.value)
        meter.end()


def aiokafka_send(servers: str, count: int, value: bytes, meter: Meter) -> None:
    async def main() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers,
            enable_idempotence=True,
            acks="all",
            linger_ms=LINGER_MS,
            max_batch_size=ProducerSettings().batch_size,
        ) as producer:
            await producer.send_and_wait(TOPIC, value)
            meter.begin()
            for begin in range(0, count, WINDOW):
                size = min(WINDOW, count - begin)
                waiting = [await producer.send(TOPIC, value) for _ in range(size)]
                for delivery in waiting:
                    assert (await delivery).offset >= 0
            meter.end()

    asyncio.run(main())


def our_async_send(servers: str, count: int, value: bytes, meter: Meter) -> None:
    async def main() -> None:
        async with AsyncProducer(servers) as producer:
            await producer.send_and_wait(TOPIC, value)
            meter.begin()
            for begin in range(0, count, WINDOW):
                size = min(WINDOW, count - begin)
                waiting = [await producer.send(TOPIC, value) for _ in range(size)]
                for delivery in waiting:
                    assert (await delivery).offset >= 0
            meter.end()

    asyncio.run(main())


def confluent_async_send(servers: str, count: int, value: bytes, meter: Meter) -> None:
    async def main() -> None:
        producer = confluent_kafka.aio.AIOProducer(ProducerSettings().properties(servers))
        await (await producer.produce(TOPIC, value))
        meter.begin()
        for begin in range(0, count, WINDOW):
            size = min(WINDOW, count - begin)
            waiting = [await producer.produce(TOPIC, value) for _ in range(size)]
            await producer.flush()
            for delivery in waiting:
                assert (await delivery).offset() >= 0
        meter.end()
        await producer.close()

    asyncio.run(main())


def aiokafka_poll(servers: str, count: int, _value: bytes, meter: Meter) -> None:
    async def main() -> None:
        async with aiokafka.AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=servers,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            while not await consumer.getmany(max_records=BATCH, timeout_ms=1000):
                pass
            meter.begin()
            read = 0
            while read < count:
                found = await consumer.getmany(max_records=BATCH, timeout_ms=1000)
                for records in found.values():
                    for record in records:
                        read += bool(record.value)
            meter.end()

    asyncio.run(main())


def our_async_poll(servers: str, count: int, _value: bytes, meter: Meter) -> None:
    async def main() -> None:
        async with AsyncConsumer(servers, topics=[TOPIC]) as consumer:
            while not await consumer.poll(BATCH):
                pass
            meter.begin()
            read = 0
            while read < count:
                for record in await consumer.poll(BATCH):
                    read += bool(record.value)
            meter.end()

    asyncio.run(main())


#: Name, the other client, Millstream's, and the share of the records (asyncio is slower).
ROWS: list[tuple[str, Run, Run, float]] = [
    ("send, confluent-kafka", raw_send, our_send, 1.0),
    ("poll, confluent-kafka", raw_poll, our_poll, 1.0),
    ("asyncio send, aiokafka", aiokafka_send, our_async_send, 0.2),
    ("asyncio send, confluent-kafka's own", confluent_async_send, our_async_send, 0.1),
    ("asyncio poll, aiokafka", aiokafka_poll, our_async_poll, 0.5),
]


def measure(run: Run, servers: str, count: int, value: bytes) -> tuple[float, float]:
    """Return records per second, and records per second of this thread's CPU time."""
    meter = Meter()
    run(servers, count, value, meter)
    return count / meter.wall, count / meter.cpu


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=100, help="size of a value in bytes")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", default="", help="run only rows whose name contains this")
    options = parser.parse_args()
    logging.disable()
    value = b"v" * options.size
    broker = Millstream()
    try:
        broker.start()
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        our_send(broker.bootstrap, options.records + 4 * BATCH, value, Meter())
        print(f"{options.records} records of {options.size} bytes, {options.repeats} repeats")
        for name, beside, ours, share in ROWS:
            if options.rows not in name:
                continue
            count = int(options.records * share)
            pairs = [
                (
                    measure(beside, broker.bootstrap, count, value),
                    measure(ours, broker.bootstrap, count, value),
                )
                for _ in range(options.repeats)
            ]
            rates = [statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
            walls = statistics.median(ours[0] / beside[0] for beside, ours in pairs)
            cpus = statistics.median(ours[1] / beside[1] for beside, ours in pairs)
            print(
                f"{name}: {rates[0]:,.0f}/s, ours {rates[1]:,.0f}/s, "
                f"ratio {walls:.2f}, of the thread's CPU time {cpus:.2f}",
                flush=True,
            )
    finally:
        broker.remove()


if __name__ == "__main__":
    main()
