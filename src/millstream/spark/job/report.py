"""The output of a job: steps while it runs, and a report at its end.

A report is plain data. Scripts use `as_json`; the command line shows the same values as tables.
This module neither prints nor needs Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from millstream.spark.job.offset_coverage import PartitionSpans

#: A cell of a table, or the value of a fact.
Value: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Step:
    """The progress of a job: `done` of `total` units; `total` is None if it is unknown."""

    what: str
    done: int = 0
    total: int | None = None
    unit: str = "records"


#: Called with each step in the thread of the job. It must return quickly.
Progress: TypeAlias = Callable[[Step], None]


def silent(step: Step) -> None:
    """Ignore the step."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table. Names are lower case with spaces; JSON replaces the spaces with underscores."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    @classmethod
    def of(cls, title: str, columns: Iterable[str], rows: Iterable[Iterable[Value]]) -> Table:
        return cls(title, tuple(columns), tuple(tuple(row) for row in rows))

    def numeric(self) -> tuple[str, ...]:
        """Return the columns that contain only numbers."""
        return tuple(
            name
            for at, name in enumerate(self.columns)
            if self.rows and all(_is_number(row[at]) for row in self.rows)
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a job, or with `is_dry` of a dry run.

    `outcome` is one sentence. `is_ok` is False if the job ran and found a problem, such as an audit
    with missing records. The command then exits with 1.
    """

    job: str
    outcome: str
    facts: Mapping[str, Value] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    is_ok: bool = True
    is_dry: bool = False

    def as_json(self) -> dict[str, object]:
        """Return one object with the facts by name and each table as a list of objects."""
        found: dict[str, object] = {
            "job": self.job,
            "ok": self.is_ok,
            "dry_run": self.is_dry,
            "outcome": self.outcome,
        }
        found |= {_key(name): value for name, value in self.facts.items()}
        for table in self.tables:
            keys = [_key(name) for name in table.columns]
            found[_key(table.title)] = [dict(zip(keys, row, strict=True)) for row in table.rows]
        found["notes"] = list(self.notes)
        return found


def spans_table(spans: PartitionSpans, count_column: str) -> Table:
    """Return a table of the offsets of each partition. `count_column` names their number."""
    rows = [
        (*partition, span.size, span.start, span.end) for partition, span in sorted(spans.items())
    ]
    columns = ("topic", "partition", count_column, "from offset", "to offset")
    return Table.of("partitions", columns, rows)


def _key(name: str) -> str:
    return name.lower().replace(" ", "_")


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
