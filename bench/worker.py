"""`python -m bench.worker`: messages per second of workers with an empty handler.

Millstream's `Worker` (threads and asyncio) and FastStream read a topic of a Millstream broker with
four partitions and 1,000 keys. Celery reads a Redis list. All run in one process with their default
settings, except that Celery acknowledges after the handler, as Millstream does, and also runs with
its usual pool of processes. All messages are written before the worker starts, and the clock runs
from the first to the last message.

FastStream and Celery come from `requirements/bench.txt`, in `.venv/bench`. Where that is missing,
their rows say so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.brokers import REPOSITORY, Millstream
from millstream import Admin, Producer

ENVIRONMENT = REPOSITORY / ".venv" / "bench" / "bin" / "python"
PROGRAMS = Path(__file__).with_name("worker_program")
PARTITIONS = 4
KEYS = 1000
SECONDS_MAX = 600.0
#: Celery's pool is warm once this share of the messages is taken.
WARM_UP_SHARE = 0.1


class Row(NamedTuple):
    """One system. `measure` returns messages per second."""

    name: str
    measure: Callable[[], float]
    #: Why the system cannot be measured here, or None.
    obstacle: str | None = None


def fill(servers: str, topic: str, count: int, size: int) -> None:
    with Admin(servers) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    with Producer(servers) as producer:
        for number in range(count):
            producer.send(topic, b"x" * size, key=str(number % KEYS))


def program_rate(command: list[str], count: int) -> float:
    """Run a program that prints its seconds. Return messages per second."""
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[1]} failed:\n{done.stderr[-2000:]}")
    return (count - 1) / float(done.stdout.split()[-1])


@contextmanager
def redis_server() -> Iterator[str]:
    """Run Redis in memory, and yield its address."""
    sys.path.append(str(REPOSITORY / "tests"))
    from harness.process.redis_process import RedisProcess

    with tempfile.TemporaryDirectory() as folder, RedisProcess(Path(folder)) as server:
        yield server.address


def celery_rate(address: str, count: int, pool: list[str]) -> float:
    """Fill a Redis list, and measure how fast Celery takes the messages from it."""
    import redis

    environment = {**os.environ, "BENCH_REDIS": address}
    client = redis.Redis.from_url(address)
    client.flushall()
    program = [str(ENVIRONMENT), str(PROGRAMS / "celery_program.py"), str(count)]
    subprocess.run(program, env=environment, cwd=PROGRAMS, check=True, timeout=SECONDS_MAX)
    worker = [str(ENVIRONMENT), "-m", "celery", "-A", "celery_program", "worker"]
    options = ["--loglevel=ERROR", "--without-gossip", "--without-mingle", *pool]
    process = subprocess.Popen(
        [*worker, *options],
        env=environment,
        cwd=PROGRAMS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        first = int(count * (1 - WARM_UP_SHARE))
        begin, left = wait_below(client, first, process)
        end, _ = wait_below(client, 0, process)
        return left / (end - begin)
    finally:
        process.terminate()
        process.wait()
        client.close()


def wait_below(client: object, limit: int, process: subprocess.Popen[bytes]) -> tuple[float, int]:
    """Wait until at most `limit` messages are left. Return the time and their number."""
    deadline = time.monotonic() + SECONDS_MAX
    while (left := int(client.llen("bench"))) > limit:  # type: ignore[attr-defined]
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Celery stopped with {left} messages left")
        time.sleep(0.005)
    return time.perf_counter(), left


def rows_of(servers: str, topic: str, redis: str | None, count: int) -> list[Row]:
    missing = None if ENVIRONMENT.exists() else "not installed: `make bench-worker` installs it"
    no_redis = "redis-server is not installed" if redis is None else None

    def millstream(kind: str) -> Callable[[], float]:
        program = [sys.executable, "-m", "bench.worker_program.millstream_program"]
        return lambda: program_rate([*program, servers, topic, str(count), kind], count)

    def faststream(kind: str) -> Callable[[], float]:
        program = [str(ENVIRONMENT), str(PROGRAMS / "faststream_program.py")]
        return lambda: program_rate([*program, servers, topic, str(count), kind], count)

    def celery(*pool: str) -> Callable[[], float]:
        # Celery is much slower: fewer messages give the same figure sooner.
        return lambda: celery_rate(redis or "", max(2000, count // 10), list(pool))

    return [
        Row("Millstream, 16 threads", millstream("threads")),
        Row("Millstream, asyncio", millstream("asyncio")),
        Row("FastStream, commits on a timer", faststream("default"), missing),
        Row("FastStream, commits each message", faststream("ack"), missing),
        Row("Celery, 16 threads", celery("--pool=threads", "-c16"), missing or no_redis),
        Row("Celery, 2 processes", celery("--pool=prefork", "-c2"), missing or no_redis),
    ]


def measure(rows: list[Row], repeats: int, console: Console) -> None:
    """Measure the systems in turns, and print a table."""
    rates: dict[str, list[float]] = {row.name: [] for row in rows}
    for _ in range(repeats):
        for row in rows:
            if row.obstacle is None:
                rates[row.name].append(row.measure())
    table = Table(box=None)
    for heading in ("worker", "messages/s", "lowest", "highest"):
        table.add_column(heading, justify="left" if heading == "worker" else "right")
    for row in rows:
        found = rates[row.name]
        if found:
            figures = (statistics.median(found), min(found), max(found))
            table.add_row(row.name, *(f"{figure:,.0f}" for figure in figures))
        else:
            table.add_row(row.name, row.obstacle)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.worker", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=100, help="size of a value in bytes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="measure systems whose name contains this")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    broker = Millstream()
    try:
        broker.start()
        fill(broker.bootstrap, "bench", options.messages, options.size)
        if shutil.which("redis-server") is None:
            rows = rows_of(broker.bootstrap, "bench", None, options.messages)
            measure(chosen(rows, options.only), options.repeats, console)
            return
        with redis_server() as address:
            rows = rows_of(broker.bootstrap, "bench", address, options.messages)
            measure(chosen(rows, options.only), options.repeats, console)
    finally:
        broker.remove()


def chosen(rows: list[Row], part: str) -> list[Row]:
    return [row for row in rows if part.lower() in row.name.lower()]


if __name__ == "__main__":
    main()
