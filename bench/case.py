"""The words of a measurement: a figure, a case that yields some, a section of cases, and how much
to do."""

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
    """How much to do."""

    bytes_java: int
    bytes_kcat: int
    latency_seconds: float
    warm_up_seconds: float
    warm_up_records: int
    tiny_warm_up_seconds: float
    groups: bool  # both brokers have consumer groups, so that ConsumerPerformance can be used
    # of a cluster
    kills: int
    catch_up_bytes: int
    scale_partitions: int


FULL = Plan(800_000_000, 400_000_000, 10.0, 3.0, 300_000, 10.0, False, 30, 5_000_000_000, 10_000)
QUICK = Plan(60_000_000, 40_000_000, 2.0, 1.0, 50_000, 3.0, False, 3, 500_000_000, 1_000)


class Case(NamedTuple):
    """`measure` gets a broker or a cluster that runs, or one that does not where its section says
    so."""

    name: str
    measure: Callable[[Any, Plan], list[Figure]]


class Bar(NamedTuple):
    """What a row must reach: Millstream's median, or its ratio to Kafka's."""

    row: str
    #: The median over the repeats, or the worst of them.
    limit: float
    is_ratio: bool = False
    is_worst: bool = False


class Section(NamedTuple):
    name: str
    is_running: bool
    cases: list[Case]


class Suite(NamedTuple):
    """All that can be measured of one kind of target."""

    #: How to make each target, by its name.
    targets: Mapping[str, Callable[[], Target]]
    sections: list[Section]
    #: Before the cases of a section, on a target that runs.
    warm_up: Callable[[Any, Plan], None]
    bars: Sequence[Bar] = ()
