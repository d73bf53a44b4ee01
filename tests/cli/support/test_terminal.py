from __future__ import annotations

import json

import pytest

from millstream.cli.support.terminal import (
    counted,
    format_bytes,
    format_duration,
    format_time,
    print_json,
    print_table,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3.0 TiB")],
)
def test_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_007, "2023-11-14T22:13:20.007Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (2**62, str(2**62)),
    ],
)
def test_times(timestamp: int, text: str) -> None:
    assert format_time(timestamp) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.84, "0.8s"),
        (9.5, "9.5s"),
        (59.6, "1m"),
        (61, "1m 1s"),
        (3600, "1h"),
        (3605, "1h"),
        (7384, "2h 3m"),
        (187_200, "2d 4h"),
        (90_000_000, "1041d 16h"),
        (float("inf"), "unlimited"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_counts() -> None:
    assert counted(1, "message") == "1 message"
    assert counted(0, "message") == "0 messages"
    assert counted(12345, "message") == "12,345 messages"


def test_tables_in_a_pipe_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    print_table(["NAME", "COUNT"], [[long, 5], ["[red]plain[/red]", 12]], right=["COUNT"])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[2].split() == [long, "5"]
    assert lines[3].split() == ["[red]plain[/red]", "12"]
    assert len(lines[2]) == len(lines[3])


def test_json_in_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "zwölf", "list": [1, None]})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "zwölf" in out
    assert json.loads(out) == {"name": "zwölf", "list": [1, None]}
