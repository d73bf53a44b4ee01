"""`millstream profile`, and commands that connect with a profile."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run

#: No broker listens there.
NOWHERE = "127.0.0.1:1"


def made(run: Run, name: str, *options: str) -> None:
    outcome = run("profile", "create", name, *options)
    assert outcome.code == 0, outcome


def test_create_list_show_use_and_delete(run: Run, no_profiles: Path) -> None:
    assert "There are no profiles" in run("profile", "list").error
    assert json.loads(run("profile", "list", "--json").out) == []
    assert run("profile", "show").code == 3
    made(run, "local", "-b", "127.0.0.1:9092")
    security = ("--security-protocol", "SASL_SSL", "--sasl-username", "ann")
    secrets = ("--sasl-password", "hidden", "-X", "ssl.key.password=alsohidden")
    registry = ("--schema-registry", "https://u:secret@registry:8081")
    made(run, "prod", "-b", "b1:9092,b2:9092", *security, *secrets, *registry)
    assert stat.S_IMODE(no_profiles.stat().st_mode) == 0o600
    # The first profile is the current one.
    assert [row["current"] for row in json.loads(run("profile", "list", "--json").out)] == [
        True,
        False,
    ]
    assert run("profile", "use", "prod").code == 0
    shown = run("profile", "show", "--json")
    assert json.loads(shown.out) == {
        "profile": "prod",
        "current": True,
        "bootstrap_servers": "b1:9092,b2:9092",
        "schema_registry": "https://u:********@registry:8081",
        "properties": {
            "sasl.password": "********",
            "sasl.username": "ann",
            "security.protocol": "SASL_SSL",
            "ssl.key.password": "********",
        },
    }
    for text in (run("profile", "show"), run("profile", "list")):
        assert "hidden" not in text.out
        assert "secret" not in text.out
        assert "b1:9092" in text.out
    assert run("profile", "delete", "prod").code == 2
    assert run("profile", "delete", "prod", "--yes").out == "prod: deleted\n"
    assert "no profile is current" in run("profile", "show").error


def test_names_that_exist_already_or_not_at_all(run: Run) -> None:
    made(run, "local")
    exists = run("profile", "create", "local")
    assert (exists.code, "--replace" in exists.error) == (5, True), exists
    replaced = run("profile", "create", "local", "--replace", "-b", "h:1", "--json")
    assert json.loads(replaced.out) == {"profile": "local", "result": "replaced"}
    missing = run("profile", "use", "prod")
    assert (missing.code, "there are local" in missing.error) == (3, True), missing
    assert run("profile", "create", "a b").code == 2
    assert run("profile", "use").code == 2
    assert run("profile", "use", "--none").code == 0


def test_a_password_is_asked_for(run: Run, no_profiles: Path) -> None:
    outcome = run("profile", "create", "p", "--sasl-password", "-", stdin="from-prompt\n")
    assert outcome.code == 0, outcome
    assert "from-prompt" not in outcome.out + outcome.error
    assert '"sasl.password" = "from-prompt"' in no_profiles.read_text()
    empty = run("profile", "create", "q", "--sasl-password", "-", stdin="")
    assert (empty.code, "standard input has no password" in empty.error) == (2, True), empty


def test_files_are_found_from_any_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").touch()
    monkeypatch.chdir(tmp_path)
    made(run, "secure", "--security-protocol", "SSL", "--ssl-cafile", "ca.pem")
    stored = json.loads(run("profile", "show", "secure", "--json").out)["properties"]
    assert stored["ssl.ca.location"] == str(tmp_path / "ca.pem")
    missing = run("profile", "create", "typo", "--ssl-cafile", "cas.pem")
    assert (missing.code, "--ssl-cafile 'cas.pem' does not exist" in missing.error) == (3, True)
    assert run("profile", "show", "typo").code == 3


def test_an_option_wins_over_the_environment_which_wins_over_the_profile(
    run: Run, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLSTREAM_BOOTSTRAP_SERVERS", raising=False)
    made(run, "good", "-b", broker)
    made(run, "bad", "-b", NOWHERE)
    assert run("cluster", "status").code == 0, "the current profile"
    failed = run("cluster", "status", "--profile", "bad", "--timeout", "2")
    assert (failed.code, "The command used profile 'bad'" in failed.error) == (4, True), failed
    assert run("cluster", "status", "--profile", "bad", "-b", broker).code == 0
    assert run("profile", "use", "bad").code == 0
    failed = run("cluster", "status", "--timeout", "2")
    assert (failed.code, "The command used profile 'bad'" in failed.error) == (4, True), failed
    none = run("cluster", "status", "--timeout", "2", "--profile", "", "-b", NOWHERE)
    assert (none.code, "profile" in none.error) == (4, False), none
    monkeypatch.setenv("MILLSTREAM_PROFILE", "bad")
    assert run("cluster", "status", "--timeout", "2").code == 4
    assert run("cluster", "status", "--profile", "good").code == 0
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", broker)
    assert run("cluster", "status").code == 0
    assert run("cluster", "status", "-b", NOWHERE, "--timeout", "2").code == 4
    unknown = run("cluster", "status", "--profile", "no-such")
    assert (unknown.code, "there is no profile 'no-such'" in unknown.error) == (3, True)


def test_properties_of_the_command_line_are_added_to_those_of_the_profile(
    ask: Run, topic: str
) -> None:
    made(ask, "typo", "-X", "security.protocol=NONSENSE")
    wrong = ask("topic", "list")
    assert (wrong.code, "NONSENSE" in wrong.error) == (2, True), wrong
    assert ask("topic", "list", "-X", "client.id=mine").code == 2
    assert ask("topic", "list", "-X", "security.protocol=PLAINTEXT").code == 0
    # An empty name turns the current profile off.
    assert ask("topic", "list", "--profile", "").code == 0


def test_a_damaged_file_is_named(run: Run, no_profiles: Path) -> None:
    no_profiles.parent.mkdir(parents=True, exist_ok=True)
    no_profiles.write_text("profiles = [")
    outcome = run("topic", "list")
    assert outcome.code == 2
    assert str(no_profiles) in outcome.error


def test_the_default_file_is_in_the_config_directory_of_the_user(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLSTREAM_PROFILE_FILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    made(run, "local")
    assert os.listdir(tmp_path / "xdg" / "millstream") == ["profiles.toml"]
