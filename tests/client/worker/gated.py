"""A worker that is signalled: `gated.py SERVERS TOPIC GROUP RUNS`.

Says "began OFFSET" for each message, and has it done when it is sent a line. Says "ended" after
each of its runs.
"""

from __future__ import annotations

import logging
import sys

from millstream.client import Job, Worker

logging.basicConfig(level=logging.WARNING)


def main() -> None:
    servers, topic, group, runs = sys.argv[1:]

    def handle(job: Job) -> None:
        print("began", job.offset, flush=True)
        sys.stdin.readline()

    worker = Worker(
        servers, topics=[topic], group=group, handler=handle, concurrency=1, commit_interval_s=3600
    )
    for _ in range(int(runs)):
        try:
            worker.run()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
