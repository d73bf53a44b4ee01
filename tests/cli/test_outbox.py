from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.client.outbox import Outbox

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "app.db"
    monkeypatch.setenv("MILLSTREAM_OUTBOX_DATABASE", f"sqlite:///{path}")
    return path


def fill(database: Path, topic: str, count: int) -> None:
    with closing(sqlite3.connect(database)) as connection:
        for number in range(count):
            Outbox().write(connection, topic, key="k", value=str(number))
        connection.commit()


def change(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(statement)
        connection.commit()


def test_from_init_to_a_drained_outbox(ask: Run, database: Path, topic: str) -> None:
    assert ask("outbox", "init").out == "millstream_outbox: created\n"
    assert ask("outbox", "init").code == 5
    fill(database, topic, 3)
    (shown,) = json.loads(ask("outbox", "status", "--json").out)
    assert (shown["pending"], shown["active"], shown["batch"]) == (3, False, 0)
    assert "none" in ask("outbox", "status").out
    assert "3 events sent" in ask("outbox", "relay", "--no-follow", "--keep", "60").error
    (shown,) = json.loads(ask("outbox", "status", "--json").out)
    assert (shown["pending"], shown["sent"], shown["batch"]) == (0, 3, 1)
    consumed = ask("consume", topic, "--from-beginning", "--no-follow")
    assert sorted(consumed.out.split()) == ["0", "1", "2"]


def test_only_init_creates_a_file(run: Run, database: Path, tmp_path: Path) -> None:
    for command in ("status", "rejected", "relay"):
        missing = run("outbox", command)
        assert (missing.code, "does not exist: correct its path" in missing.error) == (1, True)
    assert not database.exists()
    nowhere = run("outbox", "init", "--database", f"sqlite:///{tmp_path}/none/app.db")
    assert (nowhere.code, "cannot be opened: No such file" in nowhere.error) == (1, True)


@pytest.mark.parametrize("sent", [True, False])
def test_settle_marks_claimed_events_without_a_committed_offset(
    ask: Run, database: Path, topic: str, sent: bool
) -> None:
    ask("outbox", "init")
    fill(database, topic, 2)
    claim = "UPDATE millstream_outbox_shard SET batch = 5, claimed = '[1, 2]'"
    change(database, claim)
    refused = ask("outbox", "relay", "--no-follow")
    assert refused.code == 1
    assert "has no committed offset that tells" in refused.error
    assert (
        "has no committed offset" in json.loads(ask("outbox", "status", "--json").out)[0]["error"]
    )
    settled = ask("outbox", "settle", "--shard", "0", "--sent" if sent else "--unsent")
    assert "2 events marked as" in settled.out
    fill(database, topic, 1)
    assert ask("outbox", "relay", "--no-follow").code == 0
    consumed = ask("consume", topic, "--from-beginning", "--no-follow").out.split()
    assert sorted(consumed) == (["0"] if sent else ["0", "0", "1"])


def test_rejected_events_are_listed_retried_and_discarded(
    ask: Run, database: Path, topic: str
) -> None:
    ask("outbox", "init")
    ask("topic", "alter", topic, "--config", "max.message.bytes=2000")
    with closing(sqlite3.connect(database)) as connection:
        # Random bytes, because the producer compresses.
        noise = random.Random(1).randbytes(3000).hex()
        for value in ("small", f"x{noise}", f"y{noise}"):
            Outbox().write(connection, topic, key="k", value=value)
        connection.commit()
    relayed = ask("outbox", "relay", "--no-follow")
    assert relayed.code == 0
    assert "2 events rejected" in relayed.error
    (shown,) = json.loads(ask("outbox", "status", "--json").out)
    assert (shown["pending"], shown["rejected"]) == (0, 2)
    listed = json.loads(ask("outbox", "rejected", "--json").out)
    assert [(each["id"], each["topic"], each["value"][0]) for each in listed] == [
        (2, topic, "x"),
        (3, topic, "y"),
    ]
    assert "too large" in listed[0]["error"]
    assert "MSG_SIZE_TOO_LARGE" in ask("outbox", "rejected").out
    assert ask("outbox", "retry").code == 2
    assert ask("outbox", "retry", "--event", "7").code == 3
    assert ask("outbox", "discard", "--event", "3", "--yes").out == "1 event deleted\n"
    ask("topic", "alter", topic, "--config", "max.message.bytes=10000")
    assert ask("outbox", "retry", "--all").out == "1 event pending\n"
    assert ask("outbox", "relay", "--no-follow").code == 0
    consumed = ask("consume", topic, "--from-beginning", "--no-follow").out.split()
    assert sorted(each[:1] for each in consumed) == ["s", "x"]
    assert json.loads(ask("outbox", "rejected", "--json").out) == []


def test_missing_tables_of_an_older_outbox_are_created(
    ask: Run, database: Path, topic: str
) -> None:
    ask("outbox", "init")
    change(database, "DROP TABLE millstream_outbox_rejected")
    assert ask("outbox", "status").code == 0
    assert json.loads(ask("outbox", "rejected", "--json").out) == []


def test_init_prints_the_sql(run: Run) -> None:
    printed = run("outbox", "init", "--print", "--database", "postgresql://x/y", "--shards", "8")
    assert "CREATE TABLE millstream_outbox (" in printed.out
    assert "0), 8)" in printed.out
    without = run("outbox", "init", "--print", "--database", "postgresql://x/y", "--no-notify")
    assert "pg_notify" in printed.out
    assert "pg_notify" not in without.out


def test_wrong_usage(ask: Run, database: Path) -> None:
    missing = ask("outbox", "relay", "--no-follow")
    assert missing.code == 1
    assert "millstream outbox init" in missing.error
    assert ask("outbox", "status", "--database", "mysql://x").code == 2
    assert ask("outbox", "init", "--table", "no;good").code == 2
    assert ask("outbox", "init", "--shards", "2").code == 1
    ask("outbox", "init")
    assert ask("outbox", "relay", "--no-follow", "-X", "no.such.property=1").code == 2


def test_json_of_commands_that_change_something(ask: Run, database: Path, topic: str) -> None:
    made = ask("outbox", "init", "--json")
    assert json.loads(made.out) == {"table": "millstream_outbox", "result": "created"}
    fill(database, topic, 2)
    change(database, "UPDATE millstream_outbox_shard SET batch = 5, claimed = '[1, 2]'")
    settled = ask("outbox", "settle", "--shard", "0", "--unsent", "--json")
    assert json.loads(settled.out) == {"shard": 0, "events": 2, "result": "unsent"}
    relayed = ask("outbox", "relay", "--no-follow", "--json")
    assert json.loads(relayed.out) == {"sent": 2, "rejected": 0, "undecided_shards": []}
    for command, result in (("retry", "pending"), ("discard", "deleted")):
        done = ask("outbox", command, "--all", *(["--yes"] * (command == "discard")), "--json")
        assert json.loads(done.out) == {"events": 0, "result": result}
    unasked = ask("outbox", "discard", "--all")
    assert (unasked.code, "--yes" in unasked.error) == (2, True), unasked
