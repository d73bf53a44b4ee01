from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.fixture
def filled(ask: Run, topic: str) -> str:
    """A topic with ten messages in partition 0, one second apart, and one in partition 2."""
    lines = "".join(
        json.dumps({"key": f"k{n}", "value": f"v{n}", "timestamp": 1_700_000_000_000 + n * 1000})
        + "\n"
        for n in range(10)
    )
    assert ask("produce", topic, "--json", "-p", "0", stdin=lines).code == 0
    assert ask("produce", topic, "other", "-p", "2").code == 0
    return topic


def test_no_follow_prints_all_messages_and_ends(ask: Run, filled: str) -> None:
    outcome = ask("consume", filled, "--no-follow")
    assert outcome.code == 0
    assert sorted(outcome.out.split()) == sorted([f"v{n}" for n in range(10)] + ["other"])


def test_an_empty_topic_ends_at_once(ask: Run, topic: str) -> None:
    outcome = ask("consume", topic, "--no-follow")
    assert (outcome.code, outcome.out) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (("--offset", "7"), ["v7", "v8", "v9"]),
        (("--offset", "-2"), ["v8", "v9"]),
        (("--offset", "-50", "-n", "1"), ["v0"]),
        (("--offset", "10"), []),
        (("--offset", "0", "-n", "2"), ["v0", "v1"]),
        (("--from-beginning", "-n", "1"), ["v0"]),
        (("--since", "2023-11-14T22:13:28Z"), ["v8", "v9"]),
        (("--timestamp", "1700000008500"), ["v9"]),
        (("--since", "1700000009001"), []),
        (("--since", "99999w", "-n", "1"), ["v0"]),
    ],
)
def test_start_positions(
    ask: Run, filled: str, arguments: tuple[str, ...], values: list[str]
) -> None:
    outcome = ask("consume", filled, "--no-follow", "-p", "0", *arguments)
    assert outcome.code == 0, outcome
    assert outcome.out.split() == values


def test_an_offset_out_of_range_prints_a_note(ask: Run, filled: str) -> None:
    outcome = ask("consume", filled, "--no-follow", "-p", "0", "-o", "99")
    assert outcome.error == f"{filled}-0 has offsets from 0 up to 10: reading starts at 10.\n"
    assert ask("consume", filled, "--no-follow", "-o", "99", "-q").error == ""


def test_formats(ask: Run, filled: str) -> None:
    arguments = ("consume", filled, "--no-follow", "-p", "0", "-n", "1")
    assert ask(*arguments, "-f", "%t %p %o %T %k=%v").out == f"{filled} 0 0 1700000000000 k0=v0\n"
    assert ask(*arguments, "--print", "key,partition").out == "0\tk0\tv0\n"
    assert ask(*arguments, "--delimiter", "\\0").out == "v0\0"
    row = json.loads(ask(*arguments, "--json").out)
    assert (row["topic"], row["key"], row["value"], row["offset"]) == (filled, "k0", "v0", 0)


def test_not_found(ask: Run, topic: str) -> None:
    missing = ask("consume", "nope", "--no-follow")
    assert missing.code == 3, missing
    assert "topic 'nope' does not exist" in missing.error
    assert ask("consume", topic, "-p", "3").code == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("--from-beginning", "--offset", "3"),
        ("--offset", "x"),
        ("--since", "yesterday"),
        ("--json", "--format", "%v"),
        ("--format", "%z"),
        ("--print", "colour"),
        ("-n", "0"),
    ],
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    outcome = run("consume", "t", "-b", "127.0.0.1:1", *arguments)
    assert outcome.code == 2, outcome


def test_an_interrupt_ends_a_consumer_that_follows(ask: Run, filled: str, broker: str) -> None:
    # Children of a shell's background job ignore SIGINT by default.
    listening = ["env", "--default-signal=INT", sys.executable, "-m", "millstream.cli.main"]
    process = subprocess.Popen(
        [*listening, "consume", filled, "-p", "2", "-B"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "MILLSTREAM_BOOTSTRAP_SERVERS": broker},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"other\n"
    assert ask("produce", filled, "new", "-p", "2").code == 0
    assert process.stdout.readline() == b"new\n"
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=90)
    assert (process.returncode, out, error) == (0, b"", b"")


def test_a_closed_output_pipe_is_not_an_error(ask: Run, filled: str, broker: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "millstream.cli.main", "consume", filled, "-B"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "MILLSTREAM_BOOTSTRAP_SERVERS": broker},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() != b""
    process.stdout.close()
    while process.poll() is None:
        assert ask("produce", filled, "more", "-q").code == 0
    with process.stderr as errors:
        assert errors.read() == b""
    assert process.returncode == 0
