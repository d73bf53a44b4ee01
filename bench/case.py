"""The words of a measurement: a figure, a case that yields some, a section of cases, and how much
to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from bench.brokers import Broker


class Figure(NamedTuple):
    name: str
    value: float
    unit: str
    higher_is_better: bool


@dataclass(slots=True, frozen=True)
class Plan:
    """How much to do."""

    bytes_java: int
    bytes_kcat: int
    latency_seconds: float
    warm_up_seconds: float
    warm_up_records: int
    tiny_warm_up_seconds: float
    groups: bool  # both brokers have consumer groups, so that ConsumerPerformance can be used


FULL = Plan(800_000_000, 400_000_000, 10.0, 3.0, 300_000, 10.0, groups=False)
QUICK = Plan(60_000_000, 40_000_000, 2.0, 1.0, 50_000, 3.0, groups=False)


class Case(NamedTuple):
    """`measure` gets a broker that runs, or for the start section one that does not."""

    name: str
    measure: Callable[[Broker, Plan], list[Figure]]


class Section(NamedTuple):
    name: str
    is_running: bool
    cases: list[Case]
