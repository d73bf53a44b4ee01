"""Read-process-write with confluent-kafka, as a program under `transactions_clients.processor`.

Arguments: bootstrap, transactional id, group, input topic, output topic, attempt.
"""

from __future__ import annotations

import itertools
import sys

from confluent_kafka import Consumer, Producer, TopicPartition

WAIT_SECONDS_MAX = 30.0
RECORDS_MAX = 200


def reach(point: str, number: int, count: int) -> None:
    """Print the point, and wait for a line."""
    sys.stdout.write(f"{point} {number} {count}\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        raise SystemExit("standard input was closed")


def main() -> None:
    bootstrap, transactional_id, group, source, target, attempt = sys.argv[1:]
    connection = {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        # When all brokers are down, librdkafka 2.16 forgets them, but keeps the old coordinator of
        # a group: it then never sends offsets.
        "metadata.recovery.strategy": "none",
        "log_level": 0,
    }
    producer = Producer({**connection, "transactional.id": transactional_id})
    producer.init_transactions(WAIT_SECONDS_MAX)
    consumer = Consumer(
        {
            **connection,
            "group.id": group,
            "group.instance.id": transactional_id,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.subscribe([source])
    for number in itertools.count():
        messages = []
        while not messages:
            found = consumer.consume(RECORDS_MAX, 0.1)
            messages = [message for message in found if message.error() is None]
        producer.begin_transaction()
        reach("polled", number, len(messages))
        for message in messages:
            key = f"{attempt}.{number}"
            producer.produce(target, message.value(), key, partition=message.partition())
        if producer.flush(WAIT_SECONDS_MAX):
            raise SystemExit("records were not acknowledged")
        reach("sent", number, len(messages))
        ends = {each.partition(): each.offset() + 1 for each in messages}
        offsets = [TopicPartition(source, partition, end) for partition, end in ends.items()]
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(offsets, metadata, WAIT_SECONDS_MAX)
        reach("ready", number, len(messages))
        producer.commit_transaction(WAIT_SECONDS_MAX)
        reach("ended", number, len(messages))


if __name__ == "__main__":
    main()
