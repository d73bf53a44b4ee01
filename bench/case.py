"""The parts of a measurement: figures, cases that return them, sections of cases, and the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.brokers import Target


class Figure(NamedTuple):
    name: str
    value: float
    unit: str
    higher_is_better: bool


@dataclass(slots=True, frozen=True)
class Plan:
    """The amount of work of each case."""

    bytes_java: int
    bytes_kcat: int
    latency_seconds: float
    warm_up_seconds: float
    warm_up_records: int
    tiny_warm_up_seconds: float
    groups: bool  # both brokers support consumer groups, which ConsumerPerformance needs
    # for a cluster
    kills: int
    catch_up_bytes: int
    scale_partitions: int


FULL = Plan(800_000_000, 400_000_000, 10.0, 3.0, 300_000, 10.0, False, 30, 5_000_000_000, 10_000)
QUICK = Plan(60_000_000, 40_000_000, 2.0, 1.0, 50_000, 3.0, False, 3, 500_000_000, 1_000)


class Case(NamedTuple):
    """One case. `measure` gets a running target, or a stopped one if its section says so."""

    name: str
    measure: Callable[[Any, Plan], list[Figure]]


class Bar(NamedTuple):
    """The target value of a row: Millstream's median, or its ratio to Kafka's."""

    row: str
    #: The median or the worst value over the repeats.
    limit: float
    is_ratio: bool = False
    is_worst: bool = False


class Section(NamedTuple):
    name: str
    is_running: bool
    cases: list[Case]


class Suite(NamedTuple):
    """All sections for one kind of target."""

    #: The factory of each target, by its name.
    targets: Mapping[str, Callable[[], Target]]
    sections: list[Section]
    #: Runs before the cases of a section, on a running target.
    warm_up: Callable[[Any, Plan], None]
    bars: Sequence[Bar] = ()
