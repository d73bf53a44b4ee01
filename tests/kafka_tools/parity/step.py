"""The steps that a scenario of the comparison is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Numbers that say how long something took or how fast it was.
FIGURES = (r"\d+\.\d+", "FIGURE")
#: What a verifiable tool reported, without the details.
EVENTS = (r'.*"name":"(\w+)".*', r"\1")
NUMBERS = (r"(?<![\w.-])-?\d+(?![\w.])", "NUMBER")


@dataclass(slots=True, frozen=True)
class Run:
    """Run a tool to its end on both brokers and compare what it prints.

    `command` begins with the tool's name; the runner adds the broker's address. Placeholders in
    braces stand for values of the broker: `{data}`, the names in `files`, and values that `capture`
    found in an earlier output. Matches of the patterns in `masks` are replaced before the
    comparison. With `is_distinct`, repeated lines count once. A command with `is_read` is repeated
    for a while if the outputs differ: a change may be pending.
    """

    command: str
    stdin: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    masks: Sequence[tuple[str, str]] = ()
    capture: tuple[str, str] | None = None
    is_ordered: bool = False
    is_distinct: bool = False
    is_read: bool = True


@dataclass(slots=True, frozen=True)
class Start:
    """Start a tool on both brokers that runs until `Stop`; wait until it prints `until`."""

    command: str
    until: str


@dataclass(slots=True, frozen=True)
class Stop:
    """Stop the most recently started tool and compare its output."""

    masks: Sequence[tuple[str, str]] = ()
    is_distinct: bool = False


Step = Run | Start | Stop


def change(command: str, **rest: object) -> Run:
    """Return a step for a command that changes something, which runs only once."""
    return Run(command, is_read=False, **rest)  # type: ignore[arg-type]
