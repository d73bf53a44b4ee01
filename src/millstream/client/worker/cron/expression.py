"""Cron expressions with five fields, and the times they match. Pure.

    field          values            names
    minute         0-59
    hour           0-23
    day of month   1-31
    month          1-12              JAN-DEC
    day of week    0-7 (0, 7: Sunday)  SUN-SAT

A field is `*`, a value, a range `1-5`, a step `*/15` or `10-40/10`, or a list of these with commas.
If both days are restricted, a day matches that has either, as in Vixie cron. `@hourly`, `@daily`,
`@weekly`, `@monthly` and `@yearly` stand for their expressions.

In a zone with daylight saving time, a local time that is skipped has no tick, and one that is
repeated has one tick, the first time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from millstream.client.error import UsageError

#: From 29 February to the next one are up to eight years.
_DAYS_MAX: Final = 8 * 366
_DAY: Final = dt.timedelta(days=1)
_MONTHS: Final = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"
_WEEKDAYS: Final = "SUN MON TUE WED THU FRI SAT"
_SHORT: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}


class _Field(NamedTuple):
    name: str
    lowest: int
    highest: int
    names: dict[str, int]


_FIELDS: Final = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS.split(), 1)}),
    _Field("day of week", 0, 7, {name: number for number, name in enumerate(_WEEKDAYS.split())}),
)


class CronExpression:
    """The times of a cron expression in a time zone."""

    def __init__(self, text: str, timezone: str = "UTC") -> None:
        fields = _SHORT.get(text.strip().lower(), text).split()
        if len(fields) != len(_FIELDS):
            raise UsageError(
                f"cron {text!r} has {len(fields)} fields: pass five (minute, hour, day of month, "
                f"month, day of week), for example '*/5 * * * *', or one of {', '.join(_SHORT)}."
            )
        self.text = text
        parsed = [_parse(each, field, text) for each, field in zip(fields, _FIELDS, strict=True)]
        self._minutes, self._hours = sorted(parsed[0]), sorted(parsed[1])
        self._days, self._months = parsed[2], parsed[3]
        self._weekdays = {number % 7 for number in parsed[4]}
        #: Both days are restricted: either is enough.
        self._is_either_day = not fields[2].startswith("*") and not fields[4].startswith("*")
        self._zone = _zone(timezone)
        if next(self._local_times(dt.datetime(2000, 1, 1)), None) is None:  # noqa: DTZ001
            raise UsageError(f"cron {text!r} never matches: no month has this day.")

    def next_after(self, moment: dt.datetime) -> dt.datetime:
        """Return the first tick after `moment`, in UTC."""
        local = moment.astimezone(self._zone).replace(tzinfo=None, second=0, microsecond=0)
        for time in self._local_times(local):
            tick = time.replace(tzinfo=self._zone).astimezone(dt.UTC)
            is_real = tick.astimezone(self._zone).replace(tzinfo=None) == time
            if is_real and tick > moment:
                return tick
        raise AssertionError(f"{self.text} has no further tick")

    def last_between(self, after: dt.datetime, until: dt.datetime) -> dt.datetime | None:
        """Return the last tick after `after` and not after `until`."""
        for start in (max(after, until - _DAY), after):
            found = None
            while (tick := self.next_after(found or start)) <= until:
                found = tick
            if found is not None:
                return found
        return None

    def _local_times(self, local: dt.datetime) -> Iterator[dt.datetime]:
        """Yield matching local times from the minute of `local` on."""
        day = local.date()
        for _ in range(_DAYS_MAX):
            if self._matches(day):
                for hour in self._hours:
                    for minute in self._minutes:
                        time = dt.datetime.combine(day, dt.time(hour, minute))
                        if time >= local:
                            yield time
            day += _DAY

    def _matches(self, day: dt.date) -> bool:
        if day.month not in self._months:
            return False
        of_month, of_week = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return of_month or of_week if self._is_either_day else of_month and of_week


def _parse(text: str, field: _Field, whole: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        if slash and not (step.isdecimal() and int(step) > 0):
            raise _wrong(part, field, whole)
        if span == "*":
            first, last = field.lowest, field.highest
        else:
            begin, dash, end = span.partition("-")
            first = _number(begin, field, whole)
            last = _number(end, field, whole) if dash else field.highest if slash else first
        if first > last:
            raise _wrong(part, field, whole)
        found.update(range(first, last + 1, int(step) if slash else 1))
    return found


def _number(text: str, field: _Field, whole: str) -> int:
    number = field.names.get(text.upper())
    if number is None and text.isascii() and text.isdecimal():
        number = int(text)
    if number is None or not field.lowest <= number <= field.highest:
        raise _wrong(text, field, whole)
    return number


def _wrong(part: str, field: _Field, whole: str) -> UsageError:
    names = f" or {next(iter(field.names))}-{list(field.names)[-1]}" if field.names else ""
    return UsageError(
        f"cron {whole!r}: {part!r} is not a {field.name}. Use {field.lowest}-{field.highest}"
        f"{names}, *, ranges (1-5), steps (*/15) and lists (1,15)."
    )


def _zone(name: str) -> dt.tzinfo:
    if name == "UTC":
        return dt.UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise UsageError(
            f"timezone={name!r} is unknown: use a name such as 'Europe/Berlin'. On a system "
            "without time zone data, install the package tzdata."
        ) from error
