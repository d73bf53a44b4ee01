"""Start positions: offsets and times as users write them."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final, NamedTuple

from millstream.cli.support.failure import CommandError, ExitCode

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
    """The offsets of a partition at one moment: `[start, end)`."""

    start: int
    end: int


def parse_moment(text: str, now_ms: int) -> int:
    """Return the timestamp of `10m` (ago), `2026-01-31T12:00`, or milliseconds since the epoch.

    A date without a time zone is in the local one. Raises ValueError with a sentence.
    """
    if match := _DURATION.match(text):
        return max(0, now_ms - int(match[1]) * _UNITS_MS[match[2]])
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: give a duration such as 10m or 2h (units"
            f" {', '.join(_UNITS_MS)}), a date such as 2026-01-31T12:00:00Z,"
            " or milliseconds since the epoch"
        ) from None
    return int(moment.timestamp() * 1000)


def parse_moment_option(text: str, option: str) -> int:
    """Parse the time of an option. Raises CommandError, which names the option."""
    try:
        return parse_moment(text, int(time.time() * 1000))
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"{option} {error}.") from None


def is_duration(text: str) -> bool:
    """Whether a time is relative to now, and so changes each time it is parsed."""
    return _DURATION.match(text) is not None


def start_at(offset: int, available: Range) -> int:
    """Return the first offset to read for `--offset N`: N, or N before the end if negative.

    An offset outside the partition becomes the nearest one inside.
    """
    wanted = available.end + offset if offset < 0 else offset
    return min(max(wanted, available.start), available.end)
