"""Fixtures for tests of commands: a broker process on a free port, a topic, and a runner.

With MILLSTREAM_TEST_BOOTSTRAP=host:port the tests use the broker at that address instead. With
Apache Kafka there, a failure that remains is a failure of the command.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.process.broker_process import KEEPS_OLD_RECORDS, BrokerProcess
from millstream.cli.json_output.form import Form
from millstream.cli.json_output.table import JSON_OUTPUTS
from millstream.cli.main import build, subcommands_of
from millstream.cli.support.progress import Progress


class Outcome:
    """The output and the exit code of a command."""

    def __init__(self, code: int, out: bytes, error: str) -> None:
        self.code = code
        self.bytes = out
        self.out = out.decode(errors="replace")
        self.error = error

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.error}"


Run = Callable[..., Outcome]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running broker without automatic topic creation."""
    if external := os.environ.get("MILLSTREAM_TEST_BOOTSTRAP"):
        yield external
        return
    settings = {"auto.create.topics.enable": False}
    with BrokerProcess(
        tmp_path_factory.mktemp("broker"), {**KEEPS_OLD_RECORDS, **settings}
    ) as process:
        yield process.bootstrap
        process.stop()


@pytest.fixture(autouse=True)
def no_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the profiles of the user out of the tests. Return the file of the test's profiles."""
    path = tmp_path / "config" / "profiles.toml"
    monkeypatch.setenv("MILLSTREAM_PROFILE_FILE", str(path))
    monkeypatch.delenv("MILLSTREAM_PROFILE", raising=False)
    return path


def check_json(arguments: Sequence[str], out: str) -> None:
    """Compare the output of a command with `--json` with its documented keys."""
    names = [
        each
        for each in JSON_OUTPUTS
        if tuple(each.split()) == tuple(arguments)[: len(each.split())]
    ]
    name = "serve --check" if "--check" in arguments else max(names, key=len)
    output = JSON_OUTPUTS[name]
    values = [json.loads(line) for line in out.splitlines()]
    # With --watch, each line is a whole output.
    for value in [values] if output.form is Form.LINES else values:
        assert output.problems(value) == [], f"the output of `{name}` is not as documented"


@pytest.fixture
def run() -> Run:
    """Run `millstream ARGUMENTS...` in this process, without a broker.

    If the command prints JSON, its keys must be the documented ones."""

    def run_command(*arguments: str, stdin: bytes | str | None = None) -> Outcome:
        environment = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
        # As `main` does: building the options of all commands would take most of the time.
        app = build(subcommands_of(arguments[:1]))
        result = CliRunner().invoke(app, list(arguments), input=stdin, env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        outcome = Outcome(result.exit_code, result.stdout_bytes, result.stderr)
        if "--json" in arguments and result.exit_code == 0:
            check_json(arguments, outcome.out)
        return outcome

    return run_command


@pytest.fixture
def progress_ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The last line of each progress that commands began, whether it was shown or not."""
    ends: list[str] = []
    end = Progress._end

    def record(self: Progress) -> None:
        end(self)
        ends.append(self._current().line())

    monkeypatch.setattr(Progress, "_end", record)
    return ends


@pytest.fixture
def ask(run: Run, broker: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command with the broker as its default."""
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", broker)
    return run


_numbers = count()


@pytest.fixture
def topic(ask: Run) -> str:
    """A new topic with three partitions."""
    name = f"cli-{os.getpid()}-{next(_numbers)}"
    created = ask("topic", "create", name, "--partitions", "3", "--replication-factor", "1")
    assert created.code == 0, created
    return name
