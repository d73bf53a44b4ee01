"""Pipelined transactions with kafka-python, as `transactions_clients.sender` describes them."""

from __future__ import annotations

import sys

from kafka import KafkaProducer


def main() -> None:
    bootstrap, transactional_id, topic = sys.argv[1:4]
    partitions, transactions, records, abort_every, size = map(int, sys.argv[4:])
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    producer.init_transactions()
    for transaction in range(transactions):
        producer.begin_transaction()
        sent = []
        for number in range(records):
            value = f"{transaction} {number} ".ljust(size, "x").encode()
            sent.append(producer.send(topic, value, partition=number % partitions))
        if (transaction + 1) % abort_every:
            producer.commit_transaction()
            for future in sent:
                future.get(timeout=0)
        else:
            producer.abort_transaction()
    producer.close()


if __name__ == "__main__":
    main()
