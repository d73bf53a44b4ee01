"""A worker whose handler fails for some messages: retries, and dead letters.

python -m examples.dead_letters
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from millstream import Job, JsonSerializer, Producer, Worker

ORDERS: list[dict[str, Any]] = [
    {"id": 1, "cents": 250},
    {"id": 2, "cents": "a lot"},
    {"id": 3, "cents": 90},
]


def main(bootstrap_servers: str | None = None) -> None:
    """Charge all orders. The second one ends in the topic `charges.dlq`."""
    ended = threading.Semaphore(0)
    worker = Worker(
        bootstrap_servers,
        topics=["charges"],
        group_id="charging",
        value_deserializer=JsonSerializer(),
        attempts_max=2,
        backoff=0.1,
    )

    @worker.handler
    def charge(job: Job) -> None:
        is_last_attempt = job.attempt == 2
        try:
            print(f"order {job.value['id']}: {job.value['cents'] / 100:.2f} euros")
            is_last_attempt = True
        finally:
            if is_last_attempt:
                ended.release()

    with Producer(bootstrap_servers, value_serializer=JsonSerializer()) as producer:
        for order in ORDERS:
            producer.send("charges", order, key=str(order["id"]))
    with worker:
        for _ in ORDERS:
            ended.acquire(timeout=60)
    print(f"{worker.counts.done} done, {worker.counts.dead} dead: millstream dlq list charges")


if __name__ == "__main__":
    main(*sys.argv[1:])
