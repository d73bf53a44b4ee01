"""Pipelined transactions with aiokafka, as `transactions_clients.sender` describes them."""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaProducer


async def main() -> None:
    bootstrap, transactional_id, topic = sys.argv[1:4]
    partitions, transactions, records, abort_every, size = map(int, sys.argv[4:])
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    await producer.start()
    for transaction in range(transactions):
        await producer.begin_transaction()
        sent = []
        for number in range(records):
            value = f"{transaction} {number} ".ljust(size, "x").encode()
            sent.append(await producer.send(topic, value, partition=number % partitions))
        if (transaction + 1) % abort_every:
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
        # aiokafka reports a failed send only in its future.
        await asyncio.gather(*sent)
    await producer.stop()


if __name__ == "__main__":
    asyncio.run(main())
