"""A librdkafka program: the maximum rate of the producer of `ack_latency`, without a schedule.

Prints one JSON line: records, seconds from the first to the last acknowledgement.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from typing import Any

import confluent_kafka
from bench.load.ack_latency import producer_settings
from bench.load.option import add_connection

BURST = 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    add_connection(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--acks", required=True)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    settings = producer_settings(options)
    # Without this limit seconds of work would queue up.
    settings["queue.buffering.max.messages"] = 20 * BURST
    producer = confluent_kafka.Producer(settings)
    payload = bytes(options.size)
    failures: list[str] = []

    def acknowledged(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    gc.disable()
    sent = 0
    begin = time.monotonic()
    while time.monotonic() - begin < options.seconds:
        try:
            for _ in range(BURST):
                producer.produce(options.topic, payload, partition=0, on_delivery=acknowledged)
                sent += 1
        except BufferError:
            producer.poll(0.001)
        producer.poll(0)
    if producer.flush(60) or failures:
        raise SystemExit(f"not all records were acknowledged: {failures[:3]}")
    print(json.dumps({"records": sent, "seconds": time.monotonic() - begin}))


if __name__ == "__main__":
    main()
