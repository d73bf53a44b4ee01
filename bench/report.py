"""Turns the figures of all repeats into ratios, a table and a JSON file.

A ratio is Millstream's figure divided by that of the base in the same repeat. The base is Apache
Kafka, or Millstream of another checkout. The spread of a ratio is its smallest and largest value
over the repeats. Whether more or less than 1 is better depends on the row.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.brokers import LOG_MODE
from bench.case import Bar, Figure

OURS = "millstream"
#: The titles of the possible bases, by their names. The first one that was measured is the base.
BASES = {"baseline": "another checkout", "kafka": "Apache Kafka"}


@dataclass(slots=True)
class Row:
    name: str
    unit: str
    higher_is_better: bool
    base: str
    values: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self) -> list[float]:
        pairs = zip(self.values.get(OURS, ()), self.values.get(self.base, ()), strict=False)
        return [ours / base for ours, base in pairs if base]

    def standing(self, bar: Bar) -> float | None:
        """Return the value to compare with a bar: a median or the worst value; None without one."""
        values = self.ratios() if bar.is_ratio else self.values.get(OURS, [])
        if not values:
            return None
        if bar.is_worst:
            return min(values) if self.higher_is_better else max(values)
        return statistics.median(values)

    def is_better(self) -> bool | None:
        ratios = self.ratios()
        if not ratios:
            return None
        middle = statistics.median(ratios)
        return middle >= 1 if self.higher_is_better else middle <= 1


class Report:
    """Collects figures. Rows keep the order of their first figure."""

    def __init__(self, settings: dict[str, Any], bars: Sequence[Bar] = ()) -> None:
        self._settings = settings
        self._bars = bars
        brokers = settings["brokers"]
        self._base = next((name for name in BASES if name in brokers), "kafka")
        self._rows: dict[tuple[str, str], Row] = {}
        self.failures: list[str] = []

    def add(self, broker: str, figures: list[Figure]) -> None:
        for name, value, unit, higher_is_better in figures:
            row = self._rows.setdefault((name, unit), Row(name, unit, higher_is_better, self._base))
            row.values.setdefault(broker, []).append(value)

    def table(self) -> Table:
        table = Table(
            title=f"Millstream compared with {BASES[self._base]}", caption=f"Log mode: {LOG_MODE}."
        )
        table.add_column("row", min_width=60)
        table.add_column("unit")
        for column in (self._base, OURS, "ratio", "spread"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in self._rows.values():
            table.add_row(row.name, row.unit, *self._cells(row))
        return table

    @staticmethod
    def _cells(row: Row) -> list[str]:
        medians = [
            f"{statistics.median(row.values[name]):,.4g}" if name in row.values else "-"
            for name in (row.base, OURS)
        ]
        ratios = row.ratios()
        if not ratios:
            return [*medians, "-", "-"]
        colour = "green" if row.is_better() else "red"
        ratio = f"[{colour}]{statistics.median(ratios):.2f}[/{colour}]"
        return [*medians, ratio, f"{min(ratios):.2f}..{max(ratios):.2f}"]

    def print(self, console: Console) -> None:
        console.print(self.table())
        console.print(
            f"A ratio is {OURS} / {self._base}, the median over repeats; "
            f"green is better than {self._base}."
        )
        for bar in self.judged():
            colour = "green" if bar["met"] else "red"
            limit = f"{'ratio ' * bar['is_ratio']}{bar['sign']} {bar['limit']:g} {bar['unit']}"
            console.print(
                f"[{colour}]{'met' if bar['met'] else 'missed'}[/{colour}]: {bar['row']}, "
                f"{limit.strip()}: {bar['found']:.4g}",
                highlight=False,
            )
        for failure in self.failures:
            console.print(f"[red]failed:[/red] {failure}", markup=True, highlight=False)

    def judged(self) -> list[dict[str, Any]]:
        """Return the result of each bar whose row was measured."""
        judged = []
        for bar, row in ((bar, row) for bar in self._bars for row in self._rows.values()):
            found = row.standing(bar) if row.name == bar.row else None
            if found is None:
                continue
            met = found >= bar.limit if row.higher_is_better else found <= bar.limit
            judged.append(
                {
                    "row": row.name,
                    "limit": bar.limit,
                    "is_ratio": bar.is_ratio,
                    "sign": "≥" if row.higher_is_better else "≤",
                    "unit": "" if bar.is_ratio else row.unit,
                    "found": found,
                    "met": met,
                }
            )
        return judged

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")

    def to_json(self) -> dict[str, Any]:
        return {
            "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "machine": {
                "cores": os.cpu_count(),
                "kernel": platform.release(),
                "python": platform.python_version(),
            },
            "log_mode": LOG_MODE,
            "settings": self._settings,
            "rows": [self._row_json(row) for row in self._rows.values()],
            "bars": self.judged(),
            "failures": self.failures,
        }

    @staticmethod
    def _row_json(row: Row) -> dict[str, Any]:
        ratios = row.ratios()
        spread = None
        if ratios:
            middle = statistics.median(ratios)
            spread = {"median": middle, "min": min(ratios), "max": max(ratios)}
        return {
            "name": row.name,
            "unit": row.unit,
            "higher_is_better": row.higher_is_better,
            "values": row.values,
            "ratio": spread,
        }
