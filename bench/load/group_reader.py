"""A librdkafka program: a group member that records the arrival of each record, until SIGTERM.

It writes a JSON line whenever its partitions change, {"owned": [...]}, and at the end one with all
arrivals: {"arrivals": [[partition, nanoseconds of the machine's monotonic clock], ...]}.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import time

import confluent_kafka
from bench.load.option import add_connection, connection

#: The settings of each kind of member; all others are librdkafka's defaults.
KINDS = {
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    add_connection(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--kind", choices=KINDS, required=True)
    options = parser.parse_args()
    is_ended = False

    def end(_number: int, _frame: object) -> None:
        nonlocal is_ended
        is_ended = True

    signal.signal(signal.SIGTERM, end)
    owned: set[int] = set()

    def changed(partitions: list[confluent_kafka.TopicPartition], *, added: bool) -> None:
        numbers = {each.partition for each in partitions}
        owned.update(numbers) if added else owned.difference_update(numbers)
        print(json.dumps({"owned": sorted(owned)}), flush=True)

    consumer = confluent_kafka.Consumer(
        {
            **connection(options),
            "group.id": options.group,
            "auto.offset.reset": "earliest",
            **KINDS[options.kind],
        }
    )
    consumer.subscribe(
        [options.topic],
        on_assign=lambda _, partitions: changed(partitions, added=True),
        on_revoke=lambda _, partitions: changed(partitions, added=False),
    )
    gc.disable()
    arrivals: list[tuple[int | None, int]] = []
    while not is_ended:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            arrivals.append((message.partition(), time.monotonic_ns()))
    consumer.close()
    print(json.dumps({"arrivals": arrivals}), flush=True)


if __name__ == "__main__":
    main()
