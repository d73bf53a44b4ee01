"""Pipelined transactions with confluent-kafka, as `transactions_clients.sender` describes them."""

from __future__ import annotations

import sys

from confluent_kafka import KafkaError, KafkaException, Message, Producer

WAIT_SECONDS_MAX = 60.0


def check(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def main() -> None:
    bootstrap, transactional_id, topic = sys.argv[1:4]
    partitions, transactions, records, abort_every, size = map(int, sys.argv[4:])
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(WAIT_SECONDS_MAX)
    for transaction in range(transactions):
        producer.begin_transaction()
        for number in range(records):
            value = f"{transaction} {number} ".ljust(size, "x")
            producer.produce(topic, value, partition=number % partitions, on_delivery=check)
            producer.poll(0)
        if (transaction + 1) % abort_every:
            producer.commit_transaction(WAIT_SECONDS_MAX)
        else:
            # librdkafka cannot abort before its first request is accepted: while the coordinator
            # completes the previous transaction, it rejects this EndTxn (INVALID_TXN_STATE).
            if producer.flush(WAIT_SECONDS_MAX):
                raise SystemExit("records were not acknowledged")
            producer.abort_transaction(WAIT_SECONDS_MAX)


if __name__ == "__main__":
    main()
