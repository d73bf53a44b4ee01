from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from harness.process.broker_process import wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.fixture
def letters(ask: Run, broker: str, topic: str) -> str:
    """A topic with five dead letters in one partition."""
    created = ask("topic", "create", f"{topic}.dlq", "--partitions", "1")
    assert created.code == 0, created
    producer = Producer({"bootstrap.servers": broker})
    for number in range(5):
        headers = {
            "app": b"x",
            "millstream.original.topic": topic,
            "millstream.original.partition": "2",
            "millstream.original.offset": str(number),
            "millstream.group": "billing",
            "millstream.attempts": "3",
            "millstream.dead.timestamp": str(1_700_000_000_000 + number * 1000),
            "millstream.error.type": "KeyError" if number else "TimeoutError",
            "millstream.error.message": "slow" if number else "late",
            "millstream.error.stack": "Traceback: here",
        }
        producer.produce(f"{topic}.dlq", b"%d" % number, b"key-%d" % number, headers=headers)
    assert producer.flush(60) == 0
    return topic


def test_list_and_show(ask: Run, letters: str) -> None:
    outcome = ask("dlq", "list", letters, "--json", "--error", "keyerr", "--key", "key-3")
    assert outcome.code == 0, outcome
    [row] = json.loads(outcome.out)
    assert row == {
        "letter": "0:3",
        "timestamp": 1_700_000_003_000,
        "key": "key-3",
        "topic": letters,
        "partition": 2,
        "offset": 3,
        "original_timestamp": row["original_timestamp"],
        "group": "billing",
        "attempts": 3,
        "error_type": "KeyError",
        "error_message": "slow",
        "replayed": False,
    }
    table = ask("dlq", "list", f"{letters}.dlq", "--limit", "2")
    assert f"{letters}-2@1" in table.out
    assert "There are more than 2" in table.error
    shown = ask("dlq", "show", letters, "0:0")
    assert "TimeoutError" in shown.out
    assert "Traceback: here" in shown.out
    row = json.loads(ask("dlq", "show", letters, "0:1", "--json").out)
    assert (row["value"], row["headers"]) == ("1", [{"key": "app", "value": "x"}])
    assert ask("dlq", "show", letters, "0:99").code == 3
    assert ask("dlq", "show", letters, "7:0").code == 3
    assert ask("dlq", "show", letters, "first").code == 2


def test_replay_stats_and_purge(ask: Run, letters: str) -> None:
    dry = ask("dlq", "replay", letters, "--dry-run", "-l", "0:0", "-l", "0:4")
    assert dry.out == f"{letters}: 2 letters\n"
    assert "Nothing was sent" in dry.error
    first = ask("dlq", "replay", letters, "-l", "0:0", "-l", "0:1")
    assert first.out == "2 letters replayed\n", first
    stats = json.loads(ask("dlq", "stats", letters, "--json").out)
    assert stats.pop("oldest_age_seconds") > 0
    assert stats == {
        "topic": f"{letters}.dlq",
        "depth": 3,
        "replayed": 2,
        "by_error": {"KeyError": 3},
        "by_topic": {letters: 3},
        "by_group": {"billing": 3},
    }
    assert "3 letters, the oldest" in ask("dlq", "stats", letters).out
    assert ask("dlq", "purge", letters).code == 2
    assert ask("dlq", "purge", letters, "--replayed", "--yes").out == "2 letters deleted\n"
    assert [row["letter"] for row in json.loads(ask("dlq", "list", letters, "--json").out)] == [
        "0:2",
        "0:3",
        "0:4",
    ]
    rest = ask("dlq", "replay", letters, "--to", letters, "--rate", "1000")
    assert rest.out == "3 letters replayed\n"
    again = ask("dlq", "replay", letters)
    assert (again.out, "3 letters were replayed before" in again.error) == (
        "0 letters replayed\n",
        True,
    )
    assert ask("dlq", "purge", letters, "--before", "1700000003000", "-y").out == (
        "1 letter deleted\n"
    )
    assert ask("dlq", "purge", letters, "--all", "-y").out == "2 letters deleted\n"
    assert json.loads(ask("dlq", "list", letters, "--json").out) == []
    consumed = ask("consume", letters, "--from-beginning", "--no-follow")
    assert sorted(consumed.out.split()) == ["0", "1", "2", "3", "4"]


def test_wrong_usage(ask: Run, topic: str) -> None:
    missing = ask("dlq", "list", topic)
    assert missing.code == 3
    assert "no dead letters" in missing.error
    assert ask("dlq", "list", topic, "--since", "soon").code == 2


def test_following_letters_ends_with_ctrl_c(ask: Run, letters: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    program = str(Path(sys.executable).with_name("millstream"))
    command = [program, "dlq", "list", letters, "--follow", "--json", "--error", "KeyError"]

    def rows() -> list[str]:
        return [json.loads(line)["letter"] for line in output.read_text().splitlines()]

    with (
        output.open("wb") as file,
        subprocess.Popen(command, env=dict(os.environ), stdout=file) as process,
    ):
        try:
            wait_until(lambda: len(rows()) == 4, "the letters that the topic has")
            dead = {"millstream.original.topic": letters, "millstream.error.type": "KeyError"}
            producer = Producer({"bootstrap.servers": os.environ["MILLSTREAM_BOOTSTRAP_SERVERS"]})
            producer.produce(f"{letters}.dlq", b"new", headers=dead)
            assert producer.flush(60) == 0
            wait_until(lambda: len(rows()) == 5, "the new letter")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert rows() == ["0:1", "0:2", "0:3", "0:4", "0:5"]


def test_json_of_replay_and_purge(ask: Run, letters: str) -> None:
    dry = json.loads(ask("dlq", "replay", letters, "--dry-run", "--json").out)
    assert (dry["dry_run"], dry["replayed"], dry["targets"]) == (True, 5, {letters: 5})
    assert json.loads(ask("dlq", "replay", letters, "-l", "0:0", "--json").out) == {
        "topic": f"{letters}.dlq",
        "dry_run": False,
        "replayed": 1,
        "already_replayed": 0,
        "targets": {letters: 1},
    }
    purged = ask("dlq", "purge", letters, "--all", "--yes", "--json")
    assert json.loads(purged.out) == {"topic": f"{letters}.dlq", "deleted": 5}
    unasked = ask("dlq", "purge", letters, "--all")
    assert unasked.code == 0, "nothing is left to delete"


def test_commands_that_read_letters_show_progress(
    ask: Run, letters: str, progress_ends: list[str]
) -> None:
    assert ask("dlq", "list", letters).code == 0
    assert ask("dlq", "stats", letters).code == 0
    assert ask("dlq", "show", letters, "0:1").code == 0
    assert ask("dlq", "replay", letters, "--dry-run").code == 0
    assert ask("dlq", "purge", letters, "--all", "--yes").code == 0
    assert progress_ends == [
        "letters read: 5",
        "letters read: 5",
        "reading letter 0:1",
        "letters selected: 5",
        "letters read: 5",
        "deleting 5 letters",
    ]
