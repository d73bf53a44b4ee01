"""Commits offsets at a fixed rate, for groups without members, until SIGTERM.

Each commit has one partition. The schedule does not wait for responses. The program prints "ready"
after the first response, and at the end one JSON line: commits, commits per second, the CPU seconds
of this program, and latency percentiles in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import time
from typing import Any

from bench.load.connection import Connection, find_coordinator
from bench.load.open_loop import summary

from millstream.env.termination import add_termination_handler
from millstream.wire.messages.offset_commit import OffsetCommitRequest

GROUPS = 100
CONNECTIONS = 4
TICK_SECONDS = 0.005
#: The last version with topic names instead of topic ids.
BY_NAME = 9
PARTITIONS = 10


def request_of(number: int, topic: str) -> OffsetCommitRequest:
    row = OffsetCommitRequest.Topic.Partition(
        partition_index=number // GROUPS % PARTITIONS, committed_offset=number
    )
    topics = [OffsetCommitRequest.Topic(name=topic, partitions=[row])]
    return OffsetCommitRequest(group_id=f"commits-{number % GROUPS}", topics=topics)


class Storm:
    def __init__(self, connections: list[Connection], topic: str) -> None:
        self._connections = connections
        self._topic = topic
        self._sent = 0
        self._failures: list[str] = []
        self.latencies_ns: list[int] = []

    def send(self, due_ns: int) -> asyncio.Future[Any]:
        number = self._sent
        self._sent += 1
        connection = self._connections[number % len(self._connections)]
        response = connection.call(request_of(number, self._topic), BY_NAME)
        response.add_done_callback(functools.partial(self._answered, due_ns))
        return response

    def _answered(self, due_ns: int, response: asyncio.Future[Any]) -> None:
        code = response.result().topics[0].partitions[0].error_code
        if code:
            self._failures.append(f"error {code}")
        self.latencies_ns.append(time.monotonic_ns() - due_ns)

    async def keep_up(self, rate: int, ended: asyncio.Event) -> float:
        """Send due commits at each tick. Return the duration in seconds."""
        begin = time.monotonic()
        tick = sent = 0
        while not ended.is_set():
            tick += 1
            due = begin + tick * TICK_SECONDS
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            for _ in range(int(tick * TICK_SECONDS * rate) - sent):
                self.send(int(due * 1e9))
                sent += 1
        return time.monotonic() - begin

    def check(self) -> None:
        if self._failures:
            raise SystemExit(f"{len(self._failures)} commits failed: {self._failures[:3]}")


async def run(options: argparse.Namespace) -> None:
    ended = asyncio.Event()
    add_termination_handler(asyncio.get_running_loop(), ended.set)
    await find_coordinator(options.bootstrap, "commits-0")
    connections = [await Connection.open(options.bootstrap) for _ in range(CONNECTIONS)]
    storm = Storm(connections, options.topic)
    await storm.send(time.monotonic_ns())
    storm.check()
    print("ready", flush=True)
    storm.latencies_ns.clear()
    before = time.process_time()
    seconds = await storm.keep_up(options.rate, ended)
    storm.check()
    count = len(storm.latencies_ns)
    found = {
        "commits": count,
        "per_second": count / seconds,
        "cpu_seconds": time.process_time() - before,
        **summary(storm.latencies_ns),
    }
    print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=int, required=True)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
