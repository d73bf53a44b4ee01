"""Parses the options of `reset-offsets`: partitions, durations and files of offsets. Pure.

A file of offsets has lines `topic,partition,offset`, as Kafka's own tool writes them. Empty lines,
lines that start with `#`, and a first line with those three words are skipped.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from millstream.cli.support.quantity import Duration

Key: TypeAlias = tuple[str, int]

_ISO_DURATION: Final = re.compile(
    r"P(?=.)(?:(\d+)W)?(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?\Z"
)
_ISO_UNITS_S: Final = (604_800, 86_400, 3_600, 60, 1)
_PARTITIONS: Final = re.compile(r"(\d+)(?:-(\d+))?\Z")
#: More than any topic has: a typo such as 0-10000000000 must not fill the memory.
_PARTITION_MAX: Final = 1_000_000
_HEADING: Final = ["topic", "partition", "offset"]


class Scope(NamedTuple):
    """A topic, or some partitions of it."""

    topic: str
    partitions: frozenset[int] | None


def parse_scope(text: str) -> Scope:
    """Parse `orders`, `orders:3` or `orders:0,4-7`. Raises ValueError with a sentence."""
    topic, colon, listed = text.partition(":")
    if not topic:
        raise ValueError(f"{text!r} names no topic")
    if not colon:
        return Scope(topic, None)
    partitions: set[int] = set()
    for part in listed.split(","):
        match = _PARTITIONS.match(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last > _PARTITION_MAX:
            raise ValueError(
                f"{text!r} is not a topic with partitions: give {topic}:0 or {topic}:0,4-7"
            )
        partitions.update(range(first, last + 1))
    return Scope(topic, frozenset(partitions))


def parse_ago(text: str) -> float:
    """Return the seconds of `10m`, `1h30m` or (as in Kafka's tool) `PT2H`.

    Raises ValueError with a sentence.
    """
    if match := _ISO_DURATION.match(text):
        amounts = [int(amount or 0) for amount in match.groups()]
        return float(sum(n * unit for n, unit in zip(amounts, _ISO_UNITS_S, strict=True)))
    if text.isdecimal():
        raise ValueError(f"{text!r} has no unit: give for example 10m, 2h, 1d or PT2H30M")
    return float(Duration.parse(text))


def parse_offsets(lines: Iterable[str]) -> dict[Key, int]:
    """Parse the lines of a file. Raises ValueError with a sentence that names the line."""
    found: dict[Key, int] = {}
    for number, row in enumerate(csv.reader(lines), start=1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or cells[0].startswith("#") or (number == 1 and cells == _HEADING):
            continue
        if len(cells) != 3 or not cells[0] or not all(cell.isdecimal() for cell in cells[1:]):
            raise ValueError(f"line {number} is not topic,partition,offset: {','.join(row)!r}")
        key = cells[0], int(cells[1])
        if key in found:
            raise ValueError(f"line {number} names {key[0]}-{key[1]} a second time")
        found[key] = int(cells[2])
    if not found:
        raise ValueError("it has no offsets")
    return found
