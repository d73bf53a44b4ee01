"""Read-process-write with aiokafka, as a program under `transactions_clients.processor`.

Arguments: bootstrap, transactional id, group, input topic, output topic, attempt.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

WAIT_SECONDS_MAX = 30.0
RECORDS_MAX = 200


async def reach(point: str, number: int, count: int) -> None:
    """Print the point, and wait for a line."""
    sys.stdout.write(f"{point} {number} {count}\n")
    sys.stdout.flush()
    if not await asyncio.to_thread(sys.stdin.readline):
        raise SystemExit("standard input was closed")


async def transact(
    producer: AIOKafkaProducer, consumer: AIOKafkaConsumer, group: str, target: str, key: str
) -> None:
    batches = {}
    while not batches:
        batches = await consumer.getmany(timeout_ms=100, max_records=RECORDS_MAX)
    number = int(key.rpartition(".")[2])
    records = [record for batch in batches.values() for record in batch]
    await producer.begin_transaction()
    await reach("polled", number, len(records))
    sent = [
        await producer.send(target, record.value, key.encode(), partition=record.partition)
        for record in records
    ]
    await asyncio.wait_for(asyncio.gather(*sent), WAIT_SECONDS_MAX)
    await reach("sent", number, len(records))
    offsets = {partition: batch[-1].offset + 1 for partition, batch in batches.items()}
    await producer.send_offsets_to_transaction(offsets, group)
    await reach("ready", number, len(records))
    await asyncio.wait_for(producer.commit_transaction(), WAIT_SECONDS_MAX)
    await reach("ended", number, len(records))


async def main() -> None:
    bootstrap, transactional_id, group, source, target, attempt = sys.argv[1:]
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    await producer.start()
    consumer = AIOKafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=transactional_id,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
    )
    await consumer.start()
    for number in itertools.count():
        await transact(producer, consumer, group, target, f"{attempt}.{number}")


if __name__ == "__main__":
    asyncio.run(main())
