"""The gauges of groups and their lag: the last round of `LagCollector`.

Each partition has a row in each gauge. A value that is unknown is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from millstream.broker.lag.lag_collector import GroupLag, LagCollector
from millstream.broker.lag.lag_sweep import PartitionLag
from millstream.broker.metrics.broker_metrics import Metrics, RowSource
from millstream.broker.metrics.dead_letter_gauges import show_dead_letters
from millstream.broker.metrics.exposition import LabelValues

#: Number of fastest-growing partitions that have a row.
HOT_PARTITIONS: Final = 20

_PARTITION_GAUGES: Final[tuple[tuple[str, str, Callable[[PartitionLag], float | None]], ...]] = (
    ("lag_records", "Lag of a group in records.", lambda row: row.records),
    ("lag_seconds", "Age of the first record that a group has not read.", lambda row: row.seconds),
    (
        "headroom_seconds",
        "Time until retention deletes records that a group has not read.",
        lambda row: row.headroom_seconds,
    ),
)
_GROUP_GAUGES: Final[tuple[tuple[str, str, Callable[[GroupLag], float]], ...]] = (
    ("lag_records_sum", "Records unread, over all partitions.", lambda lag: lag.records),
    ("lag_records_max", "Records unread in the worst partition.", lambda lag: lag.records_max),
    ("lag_seconds_max", "Lag in seconds in the worst partition.", lambda lag: lag.seconds_max),
    (
        "headroom_seconds_min",
        "Headroom in the worst partition.",
        lambda lag: lag.headroom_seconds_min,
    ),
    (
        "lag_unknown_partitions",
        "Partitions whose leader did not report the backlog of the group.",
        lambda lag: lag.unknown_partitions,
    ),
    ("members", "Members of a group.", lambda lag: lag.members),
)


def show_lag(metrics: Metrics, lag: LagCollector) -> None:
    """Add the gauges of groups, of lag rounds and of dead letters."""
    for name, description, of_partition in _PARTITION_GAUGES:
        metrics.add_rows(
            f"consumer_group_{name}",
            "gauge",
            description,
            ("group", "topic", "partition"),
            _partition_rows(lag, of_partition),
        )
    for name, description, of_group in _GROUP_GAUGES:
        metrics.add_rows(
            f"consumer_group_{name}", "gauge", description, ("group",), _group_rows(lag, of_group)
        )
    metrics.add_rows(
        "consumer_group_state",
        "gauge",
        "Always 1; the label is the state of the group.",
        ("group", "state"),
        lambda: (((each.group_id, each.state), 1) for each in lag.shown()),
    )
    metrics.add_rows(
        "consumer_groups",
        "gauge",
        "Groups with members or offsets, by state.",
        ("state",),
        lambda: (((state,), count) for state, count in lag.last.states.items()),
    )
    _show_rounds(metrics, lag)
    show_dead_letters(metrics, lag.dead_letters)


def _show_rounds(metrics: Metrics, lag: LagCollector) -> None:
    metrics.add_gauge(
        "metrics_groups_folded",
        "Groups beyond the label budget, which share the row _other.",
        lambda: lag.last.folded_groups,
    )
    metrics.add_gauge(
        "metrics_group_partitions_folded",
        "Partitions of groups beyond the label budget, which have no rows of their own.",
        lambda: lag.last.folded_partitions,
    )
    metrics.add_counter("lag_rounds_total", "Rounds over all groups.", lambda: lag.stats.rounds)
    metrics.add_counter(
        "lag_failures_total",
        "Partitions or rounds that failed.",
        lambda: lag.failures + lag.dead_letters.failures,
    )
    metrics.add_gauge(
        "lag_round_seconds", "Duration of the last round.", lambda: lag.stats.duration_seconds
    )
    metrics.add_rows(
        "hot_partition_bytes_per_second",
        "gauge",
        "Bytes received, of the partitions that grow fastest.",
        ("topic", "partition"),
        lambda: (
            ((key.topic, str(key.partition)), rate)
            for key, rate in lag.rates.hottest(HOT_PARTITIONS)
        ),
    )


def _partition_rows(lag: LagCollector, read: Callable[[PartitionLag], float | None]) -> RowSource:
    def rows() -> Iterator[tuple[LabelValues, float]]:
        for group in lag.shown():
            for row in group.partitions:
                value = read(row)
                shown = math.nan if value is None else value
                yield (group.group_id, row.topic, str(row.partition)), shown

    return rows


def _group_rows(lag: LagCollector, read: Callable[[GroupLag], float]) -> RowSource:
    def rows() -> Iterator[tuple[LabelValues, float]]:
        for group in lag.shown():
            yield (group.group_id,), read(group)
        if lag.last.folded is not None:
            yield (lag.last.folded.group_id,), read(lag.last.folded)

    return rows
