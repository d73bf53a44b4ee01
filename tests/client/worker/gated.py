"""A worker process that receives signals: `gated.py SERVERS TOPIC GROUP RUNS`.

Prints "began OFFSET" for each message, and finishes the message when it reads a line. Prints
"ended" after each run.
"""

from __future__ import annotations

import logging
import sys

from millstream.client import Job, Worker

logging.basicConfig(level=logging.WARNING)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    servers, topic, group, runs = sys.argv[1:]

    def handle(job: Job) -> None:
        say(f"began {job.offset}")
        sys.stdin.readline()

    worker = Worker(
        servers, topics=[topic], group_id=group, handler=handle, concurrency=1, commit_interval=3600
    )
    for _ in range(int(runs)):
        try:
            worker.run()
        except KeyboardInterrupt:
            say("interrupted")
        say("ended")


if __name__ == "__main__":
    main()
