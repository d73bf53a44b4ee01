"""A librdkafka program: the time from a record's due time to its acknowledgement, at a fixed rate.

Prints one JSON line: percentiles in milliseconds, without the first seconds.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import time
from typing import Any

import confluent_kafka
from bench.load.open_loop import send, summary
from bench.load.option import add_connection, connection


def producer_settings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        **connection(options),
        "acks": options.acks,
        "linger.ms": 0,
        "socket.nagle.disable": True,
        "queue.buffering.max.messages": 1_000_000,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    add_connection(parser)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--acks", required=True)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up-seconds", type=float, required=True)
    options = parser.parse_args()
    producer = confluent_kafka.Producer(producer_settings(options))
    payload = bytes(options.size)
    latencies: list[int] = []
    failures: list[str] = []

    def acknowledged(due: int, error: Any, _message: Any) -> None:
        latencies.append(time.monotonic_ns() - due)
        if error is not None:
            failures.append(str(error))

    def produce(due: int) -> None:
        callback = functools.partial(acknowledged, due)
        producer.produce(options.topic, payload, partition=0, on_delivery=callback)

    gc.disable()
    warm_up, _ = send(producer, options.rate, options.warm_up_seconds, produce)
    sent, late_ns_max = send(producer, options.rate, options.seconds, produce)
    unanswered = producer.flush(30)
    if failures or unanswered:
        raise SystemExit(f"{len(failures)} failures, {unanswered} not acknowledged: {failures[:3]}")
    measured = latencies[warm_up:]
    print(json.dumps({**summary(measured), "records": sent, "late_ms_max": late_ns_max / 1e6}))


if __name__ == "__main__":
    main()
