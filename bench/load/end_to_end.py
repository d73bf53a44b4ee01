"""A librdkafka program: the time from a record's due time until a consumer in another process
receives it.

The consumer reads an assigned partition with default fetch settings. Both processes use the
machine's monotonic clock. Prints one JSON line: percentiles in milliseconds, without the
first seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import struct
import subprocess
import sys
import time

import confluent_kafka
from bench.load.open_loop import send, summary
from bench.load.option import add_connection, connection

STAMP = struct.Struct(">Q")
WAIT_SECONDS_MAX = 60.0


def consume(options: argparse.Namespace) -> None:
    """Print "ready", read until the record with timestamp 0, and print the percentiles."""
    consumer = confluent_kafka.Consumer(
        {
            **connection(options),
            "group.id": "bench",
            "enable.auto.commit": False,
            "socket.nagle.disable": True,
        }
    )
    _, end = consumer.get_watermark_offsets(
        confluent_kafka.TopicPartition(options.topic, 0), timeout=WAIT_SECONDS_MAX
    )
    consumer.assign([confluent_kafka.TopicPartition(options.topic, 0, end)])
    consumer.poll(1.0)
    print("ready", flush=True)
    gc.disable()
    latencies: list[int] = []
    deadline = time.monotonic() + options.warm_up_seconds + options.seconds + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        now = time.monotonic_ns()
        (due,) = STAMP.unpack_from(message.value() or bytes(STAMP.size))
        if due == 0:
            break
        latencies.append(now - due)
    measured = latencies[int(options.rate * options.warm_up_seconds) :]
    print(json.dumps({**summary(measured), "records": len(measured)}), flush=True)


def produce(options: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "bench.load.end_to_end", "--consume", *sys.argv[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        producer = confluent_kafka.Producer(
            {
                **connection(options),
                "acks": options.acks,
                "linger.ms": 0,
                "socket.nagle.disable": True,
            }
        )
        padding = bytes(options.size - STAMP.size)

        def one(due: int) -> None:
            producer.produce(options.topic, STAMP.pack(due) + padding, partition=0)

        gc.disable()
        send(producer, options.rate, options.warm_up_seconds + options.seconds, one)
        one(0)
        producer.flush(WAIT_SECONDS_MAX)
        sys.stdout.write(reader.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--consume", action="store_true")
    add_connection(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--acks", required=True)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up-seconds", type=float, required=True)
    options = parser.parse_args()
    if options.consume:
        consume(options)
    else:
        produce(options)


if __name__ == "__main__":
    main()
