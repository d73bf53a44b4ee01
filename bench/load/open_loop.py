"""Sends records at a fixed rate, on a schedule that does not wait for answers.

Latency counts from the moment a record was due, so a stall shows in every record it delays. Only
what the machine oversleeps is left out: a record that became due while its sender was free and
asleep is due when the sender wakes, which on a virtual machine can be ten milliseconds after it
asked to. Records are due in ticks of a millisecond or more, several at a tick when the rate asks
for it: the sender must not need a core of its own on a small machine. For the same reason it
sleeps until a record is due, and a thread that blocks in `poll` serves the callbacks: `poll` counts
in whole milliseconds, so that one told to wait for less spins.
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
    """Percentiles in milliseconds."""
    ordered = sorted(latencies_ns)
    found = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {name: percentile(ordered, fraction) / 1e6 for name, fraction in found.items()}


def send(
    producer: Any, rate: int, seconds: float, produce: Callable[[int], None]
) -> tuple[int, int]:
    """Calls `produce(due_ns)` for each record when it is due, serving callbacks meanwhile.

    Returns how many were sent and by how much the sender itself was late at worst, in nanoseconds.
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
