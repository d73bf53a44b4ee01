"""The known differences: `known_differences.toml`, with a reason for each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kafka_tools.parity.comparison import Difference
from kafka_tools.parity.step import Step, Stop

_FILE = Path(__file__).resolve().parent / "known_differences.toml"
#: Kinds of differences: intended, a feature that does not exist yet, or a defect.
KINDS = ("by design", "later", "to be fixed")
_FIELDS = {"kind", "reason", "commands", "kafka", "millstream"}


@dataclass(slots=True, frozen=True)
class Known:
    """One entry. `lines` are patterns by the broker that prints them."""

    kind: str
    reason: str
    commands: re.Pattern[str]
    lines: dict[str, list[re.Pattern[str]]]

    def concerns(self, steps: Sequence[Step]) -> bool:
        return any(
            self.commands.match(step.command) for step in steps if not isinstance(step, Stop)
        )

    def pattern_of(self, difference: Difference) -> re.Pattern[str] | None:
        if not self.commands.match(difference.command):
            return None
        patterns = self.lines.get(difference.broker, [])
        return next((each for each in patterns if each.fullmatch(difference.line)), None)


@dataclass(slots=True)
class KnownDifferences:
    """All entries, and which of their patterns were needed."""

    entries: list[Known]
    _needed: dict[tuple[int, str, str], None] = field(default_factory=dict)

    def has(self, difference: Difference) -> bool:
        for number, entry in enumerate(self.entries):
            pattern = entry.pattern_of(difference)
            if pattern is not None:
                self._needed[number, difference.broker, pattern.pattern] = None
                return True
        return False

    def unneeded(self, scenarios: Iterable[Sequence[Step]]) -> list[str]:
        """Return the patterns for these scenarios that matched no difference."""
        steps = [step for scenario in scenarios for step in scenario]
        return [
            f"{entry.reason} {broker}: {pattern.pattern}"
            for number, entry in enumerate(self.entries)
            if entry.concerns(steps)
            for broker, patterns in entry.lines.items()
            for pattern in patterns
            if (number, broker, pattern.pattern) not in self._needed
        ]


def load_known() -> KnownDifferences:
    entries = []
    for row in tomllib.loads(_FILE.read_text())["difference"]:
        assert set(row) <= _FIELDS, f"unknown fields in {row}"
        assert row["kind"] in KINDS, f"{row['kind']!r} is none of {KINDS}"
        lines = {
            broker: [re.compile(pattern) for pattern in row.get(broker, [])]
            for broker in ("kafka", "millstream")
        }
        entries.append(Known(row["kind"], row["reason"], re.compile(row["commands"]), lines))
    return KnownDifferences(entries)
