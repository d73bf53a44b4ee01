"""`python -m bench.client`: Millstream's Python client beside bare confluent-kafka and aiokafka.

All of them talk to one Millstream broker, in turns, in one process, with the same settings. A row
is records a second, the median over repeats; its ratio is that to the client beside it. A second
ratio is of the CPU time of the thread that sends or reads, which other work changes less.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import time
from collections.abc import Callable

import aiokafka
import confluent_kafka

from bench.brokers import Millstream
from millstream.client import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer
from millstream.client.setting import ConsumerSettings, ProducerSettings

TOPIC = "bench-client"
PARTITIONS = 4
SERVE_EVERY = 256
BATCH = 500
Run = Callable[[str, int, bytes], None]


def raw_send(servers: str, count: int, value: bytes) -> None:
    producer = confluent_kafka.Producer(ProducerSettings().properties(servers))
    failures: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    for number in range(count):
        while True:
            try:
                producer.produce(TOPIC, value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if number % SERVE_EVERY == 0:
            producer.poll(0)
    producer.flush()
    assert not failures, failures[:3]


def our_send(servers: str, count: int, value: bytes) -> None:
    with Producer(servers) as producer:
        for _ in range(count):
            producer.send(TOPIC, None, value)


def raw_poll(servers: str, count: int, _value: bytes) -> None:
    consumer = confluent_kafka.Consumer(ConsumerSettings().properties(servers, None))
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, n, 0) for n in range(PARTITIONS)])
    while count > 0:
        count -= sum(message.error() is None for message in consumer.consume(BATCH, 1.0))
    consumer.close()


def our_poll(servers: str, count: int, _value: bytes) -> None:
    with Consumer(servers, topics=[TOPIC]) as consumer:
        while count > 0:
            count -= len(consumer.poll(BATCH))


def aiokafka_send(servers: str, count: int, value: bytes) -> None:
    async def main() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers, enable_idempotence=True, linger_ms=5
        ) as producer:
            waiting = [await producer.send(TOPIC, value) for _ in range(count)]
            for delivery in waiting:
                await delivery

    asyncio.run(main())


def our_async_send(servers: str, count: int, value: bytes) -> None:
    async def main() -> None:
        async with AsyncProducer(servers) as producer:
            waiting = [await producer.send(TOPIC, None, value) for _ in range(count)]
            for delivery in waiting:
                await delivery

    asyncio.run(main())


def aiokafka_poll(servers: str, count: int, _value: bytes) -> None:
    async def main(left: int) -> None:
        async with aiokafka.AIOKafkaConsumer(
            TOPIC, bootstrap_servers=servers, auto_offset_reset="earliest"
        ) as consumer:
            while left > 0:
                found = await consumer.getmany(max_records=BATCH, timeout_ms=1000)
                left -= sum(map(len, found.values()))

    asyncio.run(main(count))


def our_async_poll(servers: str, count: int, _value: bytes) -> None:
    async def main(left: int) -> None:
        async with AsyncConsumer(servers, topics=[TOPIC]) as consumer:
            while left > 0:
                left -= len(await consumer.poll(BATCH))

    asyncio.run(main(count))


#: Name, the client beside ours, ours, and the share of the records (aiokafka takes its time).
ROWS: list[tuple[str, Run, Run, float]] = [
    ("send, confluent-kafka", raw_send, our_send, 1.0),
    ("poll, confluent-kafka", raw_poll, our_poll, 1.0),
    ("asyncio send, aiokafka", aiokafka_send, our_async_send, 0.1),
    ("asyncio poll, aiokafka", aiokafka_poll, our_async_poll, 0.2),
]


def measure(run: Run, servers: str, count: int, value: bytes) -> tuple[float, float]:
    """Records a second, and records per second of this thread's CPU time."""
    begin, begin_cpu = time.perf_counter(), time.thread_time()
    run(servers, count, value)
    return count / (time.perf_counter() - begin), count / (time.thread_time() - begin_cpu)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    logging.disable()
    value = bytes(options.size)
    broker = Millstream()
    try:
        broker.start()
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        our_send(broker.bootstrap, options.records, value)
        print(f"{options.records} records of {options.size} bytes, {options.repeats} repeats")
        for name, beside, ours, share in ROWS:
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
