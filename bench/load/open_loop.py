"""Sends records at a fixed rate, on a schedule that does not wait for answers.

Latency counts from the moment a record was due, so a stall shows in every record it delays.
Records are due in ticks of a millisecond or more, several at a tick when the rate asks for it:
the sender must not need a core of its own on a small machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TICK_NS_MIN = 1_000_000
HEAD_START_NS = 200_000_000


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
    begin = time.monotonic_ns() + HEAD_START_NS
    late_ns_max = 0
    ticks = int(seconds * 1e9 / tick_ns)
    for number in range(ticks):
        due = begin + number * tick_ns
        while (left := due - time.monotonic_ns()) > 0:
            producer.poll(left / 1e9)
        late_ns_max = max(late_ns_max, -left)
        for _ in range(records_per_tick):
            produce(due)
    return ticks * records_per_tick, late_ns_max
