"""A librdkafka program: sends records to all partitions of a topic in turn, at a fixed rate, until
it is ended."""

from __future__ import annotations

import argparse
import itertools

import confluent_kafka
from bench.load.open_loop import send
from bench.load.option import add_connection, connection

SECONDS_MAX = 600.0


def main() -> None:
    parser = argparse.ArgumentParser()
    add_connection(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--rate", type=int, required=True)
    options = parser.parse_args()
    producer = confluent_kafka.Producer({**connection(options), "linger.ms": 0})
    numbers = itertools.cycle(range(options.partitions))

    def produce(_due: int) -> None:
        producer.produce(options.topic, bytes(100), partition=next(numbers))

    send(producer, options.rate, SECONDS_MAX, produce)


if __name__ == "__main__":
    main()
