"""A worker that is signalled: `gated.py SERVERS TOPIC GROUP RUNS`.

Says "began OFFSET" for each message, and has it done when it is sent a line. Says "ended" after
each of its runs.
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
        servers, topics=[topic], group=group, handler=handle, concurrency=1, commit_interval_s=3600
    )
    for _ in range(int(runs)):
        try:
            worker.run()
        except KeyboardInterrupt:
            say("interrupted")
        say("ended")


if __name__ == "__main__":
    main()
