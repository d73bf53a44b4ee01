"""The plan of a replay, fixed at its start, and its position. Pure except for `ReplayLog`.

    STATE/_millstream/N.json    {"plan": {...}, "done": {"0": 1200}, "sent": 800}

Commit 1 is the plan before the first chunk; each later commit adds one chunk. The plan and the last
commit alone determine the offsets of the next chunk. A run after a crash therefore forms the same
chunk with the same number, and the sink writes it once. The plan of each commit contains the chunk
size, so a run with another rate uses another size from its second chunk on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from millstream.model.topic import TopicPartition
from millstream.spark.job.commit_log import CommitLog
from millstream.spark.job.job_error import usage_error
from millstream.spark.job.offset_coverage import OffsetSpan, limit_spans

#: With a rate, a chunk contains the records of this time.
CHUNK_S: Final = 5.0


def chunk_size(rate: float | None, records_max: int) -> int:
    """Return the number of offsets in a chunk for a rate in records per second."""
    return records_max if rate is None else min(records_max, max(1, int(rate * CHUNK_S)))


def pause_s(rate: float | None, sent: int, elapsed_s: float) -> float:
    """Return the pause after a chunk that keeps the rate. Slow chunks give later ones no credit."""
    return 0.0 if rate is None else max(0.0, sent / rate - elapsed_s)


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    """The records to replay and their target. All runs of one replay have the same selection."""

    topic: str
    to: str
    archive: str | None = None
    table_format: str = "parquet"
    #: Partition, start and end of each requested range; empty means the whole topic.
    ranges: tuple[tuple[int, int, int], ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    #: Keys as hexadecimal digits.
    keys: tuple[str, ...] = ()
    where: str | None = None
    same_partitions: bool = False
    new_timestamps: bool = False


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The selection of a replay, its offsets, and the id of the replay."""

    id: str
    selection: ReplaySelection
    ranges: Mapping[int, OffsetSpan]
    chunk_records: int

    def as_json(self) -> dict[str, Any]:
        ranges = {str(partition): list(span) for partition, span in self.ranges.items()}
        return {
            "id": self.id,
            "choice": asdict(self.selection),
            "ranges": ranges,
            "chunk_records": self.chunk_records,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ReplayPlan:
        stored = value["choice"]
        asked = tuple((row[0], row[1], row[2]) for row in stored["ranges"])
        selection = ReplaySelection(**{**stored, "keys": tuple(stored["keys"]), "ranges": asked})
        ranges = {int(partition): OffsetSpan(*span) for partition, span in value["ranges"].items()}
        return cls(value["id"], selection, ranges, value["chunk_records"])

    def left(self, done: Mapping[int, int]) -> dict[TopicPartition, OffsetSpan]:
        """Return the spans that are not sent yet."""
        return {
            TopicPartition(self.selection.topic, partition): OffsetSpan(
                done.get(partition, span.start), span.end
            )
            for partition, span in sorted(self.ranges.items())
        }

    def chunk(self, done: Mapping[int, int]) -> dict[TopicPartition, OffsetSpan]:
        """Return the spans of the next chunk; empty if everything is sent."""
        taken = limit_spans(self.left(done), self.chunk_records)
        return {place: span for place, span in taken.items() if span.size}


@dataclass(frozen=True, slots=True)
class ReplayPosition:
    """The last commit of a replay, the next offset of each partition, and the records sent."""

    number: int
    plan: ReplayPlan
    done: Mapping[int, int]
    sent: int = 0

    def after(
        self, chunk: Mapping[TopicPartition, OffsetSpan], sent: int, chunk_records: int
    ) -> ReplayPosition:
        """Return the position after `chunk`. `chunk_records` is the size of later chunks."""
        done = {**self.done, **{place.partition: span.end for place, span in chunk.items()}}
        plan = replace(self.plan, chunk_records=chunk_records)
        return ReplayPosition(self.number + 1, plan, done, self.sent + sent)


class ReplayLog:
    """The positions of one replay in its folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._log = CommitLog(root, "replay")

    def lock(self) -> AbstractContextManager[None]:
        return self._log.lock()

    def position(
        self, selection: ReplaySelection, may_differ: Collection[str] = ()
    ) -> ReplayPosition | None:
        """Return the position of the replay, or None before its start.

        Raises JobError if its selection differs in other fields than `may_differ`."""
        last = self._log.last()
        if last is None:
            return None
        number, entry = last
        plan = ReplayPlan.from_json(entry["plan"])
        changed = [
            each for each in _differences(plan.selection, selection) if each not in may_differ
        ]
        if changed:
            raise usage_error(
                f"{self.root} is the state of another replay, which differs in"
                f" {', '.join(changed)}: complete that replay, or use another folder."
            )
        done = {int(partition): offset for partition, offset in entry["done"].items()}
        return ReplayPosition(number, plan, done, entry["sent"])

    def append(self, position: ReplayPosition) -> None:
        """Append a position. It is on stable storage when this returns."""
        self._log.append(
            position.number,
            {
                "plan": position.plan.as_json(),
                "done": {str(partition): offset for partition, offset in position.done.items()},
                "sent": position.sent,
            },
        )
        self._log.remove_before(position.number)


def _differences(known: ReplaySelection, given: ReplaySelection) -> Iterator[str]:
    before, after = asdict(known), asdict(given)
    return (name for name in before if before[name] != after[name])
