"""`millstream job`: reports, dry runs and exit codes."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.spark.job.content import KEEPING, some_messages
from typer.testing import CliRunner, Result

from harness.topic_content import write_messages
from millstream.cli.job.job_frame import Shared, perform, spark_failure
from millstream.cli.json_output.table import JSON_OUTPUTS
from millstream.cli.main import build
from millstream.cli.support.failure import ExitCode
from millstream.spark.job import Report, RunOptions
from millstream.testing.broker import LocalBroker

Job = Callable[..., Result]


@pytest.fixture
def job(broker: LocalBroker) -> Job:
    """Run `millstream job ARGUMENTS...` in this process."""

    def run(*arguments: object) -> Result:
        words = ["job", *map(str, arguments)]
        environment = {
            "MILLSTREAM_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }
        outcome = CliRunner().invoke(build(["job"]), words, env=environment)
        if "--json" in words and outcome.exit_code in (0, ExitCode.FAILED) and outcome.stdout:
            described = JSON_OUTPUTS[f"job {words[1]}"]
            assert described.problems(json.loads(outcome.stdout)) == []
        return outcome

    return run


@pytest.mark.usefixtures("spark")
def test_reports(job: Job, broker: LocalBroker, topic_name: str, tmp_path: Path) -> None:
    broker.create_topic(topic_name, 1, KEEPING)
    write_messages(broker.bootstrap_servers, topic_name, some_messages(20, 1, seed=1))
    command = ("archive", topic_name, "--to", tmp_path / "a", "--no-follow", "--json")
    dry = job(*command, "--dry-run")
    assert dry.exit_code == 0, dry.output
    told = json.loads(dry.stdout)
    assert (told["dry_run"], told["offsets"], told["partitions"][0]["to_offset"]) == (True, 20, 20)
    assert not (tmp_path / "a").exists()
    done = job(*command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["records"] == 20
    table = job("snapshot", topic_name, "--to", tmp_path / "s")
    assert table.exit_code == 0, table.output
    assert re.search(r"records +20\n", table.stdout), table.stdout
    assert "NEXT OFFSET" in job(*command[:-1]).stdout


@pytest.mark.usefixtures("spark")
def test_the_keys_of_reports_are_documented(
    job: Job, broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    """The fixture compares each JSON output with its description."""
    copy, dead = f"{topic_name}-copy", f"{topic_name}.dlq"
    for name in (topic_name, copy, dead):
        broker.create_topic(name, 1, KEEPING)
    write_messages(broker.bootstrap_servers, topic_name, some_messages(20, 1, seed=1))
    write_messages(broker.bootstrap_servers, dead, some_messages(2, 1, seed=2))
    replay = ("replay", topic_name, "--to", copy, "--state", tmp_path / "r", "--json")
    for command, code in (
        ((*replay, "--dry-run"), 0),
        (replay, 0),
        (("deadletters", topic_name, "--json"), 0),
        (("snapshot", topic_name, "--to", tmp_path / "s", "--json"), 0),
    ):
        outcome = job(*command)
        assert outcome.exit_code == code, outcome.output


def test_exit_codes(job: Job, tmp_path: Path, topic_name: str) -> None:
    to = ("--to", tmp_path)
    missing = job("archive", topic_name, *to, "--no-follow", "--dry-run")
    assert (missing.exit_code, "does not exist" in missing.stderr) == (3, True)
    assert job("archive", "t", "--to", "s3://bucket/t").exit_code == 2
    assert job("snapshot", "t", *to, "--master", "local", "--remote", "sc://x").exit_code == 2
    replay = ("replay", "t", "--to", "u", "--state", tmp_path)
    assert job(*replay, "--range", "0:1").exit_code == 2
    assert job(*replay, "--since", "yesterday").exit_code == 2
    file = tmp_path / "file"
    file.write_text("")
    wrong = job("archive", "t", "--to", file, "--no-follow")
    assert (wrong.exit_code, f"{file}/_millstream: Not a directory." in wrong.stderr) == (1, True)
    nobody = ("-b", "127.0.0.1:1", "-X", "default.api.timeout.ms=300")
    assert job("snapshot", "t", *to, *nobody).exit_code == 4


def test_errors_in_tasks_are_reported() -> None:
    task = (
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure:"
        " Lost task 0.0 in stage 1.0 (TID 1) (127.0.0.1 executor driver):"
        " org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "reader.py", line 7, in read\n    raise Unavailable("no answer")\n'
        "millstream.spark.error.Unavailable: no answer within 3 s\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1)\n"
        "\nDriver stacktrace:\n\nJVM stacktrace:\n\tat java.lang.Thread.run"
    )
    silent = spark_failure(task)
    assert (silent.code, str(silent)) == (ExitCode.NO_CONNECTION, "no answer within 3 s")
    other = spark_failure("[NO_SPACE] The disk is full. SQLSTATE: 53100\n\nJVM stacktrace:\n\tat x")
    assert (other.code, str(other)) == (ExitCode.FAILED, "Spark: [NO_SPACE] The disk is full.")
    absent = spark_failure("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: millstream.")
    assert "PYSPARK_PYTHON" in str(absent)


@pytest.mark.parametrize("is_read_only", [True, False])
def test_interrupts(is_read_only: bool) -> None:
    """A job that writes is stopped with its event; a reading job or a dry run is interrupted."""

    def work(options: RunOptions) -> Report:
        signal.raise_signal(signal.SIGINT)
        assert options["stop"].is_set()
        return Report("work", "Stopped.")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if is_read_only:
            with pytest.raises(KeyboardInterrupt):
                perform(work, Shared(), is_read_only=True)
        else:
            assert perform(work, Shared()).outcome == "Stopped."
    finally:
        signal.signal(signal.SIGINT, before)


def test_without_spark(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = importlib.util.find_spec

    def absent(name: str, package: str | None = None) -> object:
        return None if name == "pyspark" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", absent)
    outcome = job("snapshot", "t", "--to", tmp_path)
    assert outcome.exit_code == 1
    assert 'pip install "millstream[spark]"' in outcome.stderr


@pytest.mark.usefixtures("spark")
def test_reading_commands(job: Job, broker: LocalBroker, topic_name: str, tmp_path: Path) -> None:
    for name in (topic_name, f"{topic_name}.dlq"):
        broker.create_topic(name, 1, KEEPING)
    write_messages(broker.bootstrap_servers, topic_name, some_messages(20, 1, seed=1))
    page = tmp_path / "page.html"
    profiled = job("profile", topic_name, "--html", page, "--json")
    assert profiled.exit_code == 0, profiled.output
    assert page.read_text().startswith("<!doctype html>")
    same = job("audit", topic_name, "--output", topic_name, "--json")
    assert (same.exit_code, json.loads(same.stdout)["matched"]) == (0, 20), same.output
    lost = job("audit", topic_name, "--output", f"{topic_name}.dlq", "--json")
    assert (lost.exit_code, json.loads(lost.stdout)["missing"]) == (1, 20), lost.output
    assert job("audit", topic_name, "--output", "t", "--identity", "name").exit_code == 2
    for arguments, code, said in (
        (("--output", topic_name, "--where", "offset <"), 2, "the condition 'offset <' cannot be"),
        (("--output", tmp_path / "none", "--dry-run"), 0, ""),
        (("--output", tmp_path / "none"), 3, "none has no Parquet table."),
        (("--output", f"{topic_name}-none"), 3, "does not exist"),
        (("--output", topic_name, "--identity", "sql:nothing"), 2, "cannot be used"),
    ):
        outcome = job("audit", topic_name, *arguments)
        assert (outcome.exit_code, said in outcome.stderr) == (code, True), outcome.output
    letters = job("deadletters", topic_name, "--since", "1h", "--json")
    assert (letters.exit_code, json.loads(letters.stdout)["letters"]) == (0, 0), letters.output
