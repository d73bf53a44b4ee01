"""A librdkafka program: the maximum rate of one-record requests on one connection, pipelined.

Prints one JSON line: requests, seconds from the first to the last acknowledgement.
"""

from __future__ import annotations

import argparse
import json
import time

import confluent_kafka
from bench.load.option import add_connection, connection


def main() -> None:
    parser = argparse.ArgumentParser()
    add_connection(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    producer = confluent_kafka.Producer(
        {
            **connection(options),
            "acks": "1",
            "linger.ms": 0,
            "batch.num.messages": 1,
            "max.in.flight.requests.per.connection": 1000,
            "queue.buffering.max.messages": 20_000,
            "socket.nagle.disable": True,
        }
    )
    payload = bytes(100)
    producer.produce(options.topic, payload, partition=0)
    producer.flush(30)
    sent = 0
    begin = time.monotonic()
    deadline = begin + options.seconds
    while time.monotonic() < deadline:
        try:
            for _ in range(500):
                producer.produce(options.topic, payload, partition=0)
                sent += 1
        except BufferError:
            producer.poll(0.001)
    if producer.flush(60):
        raise SystemExit("the broker did not respond to every request")
    print(json.dumps({"requests": sent, "seconds": time.monotonic() - begin}))


if __name__ == "__main__":
    main()
