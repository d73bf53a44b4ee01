"""The offsets that an archive or snapshot covers: spans per partition, gaps, and the next offset.

Pure. An `OffsetCoverage` is immutable; `extended` returns a new one. The spans of a partition are
in order and neither touch nor overlap, so a partition without gaps has one span.

As JSON: `{"orders": {"id": "...", "partitions": {"0": [[0, 120], [150, 180]]}}}`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from millstream.model.topic import TopicPartition


class OffsetSpan(NamedTuple):
    """Offsets `[start, end)`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class OffsetGap(NamedTuple):
    """Missing offsets of a partition."""

    partition: TopicPartition
    span: OffsetSpan

    def __str__(self) -> str:
        return f"{self.partition} offsets {self.span.start} to {self.span.end - 1}"


PartitionSpans: TypeAlias = Mapping[TopicPartition, OffsetSpan]


@dataclass(frozen=True, slots=True)
class OffsetCoverage:
    """The covered spans of each partition, and the ids of their topics."""

    spans: Mapping[TopicPartition, tuple[OffsetSpan, ...]] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def end(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last span, or None if nothing is covered."""
        spans = self.spans.get(partition)
        return spans[-1].end if spans else None

    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.spans})

    def gaps(self) -> Iterator[OffsetGap]:
        """Yield the gaps between spans."""
        for partition, spans in sorted(self.spans.items()):
            for before, after in itertools.pairwise(spans):
                yield OffsetGap(partition, OffsetSpan(before.end, after.start))

    def extended(self, ranges: PartitionSpans, topic_ids: Mapping[str, str]) -> OffsetCoverage:
        """Add spans that start at or after the end of their partition's coverage."""
        spans = dict(self.spans)
        for partition, span in ranges.items():
            spans[partition] = _appended(partition, spans.get(partition, ()), span)
        return OffsetCoverage(spans, {**self.topic_ids, **topic_ids})

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for partition, spans in sorted(self.spans.items()):
            row = found.setdefault(
                partition.topic, {"id": self.topic_ids.get(partition.topic, ""), "partitions": {}}
            )
            row["partitions"][str(partition.partition)] = [list(span) for span in spans]
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OffsetCoverage:
        spans = {
            TopicPartition(topic, int(partition)): tuple(OffsetSpan(*each) for each in rows)
            for topic, row in value.items()
            for partition, rows in row["partitions"].items()
        }
        return cls(spans, {topic: row["id"] for topic, row in value.items()})


def _appended(
    partition: TopicPartition, spans: tuple[OffsetSpan, ...], span: OffsetSpan
) -> tuple[OffsetSpan, ...]:
    if not spans:
        return (span,)
    last = spans[-1]
    if span.start < last.end:
        raise ValueError(
            f"{partition} is covered up to {last.end}: {span.start} would be covered twice"
        )
    if span.start == last.end:
        return (*spans[:-1], OffsetSpan(last.start, span.end))
    return (*spans, span)


def offsets_json(ranges: PartitionSpans, *, end: bool) -> dict[str, dict[str, int]]:
    """Return starts or ends in the format of `startingOffsets` and `endingOffsets`."""
    found: dict[str, dict[str, int]] = {}
    for partition, span in sorted(ranges.items()):
        offset = span.end if end else span.start
        found.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return found


def count_offsets(ranges: PartitionSpans) -> int:
    """Return the number of offsets in all spans."""
    return sum(span.size for span in ranges.values())


def limit_spans(
    ranges: PartitionSpans, records_max: int | None
) -> dict[TopicPartition, OffsetSpan]:
    """Limit spans to about `records_max` offsets, in proportion to the size of each span.

    A span that is not empty keeps at least one offset."""
    wanted = count_offsets(ranges)
    if records_max is None or wanted <= records_max:
        return dict(ranges)
    return {
        partition: OffsetSpan(
            span.start,
            span.start + min(span.size, max(1, span.size * records_max // wanted))
            if span.size
            else span.end,
        )
        for partition, span in ranges.items()
    }


def find_unread(
    coverage: OffsetCoverage, log: Mapping[TopicPartition, OffsetSpan]
) -> tuple[dict[TopicPartition, OffsetSpan], list[OffsetGap], list[OffsetGap]]:
    """Compare the coverage with the log. Return three things:

    the spans to read next; the gaps where the log starts after the coverage ends; and the covered
    offsets beyond the end of the log, which exist only if the log was truncated."""
    ranges: dict[TopicPartition, OffsetSpan] = {}
    lost: list[OffsetGap] = []
    beyond: list[OffsetGap] = []
    for partition, span in sorted(log.items()):
        end = coverage.end(partition)
        if end is None:
            ranges[partition] = span
        elif end > span.end:
            beyond.append(OffsetGap(partition, OffsetSpan(span.end, end)))
        else:
            if end < span.start:
                lost.append(OffsetGap(partition, OffsetSpan(end, span.start)))
            ranges[partition] = OffsetSpan(max(end, span.start), span.end)
    return ranges, lost, beyond


def format_gaps(gaps: Iterable[OffsetGap], most: int = 5) -> str:
    """Format gaps for an error message."""
    found = [str(gap) for gap in gaps]
    rest = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + rest
