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

    `command` begins with the tool's name; the broker's address is added. Words in braces stand for
    something of the broker: `{data}`, the names in `files`, and what `capture` took from an earlier
    output. `masks` are patterns whose matches are replaced before the comparison. `is_distinct`: it
    does not matter how often a line comes. What `is_read` is run again for a while where the
    outputs differ: they may show a change that is pending.
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
    """Start a tool on both brokers that goes on until `Stop`; wait until it prints `until`."""

    command: str
    until: str


@dataclass(slots=True, frozen=True)
class Stop:
    """Stop the tool that was started last and compare its output."""

    masks: Sequence[tuple[str, str]] = ()
    is_distinct: bool = False


Step = Run | Start | Stop


def change(command: str, **rest: object) -> Run:
    """A command that changes something, and so is run once."""
    return Run(command, is_read=False, **rest)  # type: ignore[arg-type]
