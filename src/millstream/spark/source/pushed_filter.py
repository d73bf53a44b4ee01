"""Filters of a query that say something of offsets. Pure.

Filters on `topic`, `partition` and `offset` are taken over whole: Spark need not look again. One
on `timestamp` only moves the start, to the first offset as late as it asks for: timestamps need
not ascend, so Spark still looks at each record, and an upper bound moves nothing.
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
    """What a query wants of the ranges: `[low, high)` of numbers, and any of the topics."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_low: int = 0
    partition_high: int = INT64_MAX
    offset_low: int = 0
    offset_high: int = INT64_MAX
    #: Records before the first that is as late are not wanted.
    timestamp_ms: int | None = None

    def apply(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """What is left of `ranges`; the timestamp is for whoever can ask the brokers."""
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
    """What filters mean for ranges, and those that Spark still has to apply."""
    narrowing, left = RangeFilter(), []
    for each in filters:
        following = _narrow(narrowing, each)
        if following is None:
            left.append(each)
            continue
        narrowing = following
        if getattr(each, "attribute", ()) == ("timestamp",) and not isinstance(each, IsNotNull):
            left.append(each)
    return narrowing, left


def _narrow(narrowing: RangeFilter, each: Filter) -> RangeFilter | None:
    """The narrowing with one more filter; None if it says nothing here."""
    path: tuple[str, ...] = getattr(each, "attribute", ())
    if len(path) != 1:
        return None
    name = path[0]
    if isinstance(each, IsNotNull):
        return narrowing if name in _NEVER_NULL else None
    value: Any = getattr(each, "value", None)
    if name == "topic":
        return _narrow_topics(narrowing, each, value)
    if name == "timestamp":
        return _narrow_time(narrowing, each, value)
    if name == "partition" and isinstance(each, In) and all(map(_is_number, each.value)):
        wanted = frozenset(each.value)
        known = narrowing.partitions
        return replace(narrowing, partitions=wanted if known is None else known & wanted)
    if name in ("partition", "offset") and _is_number(value):
        return _narrow_number(narrowing, each, name, value)
    return None


def _narrow_topics(narrowing: RangeFilter, each: Filter, value: Any) -> RangeFilter | None:
    if isinstance(each, EqualTo | EqualNullSafe) and isinstance(value, str):
        wanted = frozenset([value])
    elif isinstance(each, In) and all(isinstance(one, str) for one in each.value):
        wanted = frozenset(each.value)
    else:
        return None
    known = narrowing.topics
    return replace(narrowing, topics=wanted if known is None else known & wanted)


def _narrow_time(narrowing: RangeFilter, each: Filter, value: Any) -> RangeFilter | None:
    bounds = EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual
    if not isinstance(each, bounds) or not isinstance(value, datetime):
        return None
    # Without a zone it is of another type than the column, which Spark compares by its own rules.
    if value.tzinfo is None:
        return None
    moment_ms = int((value - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000) - 1
    known = narrowing.timestamp_ms
    return replace(narrowing, timestamp_ms=moment_ms if known is None else max(known, moment_ms))


def _narrow_number(
    narrowing: RangeFilter, each: Filter, name: str, value: int
) -> RangeFilter | None:
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
            narrowing,
            partition_low=max(narrowing.partition_low, low),
            partition_high=min(narrowing.partition_high, high),
        )
    return replace(
        narrowing,
        offset_low=max(narrowing.offset_low, low),
        offset_high=min(narrowing.offset_high, high),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
