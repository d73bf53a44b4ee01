"""A librdkafka program: reads all partitions of a topic from their beginning, by assignment.

Prints one JSON line: records, bytes of values, and seconds from the assignment to the last record.
"""

from __future__ import annotations

import argparse
import gc
import json
import time

import confluent_kafka
from bench.load.option import add_connection, connection

READ_SECONDS_MAX = 120.0


def main() -> None:
    parser = argparse.ArgumentParser()
    add_connection(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    options = parser.parse_args()
    consumer = confluent_kafka.Consumer(
        {
            **connection(options),
            "group.id": "bench",
            "enable.auto.commit": False,
            "check.crcs": False,
        }
    )
    consumer.list_topics(options.topic, timeout=30)
    gc.disable()
    begin = time.monotonic()
    consumer.assign(
        [confluent_kafka.TopicPartition(options.topic, p, 0) for p in range(options.partitions)]
    )
    records = value_bytes = 0
    while records < options.records:
        messages = consumer.consume(min(10_000, options.records - records), timeout=1.0)
        records += len(messages)
        if messages:
            value_bytes += len(messages[0].value() or b"") * len(messages)
        if time.monotonic() - begin > READ_SECONDS_MAX:
            raise SystemExit(f"read only {records} records in {READ_SECONDS_MAX:.0f} s")
    seconds = time.monotonic() - begin
    print(json.dumps({"records": records, "bytes": value_bytes, "seconds": seconds}), flush=True)
    consumer.close()


if __name__ == "__main__":
    main()
