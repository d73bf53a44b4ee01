from __future__ import annotations

import json
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
    assert ask("outbox", "init").out == "millstream_outbox: made\n"
    assert ask("outbox", "init").code == 5
    fill(database, topic, 3)
    (shown,) = json.loads(ask("outbox", "status", "--json").out)
    assert (shown["pending"], shown["active"], shown["batch"]) == (3, False, 0)
    assert "nobody" in ask("outbox", "status").out
    assert "3 events sent" in ask("outbox", "relay", "--drain", "--keep", "60").error
    (shown,) = json.loads(ask("outbox", "status", "--json").out)
    assert (shown["pending"], shown["sent"], shown["batch"]) == (0, 3, 1)
    consumed = ask("consume", topic, "--from-beginning", "--no-follow")
    assert sorted(consumed.out.split()) == ["0", "1", "2"]


@pytest.mark.parametrize("sent", [True, False])
def test_a_person_settles_what_kafka_forgot(
    ask: Run, database: Path, topic: str, sent: bool
) -> None:
    ask("outbox", "init")
    fill(database, topic, 2)
    claim = "UPDATE millstream_outbox_shard SET batch = 5, claimed = '[1, 2]'"
    change(database, claim)
    refused = ask("outbox", "relay", "--drain")
    assert refused.code == 1
    assert "has no position that tells" in refused.error
    assert "has no position" in json.loads(ask("outbox", "status", "--json").out)[0]["error"]
    settled = ask("outbox", "settle", "--shard", "0", "--sent" if sent else "--unsent")
    assert "2 events taken as" in settled.out
    fill(database, topic, 1)
    assert ask("outbox", "relay", "--drain").code == 0
    consumed = ask("consume", topic, "--from-beginning", "--no-follow").out.split()
    assert sorted(consumed) == (["0"] if sent else ["0", "0", "1"])


def test_the_sql_is_printed(run: Run) -> None:
    printed = run("outbox", "init", "--print", "--database", "postgresql://x/y", "--shards", "8")
    assert "CREATE TABLE millstream_outbox (" in printed.out
    assert "0), 8)" in printed.out
    without = run("outbox", "init", "--print", "--database", "postgresql://x/y", "--no-notify")
    assert "pg_notify" in printed.out
    assert "pg_notify" not in without.out


def test_wrong_use_is_told(ask: Run, database: Path) -> None:
    missing = ask("outbox", "relay", "--drain")
    assert missing.code == 1
    assert "millstream outbox init" in missing.error
    assert ask("outbox", "status", "--database", "mysql://x").code == 2
    assert ask("outbox", "init", "--table", "no;good").code == 2
    assert ask("outbox", "init", "--shards", "2").code == 1
    ask("outbox", "init")
    assert ask("outbox", "relay", "--drain", "-X", "no.such.property=1").code == 2
