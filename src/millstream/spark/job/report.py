"""What a job tells: steps while it works, and a report when it is done.

A report is plain data. `as_json` is what scripts get; the command line makes tables of the same
values. Nothing here prints, and nothing needs Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

#: A cell of a table, or the value of a fact.
Value: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Step:
    """How far a job is: `done` of `total` units, or of nobody knows how many."""

    what: str
    done: int = 0
    total: int | None = None
    unit: str = "records"


#: Called with each step, from the thread that runs the job. It must return soon.
Progress: TypeAlias = Callable[[Step], None]


def silent(step: Step) -> None:
    """The progress of those who did not ask for any."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings. Names are lower case with spaces; JSON has them with underscores."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    @classmethod
    def of(cls, title: str, columns: Iterable[str], rows: Iterable[Iterable[Value]]) -> Table:
        return cls(title, tuple(columns), tuple(tuple(row) for row in rows))

    def numeric(self) -> tuple[str, ...]:
        """The columns with nothing but numbers in them."""
        return tuple(
            name
            for at, name in enumerate(self.columns)
            if self.rows and all(_is_number(row[at]) for row in self.rows)
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What a job did, or with `is_dry` would do.

    `outcome` is one sentence. `is_ok` is False where the job did its work and found that something
    is wrong (an audit that does not add up): the command then exits with 1.
    """

    job: str
    outcome: str
    facts: Mapping[str, Value] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    is_ok: bool = True
    is_dry: bool = False

    def as_json(self) -> dict[str, object]:
        """One object: the facts by name, each table as a list of objects."""
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


def _key(name: str) -> str:
    return name.lower().replace(" ", "_")


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
