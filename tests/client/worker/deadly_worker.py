"""A worker whose process some messages kill: `deadly_worker.py SERVERS TOPIC GROUP ORDER MODE`.

Messages that are done go to TOPIC-out.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from typing import Any, cast

from millstream.client import Job, Worker

logging.basicConfig(level=logging.WARNING)


def main() -> None:
    servers, topic, group, order, mode = sys.argv[1:]

    def handle(job: Job) -> None:
        if job.value == b"kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if job.value == b"segfault":
            ctypes.string_at(0)
        job.send(f"{topic}-out", job.value, key=job.key)

    worker = Worker(
        servers,
        topics=[topic],
        group_id=group,
        handler=handle,
        order=cast("Any", order),
        transactional=mode == "transactional",
        name="victim",
        attempts_max=3,
        concurrency=8,
        # A member that rejoins with its instance id gets its partitions at once.
        consumer={"group_instance_id": "victim"},
    )
    worker.run()


if __name__ == "__main__":
    main()
