"""A worker process that a test kills: `killed_worker.py SERVERS TOPIC GROUP ORDER MODE NAME`.

Every 33rd message is poison, every tenth fails twice. Messages that are done go to TOPIC-out.
"""

from __future__ import annotations

import logging
import signal
import sys
from typing import Any, cast

from millstream.client import Job, Worker

logging.basicConfig(level=logging.WARNING)


def is_poison(number: int) -> bool:
    return number % 33 == 5


def is_failing_for_a_while(number: int) -> bool:
    return number % 10 == 1


def main() -> None:
    servers, topic, group, order, mode, name = sys.argv[1:]

    def handle(job: Job) -> None:
        number = int(job.value)
        if is_poison(number):
            raise ValueError(f"poison {number}")
        if is_failing_for_a_while(number) and job.attempt < 3:
            raise ConnectionError("not yet")
        job.send(f"{topic}-out", job.value, key=job.key)

    worker = Worker(
        servers,
        topics=[topic],
        group_id=group,
        handler=handle,
        order=cast("Any", order),
        transactional=mode == "transactional",
        name=name,
        attempts_max=4,
        backoff=0.02,
        concurrency=8,
        consumer={"session_timeout": 2},
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()


if __name__ == "__main__":
    main()
