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

Place: TypeAlias = TopicPartition


class Span(NamedTuple):
    """Offsets `[start, end)`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Gap(NamedTuple):
    """Offsets of a partition that are nowhere."""

    place: Place
    span: Span

    def __str__(self) -> str:
        return f"{self.place} offsets {self.span.start} to {self.span.end - 1}"


Ranges: TypeAlias = Mapping[Place, Span]


@dataclass(frozen=True, slots=True)
class Coverage:
    """What there is of each partition, and the ids of the topics it came from."""

    spans: Mapping[Place, tuple[Span, ...]] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def end(self, place: Place) -> int | None:
        """The next offset to come; None where there is nothing yet."""
        spans = self.spans.get(place)
        return spans[-1].end if spans else None

    def topics(self) -> list[str]:
        return sorted({place.topic for place in self.spans})

    def gaps(self) -> Iterator[Gap]:
        """What is missing between spans."""
        for place, spans in sorted(self.spans.items()):
            for before, after in itertools.pairwise(spans):
                yield Gap(place, Span(before.end, after.start))

    def extended(self, ranges: Ranges, topic_ids: Mapping[str, str]) -> Coverage:
        """With these offsets as well, each at or after the end of what its partition has."""
        spans = dict(self.spans)
        for place, span in ranges.items():
            spans[place] = _appended(place, spans.get(place, ()), span)
        return Coverage(spans, {**self.topic_ids, **topic_ids})

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for place, spans in sorted(self.spans.items()):
            row = found.setdefault(
                place.topic, {"id": self.topic_ids.get(place.topic, ""), "partitions": {}}
            )
            row["partitions"][str(place.partition)] = [list(span) for span in spans]
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Coverage:
        spans = {
            Place(topic, int(partition)): tuple(Span(*each) for each in rows)
            for topic, row in value.items()
            for partition, rows in row["partitions"].items()
        }
        return cls(spans, {topic: row["id"] for topic, row in value.items()})


def _appended(place: Place, spans: tuple[Span, ...], span: Span) -> tuple[Span, ...]:
    if not spans:
        return (span,)
    last = spans[-1]
    if span.start < last.end:
        raise ValueError(f"{place} has offsets up to {last.end}: {span.start} would be doubled")
    if span.start == last.end:
        return (*spans[:-1], Span(last.start, span.end))
    return (*spans, span)


def offsets_json(ranges: Ranges, *, end: bool) -> dict[str, dict[str, int]]:
    """Starts or ends as `startingOffsets` and `endingOffsets` take them."""
    found: dict[str, dict[str, int]] = {}
    for place, span in sorted(ranges.items()):
        offset = span.end if end else span.start
        found.setdefault(place.topic, {})[str(place.partition)] = offset
    return found


def total(ranges: Ranges) -> int:
    return sum(span.size for span in ranges.values())


def limited(ranges: Ranges, records_max: int | None) -> dict[Place, Span]:
    """At most about `records_max` offsets of these, from each partition in proportion to what it
    has, and from each that has any at least one."""
    wanted = total(ranges)
    if records_max is None or wanted <= records_max:
        return dict(ranges)
    return {
        place: Span(
            span.start,
            span.start + min(span.size, max(1, span.size * records_max // wanted))
            if span.size
            else span.end,
        )
        for place, span in ranges.items()
    }


def unread(
    coverage: Coverage, log: Mapping[Place, Span]
) -> tuple[dict[Place, Span], list[Gap], list[Gap]]:
    """What the log has after what is covered; what it has lost of that; and what is covered
    although the log does not reach that far, which a log that only grows can't show."""
    ranges: dict[Place, Span] = {}
    lost: list[Gap] = []
    beyond: list[Gap] = []
    for place, span in sorted(log.items()):
        end = coverage.end(place)
        if end is None:
            ranges[place] = span
        elif end > span.end:
            beyond.append(Gap(place, Span(span.end, end)))
        else:
            if end < span.start:
                lost.append(Gap(place, Span(end, span.start)))
            ranges[place] = Span(max(end, span.start), span.end)
    return ranges, lost, beyond


def listed(gaps: Iterable[Gap], most: int = 5) -> str:
    """Gaps for a sentence."""
    found = [str(gap) for gap in gaps]
    rest = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + rest
