"""Sends records at a fixed rate, on a schedule that does not wait for responses.

Latency counts from a record's due time, so a stall shows in every record that it delays. Only the
oversleep of the machine is left out: a record that became due while its idle sender slept is due
when the sender wakes. On a virtual machine a sleep can end ten milliseconds late. Records are due
in ticks of at least a millisecond, several per tick at high rates, so that the sender needs no core
of its own. For the same reason it sleeps until a record is due, and a thread that blocks in `poll`
serves the callbacks: `poll` counts whole milliseconds, so that a shorter wait would spin.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

TICK_NS_MIN = 1_000_000
HEAD_START_NS = 200_000_000
POLL_SECONDS = 0.1


def percentile(ordered: list[int], fraction: float) -> int:
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


def summary(latencies_ns: list[int]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    ordered = sorted(latencies_ns)
    found = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {name: percentile(ordered, fraction) / 1e6 for name, fraction in found.items()}


def send(
    producer: Any, rate: int, seconds: float, produce: Callable[[int], None]
) -> tuple[int, int]:
    """Call `produce(due_ns)` for each record when it is due, and serve callbacks meanwhile.

    Return the number of records and the largest delay of the sender in nanoseconds.
    """
    tick_ns = max(TICK_NS_MIN, 1_000_000_000 // rate)
    records_per_tick = max(1, rate * tick_ns // 1_000_000_000)
    late_ns_max = 0
    ticks = int(seconds * 1e9 / tick_ns)
    is_done = threading.Event()
    callbacks = threading.Thread(target=_serve_callbacks, args=(producer, is_done))
    callbacks.start()
    awake_since = 0
    begin = time.monotonic_ns() + HEAD_START_NS
    for number in range(ticks):
        due = begin + number * tick_ns
        if (left := due - time.monotonic_ns()) > 0:
            time.sleep(left / 1e9)
            awake_since = time.monotonic_ns()
        due = max(due, awake_since)
        late_ns_max = max(late_ns_max, time.monotonic_ns() - due)
        for _ in range(records_per_tick):
            produce(due)
    is_done.set()
    callbacks.join()
    return ticks * records_per_tick, late_ns_max


def _serve_callbacks(producer: Any, is_done: threading.Event) -> None:
    while not is_done.is_set():
        producer.poll(POLL_SECONDS)
