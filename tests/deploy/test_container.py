"""The container file: linted, and its parts run here as they would in the image."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from deploy.served_settings import served_settings
from harness.process.broker_process import BrokerProcess
from harness.tool.deploy_tool import REPOSITORY, hadolint, run

FILE = REPOSITORY / "deploy" / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    """Return each instruction and its arguments, without comments and line breaks."""
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    rows = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(name, " ".join(arguments.split())) for name, arguments in rows]


def last(name: str) -> str:
    return [arguments for found, arguments in instructions() if found == name][-1]


def variables() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in shlex.split(last("ENV")))


def test_the_linter_finds_no_fault() -> None:
    run(hadolint(), "--failure-threshold", "style", FILE)


def copied() -> list[str]:
    """Return the files and folders that are copied from the checkout."""
    rows = [shlex.split(arguments) for name, arguments in instructions() if name == "COPY"]
    return [source for row in rows if not row[0].startswith("--from") for source in row[:-1]]


@pytest.mark.parametrize("source", copied())
def test_everything_that_is_copied_exists_and_is_not_ignored(source: str) -> None:
    assert (REPOSITORY / source).exists()
    rules = Path(f"{FILE}.dockerignore").read_text().splitlines()
    assert f"!{source}" in rules


def test_secrets_and_builds_are_not_copied() -> None:
    rules = Path(f"{FILE}.dockerignore").read_text().splitlines()
    assert rules[1] == "*"
    assert any(fnmatch("src/millstream/records/kernel.so", rule) for rule in rules[2:])


def test_the_copied_files_are_enough_to_build_the_package(tmp_path: Path) -> None:
    """`tests/package` builds an sdist from these files; here, that no other file is read."""
    needed = set(re.findall(r'"([\w./-]+)"', _metadata_files()))
    assert needed <= set(copied())


def _metadata_files() -> str:
    text = (REPOSITORY / "pyproject.toml").read_text()
    return "\n".join(re.findall(r"^(?:readme|license-files) = .*$", text, re.MULTILINE))


def test_the_image_runs_as_an_unprivileged_user_with_its_data_in_a_volume() -> None:
    user, group = (int(number) for number in last("USER").split(":"))
    assert user > 0
    assert group > 0
    users = next(text for name, text in instructions() if name == "RUN" and "useradd" in text)
    assert f"--uid {user}" in users
    assert f"--gid {group} millstream" in users
    (volume,) = json.loads(last("VOLUME"))
    assert variables()["MILLSTREAM_LOG_DIR"] == volume
    assert f"-o millstream -g millstream -m 0750 {volume}" in users


def test_the_broker_accepts_the_variables_of_the_image() -> None:
    settings = served_settings(
        {name: value for name, value in variables().items() if name.startswith("MILLSTREAM_")}
    )
    ports = last("EXPOSE").split()
    assert str(settings["listeners"]).rsplit(":", 1)[1] == ports[0]
    assert str(settings["http.listen"]).rsplit(":", 1)[1] == ports[1]


def test_the_start_command_is_one_of_the_command_line() -> None:
    command = [*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))]
    assert command[0] == "millstream"
    module = [sys.executable, "-m", "millstream.cli.main", *command[1:], "--help"]
    assert subprocess.run(module, capture_output=True).returncode == 0


def test_the_health_check_tells_a_running_broker_from_a_stopped_one(tmp_path: Path) -> None:
    program = json.loads(last("HEALTHCHECK").split(" CMD ", 1)[1])
    assert program[0] == "python"
    port = variables()["MILLSTREAM_HTTP_LISTEN"].rsplit(":", 1)[1]
    with BrokerProcess(tmp_path) as broker:
        here = [part.replace(f":{port}", f":{broker.http_port}") for part in program[1:]]
        assert here != program[1:]
        assert subprocess.run([sys.executable, *here]).returncode == 0
        broker.stop()
        assert subprocess.run([sys.executable, *here]).returncode == 1
