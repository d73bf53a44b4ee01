from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from millstream.cli.support.quantity import (
    ByteRate,
    Duration,
    Rate,
    Size,
    duration_option,
    size_option,
)

PAUSE = Duration(90)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("10s", 10),
        ("10m", 600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("1m500ms", 60.5),
        ("15", 15),
        ("0", 0),
    ],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert Duration.parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "10x", "30m1h", "1h1h", "-5s", "1 h", "10m5", "soon"])
def test_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: write 500ms"):
        Duration.parse(text)


@pytest.mark.parametrize("text", ["500ms", "1m", "1h30m", "2d", "1w", "0s", "1m500ms"])
def test_the_text_of_a_duration_is_what_users_write(text: str) -> None:
    assert str(Duration.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512),
        ("512B", 512),
        ("50MB", 50_000_000),
        ("50mb", 50_000_000),
        ("1GiB", 1 << 30),
        ("1.5 KiB", 1536),
        ("2TB", 2 * 10**12),
    ],
)
def test_a_size(text: str, size: int) -> None:
    assert Size.parse(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "5M", "5 apples", "1,000"])
def test_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: write 512B, 50MB"):
        Size.parse(text)


@pytest.mark.parametrize("text", ["128MiB", "50MB", "1GiB", "7B", "0B", "2TB"])
def test_the_text_of_a_size_is_what_users_write(text: str) -> None:
    assert str(Size.parse(text)) == text


def test_rates() -> None:
    assert Rate.parse("1000/s") == 1000
    assert Rate.parse("60/m") == 1
    assert Rate.parse("5") == 5
    assert ByteRate.parse("10MB/s") == 10_000_000
    assert ByteRate.parse("1GiB/h") == pytest.approx((1 << 30) / 3600)
    assert ByteRate.parse("4096") == 4096
    assert str(Rate.parse("1000/s")) == "1000/s"


@pytest.mark.parametrize("text", ["fast", "10MB/s", "10/fortnight", "/s"])
def test_not_a_rate(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate: write 1000/s"):
        Rate.parse(text)


def test_options() -> None:
    app = typer.Typer()

    @app.command()
    def wait(
        pause: Annotated[Duration, duration_option("--pause", minimum="100ms")] = PAUSE,
        size: Annotated[Size | None, size_option("--size")] = None,
    ) -> None:
        typer.echo(f"{float(pause)} {size!r}")

    def run(*arguments: str) -> tuple[int, str]:
        outcome = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120", "TERM": "dumb"})
        return outcome.exit_code, outcome.output

    assert run() == (0, "90.0 None\n")
    assert run("--pause", "2m", "--size", "1kB") == (0, "120.0 1000\n")
    assert "[default: 1m30s]" in run("--help")[1]
    code, output = run("--pause", "10ms")
    assert (code, "10ms is less than 100ms" in output) == (2, True), output
    code, output = run("--size", "5M")
    assert (code, "'5M' is not a size" in output) == (2, True), output
