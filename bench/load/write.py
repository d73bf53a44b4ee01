"""A librdkafka program: sends records of random letters, as fast as the broker takes them.

kcat does the same. Debian's kcat is linked to librdkafka 2.0.2, which cannot log in by SCRAM: it
sends a wrong nonce (fixed in 2.6.1), which Kafka and Millstream reject.

Prints one JSON line: records, bytes of values, and seconds from the first record to the last
acknowledgement.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from typing import Any

import confluent_kafka
from bench.load.option import add_connection, connection
from bench.load.random_line import random_lines

LINES_BYTES = 1 << 19


def main() -> None:
    parser = argparse.ArgumentParser()
    add_connection(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--codec", required=True)
    options = parser.parse_args()
    producer = confluent_kafka.Producer(
        {
            **connection(options),
            "acks": "1",
            "compression.type": options.codec,
            "queue.buffering.max.messages": 500_000,
        }
    )
    producer.list_topics(options.topic, timeout=30)
    lines = random_lines(LINES_BYTES // options.size, options.size)
    failures: list[str] = []

    def acknowledged(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    gc.disable()
    begin = time.monotonic()
    sent = 0
    while sent < options.records:
        try:
            for line in lines[: options.records - sent]:
                producer.produce(options.topic, line, on_delivery=acknowledged)
                sent += 1
        except BufferError:
            producer.poll(0.01)
        producer.poll(0)
    if producer.flush(60) or failures:
        raise SystemExit(f"not all records were acknowledged: {failures[:3]}")
    seconds = time.monotonic() - begin
    print(json.dumps({"records": sent, "bytes": sent * options.size, "seconds": seconds}))


if __name__ == "__main__":
    main()
