"""What a replay is to send, fixed when it begins, and how far it is. Pure but for `ReplayLog`.

    STATE/_millstream/N.json    {"plan": {...}, "done": {"0": 1200}, "sent": 800}

Commit 1 is the plan with nothing sent; each one after it is a chunk more. Which offsets a chunk has
follows from the plan and the commit before it alone, so a run that comes back after a crash forms
the same chunk under the same number, and the sink sends it once. A run under another rate has
chunks of another size from its second one on: the plan of each commit says it for the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from millstream.protocol.cluster_client import TopicPartition
from millstream.spark.job.commit_log import CommitLog
from millstream.spark.job.job_error import usage_error
from millstream.spark.job.offset_coverage import OffsetSpan, limit_spans

#: Under a rate, a chunk has what may be sent in this time.
CHUNK_S: Final = 5.0


def chunk_size(rate: float | None, records_max: int) -> int:
    """How many offsets a chunk may have where so many records may be sent a second."""
    return records_max if rate is None else min(records_max, max(1, int(rate * CHUNK_S)))


def pause_s(rate: float | None, sent: int, elapsed_s: float) -> float:
    """How long to wait after a chunk of so many records that took so long. What was slow gives no
    credit to the chunks after it."""
    return 0.0 if rate is None else max(0.0, sent / rate - elapsed_s)


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    """Which records, of what, to where: what must not change between runs of one replay."""

    topic: str
    to: str
    archive: str | None = None
    table_format: str = "parquet"
    #: Partition, start and end of what was asked for; all of the topic if nothing was.
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
    """A choice, the offsets it is taken from, and what the replay is known by."""

    id: str
    choice: ReplaySelection
    ranges: Mapping[int, OffsetSpan]
    chunk_records: int

    def as_json(self) -> dict[str, Any]:
        ranges = {str(partition): list(span) for partition, span in self.ranges.items()}
        return {
            "id": self.id,
            "choice": asdict(self.choice),
            "ranges": ranges,
            "chunk_records": self.chunk_records,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ReplayPlan:
        told = value["choice"]
        asked = tuple((row[0], row[1], row[2]) for row in told["ranges"])
        choice = ReplaySelection(**{**told, "keys": tuple(told["keys"]), "ranges": asked})
        ranges = {int(partition): OffsetSpan(*span) for partition, span in value["ranges"].items()}
        return cls(value["id"], choice, ranges, value["chunk_records"])

    def left(self, done: Mapping[int, int]) -> dict[TopicPartition, OffsetSpan]:
        """What comes after these offsets."""
        return {
            TopicPartition(self.choice.topic, partition): OffsetSpan(
                done.get(partition, span.start), span.end
            )
            for partition, span in sorted(self.ranges.items())
        }

    def chunk(self, done: Mapping[int, int]) -> dict[TopicPartition, OffsetSpan]:
        """What to send next; empty when all is sent."""
        taken = limit_spans(self.left(done), self.chunk_records)
        return {place: span for place, span in taken.items() if span.size}


@dataclass(frozen=True, slots=True)
class ReplayPosition:
    """How far a replay is: the commit, the next offset of each partition, the records sent."""

    number: int
    plan: ReplayPlan
    done: Mapping[int, int]
    sent: int = 0

    def after(
        self, chunk: Mapping[TopicPartition, OffsetSpan], sent: int, chunk_records: int
    ) -> ReplayPosition:
        """With `chunk` sent; the chunks that follow have so many offsets."""
        done = {**self.done, **{place.partition: span.end for place, span in chunk.items()}}
        plan = replace(self.plan, chunk_records=chunk_records)
        return ReplayPosition(self.number + 1, plan, done, self.sent + sent)


class ReplayLog:
    """The state of one replay in its folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._log = CommitLog(root, "replay")

    def lock(self) -> AbstractContextManager[None]:
        return self._log.lock()

    def position(
        self, choice: ReplaySelection, may_differ: Collection[str] = ()
    ) -> ReplayPosition | None:
        """Where a replay of this choice is, but for what may differ; None before it has begun."""
        last = self._log.last()
        if last is None:
            return None
        number, entry = last
        plan = ReplayPlan.from_json(entry["plan"])
        changed = [each for each in _differences(plan.choice, choice) if each not in may_differ]
        if changed:
            raise usage_error(
                f"{self.root} is the state of another replay, which differs in"
                f" {', '.join(changed)}: finish that one, or use another folder."
            )
        done = {int(partition): offset for partition, offset in entry["done"].items()}
        return ReplayPosition(number, plan, done, entry["sent"])

    def note(self, position: ReplayPosition) -> None:
        """Durable when it returns."""
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
