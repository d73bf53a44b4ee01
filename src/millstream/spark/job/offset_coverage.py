"""Which offsets something has: spans per partition, what is missing between them, what is next.

Pure. A `Coverage` is never changed; `extended` gives a new one. Spans of a partition are in order,
do not touch and do not overlap, so that one without gaps has a single span however many batches
it was made of.

As JSON: `{"orders": {"id": "...", "partitions": {"0": [[0, 120], [150, 180]]}}}`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from millstream.protocol.cluster_client import TopicPartition


class OffsetSpan(NamedTuple):
    """Offsets `[start, end)`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class OffsetGap(NamedTuple):
    """Offsets of a partition that are nowhere."""

    place: TopicPartition
    span: OffsetSpan

    def __str__(self) -> str:
        return f"{self.place} offsets {self.span.start} to {self.span.end - 1}"


PartitionSpans: TypeAlias = Mapping[TopicPartition, OffsetSpan]


@dataclass(frozen=True, slots=True)
class OffsetCoverage:
    """What there is of each partition, and the ids of the topics it came from."""

    spans: Mapping[TopicPartition, tuple[OffsetSpan, ...]] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def end(self, place: TopicPartition) -> int | None:
        """The next offset to come; None where there is nothing yet."""
        spans = self.spans.get(place)
        return spans[-1].end if spans else None

    def topics(self) -> list[str]:
        return sorted({place.topic for place in self.spans})

    def gaps(self) -> Iterator[OffsetGap]:
        """What is missing between spans."""
        for place, spans in sorted(self.spans.items()):
            for before, after in itertools.pairwise(spans):
                yield OffsetGap(place, OffsetSpan(before.end, after.start))

    def extended(self, ranges: PartitionSpans, topic_ids: Mapping[str, str]) -> OffsetCoverage:
        """With these offsets as well, each at or after the end of what its partition has."""
        spans = dict(self.spans)
        for place, span in ranges.items():
            spans[place] = _appended(place, spans.get(place, ()), span)
        return OffsetCoverage(spans, {**self.topic_ids, **topic_ids})

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for place, spans in sorted(self.spans.items()):
            row = found.setdefault(
                place.topic, {"id": self.topic_ids.get(place.topic, ""), "partitions": {}}
            )
            row["partitions"][str(place.partition)] = [list(span) for span in spans]
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
    place: TopicPartition, spans: tuple[OffsetSpan, ...], span: OffsetSpan
) -> tuple[OffsetSpan, ...]:
    if not spans:
        return (span,)
    last = spans[-1]
    if span.start < last.end:
        raise ValueError(f"{place} has offsets up to {last.end}: {span.start} would be doubled")
    if span.start == last.end:
        return (*spans[:-1], OffsetSpan(last.start, span.end))
    return (*spans, span)


def offsets_json(ranges: PartitionSpans, *, end: bool) -> dict[str, dict[str, int]]:
    """Starts or ends as `startingOffsets` and `endingOffsets` take them."""
    found: dict[str, dict[str, int]] = {}
    for place, span in sorted(ranges.items()):
        offset = span.end if end else span.start
        found.setdefault(place.topic, {})[str(place.partition)] = offset
    return found


def count_offsets(ranges: PartitionSpans) -> int:
    return sum(span.size for span in ranges.values())


def limit_spans(
    ranges: PartitionSpans, records_max: int | None
) -> dict[TopicPartition, OffsetSpan]:
    """At most about `records_max` offsets of these, from each partition in proportion to what it
    has, and from each that has any at least one."""
    wanted = count_offsets(ranges)
    if records_max is None or wanted <= records_max:
        return dict(ranges)
    return {
        place: OffsetSpan(
            span.start,
            span.start + min(span.size, max(1, span.size * records_max // wanted))
            if span.size
            else span.end,
        )
        for place, span in ranges.items()
    }


def find_unread(
    coverage: OffsetCoverage, log: Mapping[TopicPartition, OffsetSpan]
) -> tuple[dict[TopicPartition, OffsetSpan], list[OffsetGap], list[OffsetGap]]:
    """What the log has after what is covered; what it has lost of that; and what is covered
    although the log does not reach that far, which a log that only grows can't show."""
    ranges: dict[TopicPartition, OffsetSpan] = {}
    lost: list[OffsetGap] = []
    beyond: list[OffsetGap] = []
    for place, span in sorted(log.items()):
        end = coverage.end(place)
        if end is None:
            ranges[place] = span
        elif end > span.end:
            beyond.append(OffsetGap(place, OffsetSpan(span.end, end)))
        else:
            if end < span.start:
                lost.append(OffsetGap(place, OffsetSpan(end, span.start)))
            ranges[place] = OffsetSpan(max(end, span.start), span.end)
    return ranges, lost, beyond


def format_gaps(gaps: Iterable[OffsetGap], most: int = 5) -> str:
    """Gaps for a sentence."""
    found = [str(gap) for gap in gaps]
    rest = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + rest
