"""Celery on Redis: the application, and a producer: `celery_program.py REDIS COUNT`."""

from __future__ import annotations

import os
import sys
from typing import Any

from celery import Celery  # type: ignore[import-not-found]

QUEUE = "bench"

app: Any = Celery("bench", broker=os.environ["BENCH_REDIS"])
app.conf.update(
    task_default_queue=QUEUE,
    task_ignore_result=True,
    # As Millstream's worker: a message is acknowledged after its handler.
    task_acks_late=True,
    worker_hijack_root_logger=False,
)


def handle(value: str) -> None:
    """Do nothing."""


task: Any = app.task(name="handle")(handle)


def main() -> None:
    count = int(sys.argv[1])
    value = "x" * 100
    with app.connection_for_write() as connection, connection.Producer() as producer:
        for _ in range(count):
            task.apply_async((value,), producer=producer)


if __name__ == "__main__":
    main()
