"""Translates the filters of a query into offset ranges. Pure.

The source evaluates filters on `topic`, `partition` and `offset` fully, so Spark does not apply
them again. A lower bound on `timestamp` only moves the start of a range to the first record with
that timestamp or a later one. Timestamps need not ascend, so Spark still applies the filter to each
record. An upper bound on `timestamp` has no effect on the range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from millstream.model.sentinel import INT64_MAX
from millstream.spark.source.offset_range import OffsetRange

_NEVER_NULL: Final = ("topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True, slots=True)
class RangeFilter:
    """The topics, partitions and offsets that a query reads. Bounds are `[low, high)`."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_low: int = 0
    partition_high: int = INT64_MAX
    offset_low: int = 0
    offset_high: int = INT64_MAX
    #: The query reads from the first record with this timestamp or a later one.
    timestamp_ms: int | None = None

    def apply(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges without the filtered offsets. The caller applies `timestamp_ms`."""
        left = [
            replace(
                one,
                start=max(one.start, self.offset_low),
                end=min(one.end, self.offset_high),
            )
            for one in ranges
            if self._has(one)
        ]
        return [one for one in left if one.size]

    def _has(self, one: OffsetRange) -> bool:
        return (
            (self.topics is None or one.topic in self.topics)
            and (self.partitions is None or one.partition in self.partitions)
            and self.partition_low <= one.partition < self.partition_high
        )


def push_filters(filters: Iterable[Filter]) -> tuple[RangeFilter, list[Filter]]:
    """Return the filter on ranges, and the filters that Spark still has to apply."""
    wanted, left = RangeFilter(), []
    for each in filters:
        following = _add(wanted, each)
        if following is None:
            left.append(each)
            continue
        wanted = following
        if getattr(each, "attribute", ()) == ("timestamp",) and not isinstance(each, IsNotNull):
            left.append(each)
    return wanted, left


def _add(wanted: RangeFilter, each: Filter) -> RangeFilter | None:
    """Add one filter. Return None if the source cannot evaluate it."""
    path: tuple[str, ...] = getattr(each, "attribute", ())
    if len(path) != 1:
        return None
    name = path[0]
    if isinstance(each, IsNotNull):
        return wanted if name in _NEVER_NULL else None
    value: Any = getattr(each, "value", None)
    if name == "topic":
        return _add_topics(wanted, each, value)
    if name == "timestamp":
        return _add_timestamp(wanted, each, value)
    if name == "partition" and isinstance(each, In) and all(map(_is_number, each.value)):
        numbers = frozenset(each.value)
        known = wanted.partitions
        return replace(wanted, partitions=numbers if known is None else known & numbers)
    if name in ("partition", "offset") and _is_number(value):
        return _add_number(wanted, each, name, value)
    return None


def _add_topics(wanted: RangeFilter, each: Filter, value: Any) -> RangeFilter | None:
    if isinstance(each, EqualTo | EqualNullSafe) and isinstance(value, str):
        names = frozenset([value])
    elif isinstance(each, In) and all(isinstance(one, str) for one in each.value):
        names = frozenset(each.value)
    else:
        return None
    known = wanted.topics
    return replace(wanted, topics=names if known is None else known & names)


def _add_timestamp(wanted: RangeFilter, each: Filter, value: Any) -> RangeFilter | None:
    bounds = EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual
    if not isinstance(each, bounds) or not isinstance(value, datetime):
        return None
    # A value without a time zone has another type than the column. Spark compares those itself.
    if value.tzinfo is None:
        return None
    moment_ms = int((value - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000) - 1
    known = wanted.timestamp_ms
    return replace(wanted, timestamp_ms=moment_ms if known is None else max(known, moment_ms))


def _add_number(wanted: RangeFilter, each: Filter, name: str, value: int) -> RangeFilter | None:
    low, high = 0, INT64_MAX
    match each:
        case EqualTo() | EqualNullSafe():
            low, high = value, value + 1
        case GreaterThan():
            low = value + 1
        case GreaterThanOrEqual():
            low = value
        case LessThan():
            high = value
        case LessThanOrEqual():
            high = value + 1
        case _:
            return None
    if name == "partition":
        return replace(
            wanted,
            partition_low=max(wanted.partition_low, low),
            partition_high=min(wanted.partition_high, high),
        )
    return replace(
        wanted,
        offset_low=max(wanted.offset_low, low),
        offset_high=min(wanted.offset_high, high),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
