"""Where reading starts: offsets and times as people write them, and as a partition knows them."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d|w)\Z")


class Range(NamedTuple):
    """Offsets that a partition had when asked: `[start, end)`."""

    start: int
    end: int


def parse_moment(text: str, now_ms: int) -> int:
    """Milliseconds since the epoch of `10m` (ago), `2026-01-31T12:00`, or milliseconds themselves.

    A date without a zone is in this machine's. Raises ValueError with a sentence.
    """
    if match := _DURATION.match(text):
        return max(0, now_ms - int(match[1]) * _UNITS_MS[match[2]])
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: write a duration such as 10m or 2h (units"
            f" {', '.join(_UNITS_MS)}), a date such as 2026-01-31T12:00:00Z,"
            " or milliseconds since the epoch"
        ) from None
    return int(moment.timestamp() * 1000)


def is_duration(text: str) -> bool:
    """Whether a moment is told as so long ago, and so is another one whenever it is read."""
    return _DURATION.match(text) is not None


def start_at(offset: int, available: Range) -> int:
    """The first offset to read for `--offset N`: N itself, or for -N that many before the end.

    Outside what the partition has it is the nearest that it has.
    """
    wanted = available.end + offset if offset < 0 else offset
    return min(max(wanted, available.start), available.end)
