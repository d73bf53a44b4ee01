"""Plans new offsets of a group from the options of `reset-offsets`. Pure.

A new offset always lies within the partition or at its end. A requested offset outside becomes the
nearest one, and the move keeps both.

A file of offsets has lines `topic,partition,offset`, as Kafka's own tool writes them. Empty lines,
lines that start with `#`, and a first line with those three words are skipped.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from millstream.cli.support.position import Range, parse_moment

Key: TypeAlias = tuple[str, int]

_ISO_DURATION: Final = re.compile(
    r"P(?=.)(?:(\d+)W)?(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?\Z"
)
_ISO_UNITS_MS: Final = (604_800_000, 86_400_000, 3_600_000, 60_000, 1000)
_SHORT_DURATION: Final = re.compile(r"\d+[a-z]+\Z")
_PARTITIONS: Final = re.compile(r"(\d+)(?:-(\d+))?\Z")
#: More than any topic has: a typo such as 0-10000000000 must not fill the memory.
_PARTITION_MAX: Final = 1_000_000
_HEADING: Final = ["topic", "partition", "offset"]


class Scope(NamedTuple):
    """A topic, or some partitions of it."""

    topic: str
    partitions: frozenset[int] | None


class Aim(Enum):
    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    OFFSET = "--to-offset"
    MOMENT = "--to-datetime"
    SHIFT = "--shift-by"
    FILE = "--from-file"


class Target(NamedTuple):
    """The requested position. `value` is an offset, a timestamp or a distance, as `aim` says;
    `offsets` are those of a file."""

    aim: Aim
    value: int = 0
    offsets: Mapping[Key, int] = {}


class Move(NamedTuple):
    """The change of one partition; `current` is None without a committed offset."""

    topic: str
    partition: int
    current: int | None
    wanted: int
    new: int

    @property
    def difference(self) -> int | None:
        return None if self.current is None else self.new - self.current

    @property
    def changes(self) -> bool:
        return self.new != self.current


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


def parse_ago(text: str, now_ms: int) -> int:
    """Return the timestamp `10m`, `2h` or (as in Kafka's tool) `PT2H` before now.

    Raises ValueError with a sentence.
    """
    if match := _ISO_DURATION.match(text):
        amounts = [int(amount or 0) for amount in match.groups()]
        length = sum(n * unit for n, unit in zip(amounts, _ISO_UNITS_MS, strict=True))
        return max(0, now_ms - length)
    if _SHORT_DURATION.match(text):
        return parse_moment(text, now_ms)
    raise ValueError(f"{text!r} is not a duration: give for example 10m, 2h, 1d or PT2H30M")


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


def plan_moves(
    target: Target,
    ranges: Mapping[Key, Range],
    committed: Mapping[Key, int],
    by_time: Mapping[Key, int],
) -> list[Move]:
    """Return a move for each partition in `ranges`, in order, unchanged ones included.

    `by_time` has the first offset at or after the requested time, for partitions that have one. A
    shift needs a committed offset; ValueError names the partition without one.
    """
    moves = []
    for key, available in sorted(ranges.items()):
        current = committed.get(key)
        if target.aim is Aim.SHIFT and current is None:
            raise ValueError(
                f"{key[0]}-{key[1]} has no committed offset to shift:"
                " leave it out, or use --to-earliest, --to-latest or --to-offset"
            )
        wanted = _wanted(target, key, available, current or 0, by_time)
        new = min(max(wanted, available.start), available.end)
        moves.append(Move(*key, current, wanted, new))
    return moves


def _wanted(
    target: Target, key: Key, available: Range, current: int, by_time: Mapping[Key, int]
) -> int:
    match target.aim:
        case Aim.EARLIEST:
            return available.start
        case Aim.LATEST:
            return available.end
        case Aim.OFFSET:
            return target.value
        case Aim.MOMENT:
            return by_time.get(key, available.end)
        case Aim.SHIFT:
            return current + target.value
        case Aim.FILE:
            return target.offsets[key]
