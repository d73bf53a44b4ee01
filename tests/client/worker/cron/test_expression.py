"""Cron expressions: the ticks of known expressions, and of random ones beside a plain search."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client import UsageError
from millstream.client.worker.cron.expression import CronExpression


def utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("expression", "after", "tick"),
    [
        ("*/5 * * * *", "2026-11-18T02:25:00", "2026-11-18T02:30:00"),
        ("*/5 * * * *", "2026-11-18T02:24:59.9", "2026-11-18T02:25:00"),
        ("59 23 31 12 *", "2026-12-31T23:59:00", "2027-12-31T23:59:00"),
        ("0 9-17/4 * * MON-FRI", "2026-11-20T17:00:00", "2026-11-23T09:00:00"),
        ("30 6 1,15 * *", "2026-11-18T00:00:00", "2026-12-01T06:30:00"),
        ("0 0 29 2 *", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29T00:00:00"),
        # Either day is enough if both are restricted.
        ("0 0 13 * fri", "2026-11-01T00:00:00", "2026-11-06T00:00:00"),
        ("0 0 * * 7", "2026-11-18T00:00:00", "2026-11-22T00:00:00"),
        ("0 0 1 jan *", "2026-11-18T00:00:00", "2027-01-01T00:00:00"),
        ("5/20 * * * *", "2026-11-18T00:06:00", "2026-11-18T00:25:00"),
        ("@hourly", "2026-11-18T00:00:00", "2026-11-18T01:00:00"),
        ("@Weekly", "2026-11-18T00:00:00", "2026-11-22T00:00:00"),
    ],
)
def test_next_tick(expression: str, after: str, tick: str) -> None:
    assert CronExpression(expression).next_after(utc(after)) == utc(tick)


def test_daylight_saving_time() -> None:
    """A skipped local time has no tick, a repeated one has one."""
    daily = CronExpression("30 2 * * *", "Europe/Berlin")
    zone = ZoneInfo("Europe/Berlin")
    spring = daily.next_after(dt.datetime(2026, 3, 28, 12, tzinfo=zone))
    assert spring == dt.datetime(2026, 3, 30, 2, 30, tzinfo=zone)
    autumn = daily.next_after(dt.datetime(2026, 10, 24, 12, tzinfo=zone))
    assert autumn == utc("2026-10-25T00:30:00")
    assert daily.next_after(autumn) == utc("2026-10-26T01:30:00")
    # In the second pass of the repeated hour.
    assert daily.next_after(utc("2026-10-25T01:10:00")) == utc("2026-10-26T01:30:00")


@given(
    minutes=st.sets(st.integers(0, 59), min_size=1),
    hours=st.sets(st.integers(0, 23), min_size=1),
    weekdays=st.sets(st.integers(0, 6), min_size=1),
    minute=st.integers(0, 5_000_000),
    second=st.floats(0, 59.9),
)
def test_ticks_equal_those_of_a_plain_search(
    minutes: set[int], hours: set[int], weekdays: set[int], minute: int, second: float
) -> None:
    fields = [",".join(map(str, each)) for each in (minutes, hours, weekdays)]
    expression = CronExpression(f"{fields[0]} {fields[1]} * * {fields[2]}")
    moment = utc("2020-01-01T00:00:00") + dt.timedelta(minutes=minute, seconds=second)
    tick = expression.next_after(moment)
    found = moment.replace(second=0, microsecond=0) + dt.timedelta(minutes=1)
    while (
        found.minute not in minutes
        or found.hour not in hours
        or found.isoweekday() % 7 not in weekdays
    ):
        found += dt.timedelta(minutes=1)
    assert tick == found


def test_last_tick_between() -> None:
    hourly, yearly = CronExpression("0 * * * *"), CronExpression("@yearly")
    now = utc("2026-11-18T02:25:00")
    assert hourly.last_between(utc("2026-10-01T00:00:00"), now) == utc("2026-11-18T02:00:00")
    assert hourly.last_between(utc("2026-11-18T02:00:00"), now) is None
    assert yearly.last_between(utc("2022-06-01T00:00:00"), now) == utc("2026-01-01T00:00:00")
    assert yearly.last_between(utc("2026-01-01T00:00:00"), now) is None
    assert hourly.last_between(utc("2026-11-18T01:30:00"), utc("2026-11-18T02:00:00")) == utc(
        "2026-11-18T02:00:00"
    )


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("* * * *", "has 4 fields: pass five"),
        ("60 * * * *", "'60' is not a minute. Use 0-59"),
        ("* * 0 * *", "'0' is not a day of month"),
        ("* * * * MAI", "'MAI' is not a day of week. Use 0-7 or SUN-SAT"),
        ("*/0 * * * *", "'\\*/0' is not a minute"),
        ("5-1 * * * *", "'5-1' is not a minute"),
        ("0 0 31 2 *", "never matches"),
    ],
)
def test_wrong_expressions(expression: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        CronExpression(expression)


def test_an_unknown_time_zone() -> None:
    with pytest.raises(UsageError, match="use a name such as 'Europe/Berlin'"):
        CronExpression("@daily", "Europe/Atlantis")
