"""`python -m bench.worker_program.millstream_program SERVERS TOPIC COUNT threads|asyncio`."""

from __future__ import annotations

import sys
import uuid

from bench.worker_program.timing import Timing
from millstream import Job, Worker


def main() -> None:
    servers, topic, count, kind = sys.argv[1:]
    timing = Timing(int(count))

    def handle(job: Job) -> None:
        timing.count()

    async def handle_async(job: Job) -> None:
        timing.count()

    worker = Worker(
        servers,
        topics=[topic],
        group_id=uuid.uuid4().hex,
        handler=handle if kind == "threads" else handle_async,
    )
    worker.run()


if __name__ == "__main__":
    main()
