from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.process.broker_process import BrokerProcess
from millstream.cli.serve import _address_flags, _JsonFormatter

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def settings_of(run: Run, *arguments: str) -> dict[str, str]:
    outcome = run("serve", "--check", "--json", *arguments)
    assert outcome.code == 0, outcome
    return {name: row["value"] for name, row in json.loads(outcome.out).items()}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MILLSTREAM_")]:
        monkeypatch.delenv(name)


def test_defaults_that_depend_on_the_number_of_brokers(run: Run) -> None:
    outcome = run("serve", "--check", "--json", "--set", "min.insync.replicas=2")
    settings = json.loads(outcome.out)
    unknown = {"value": None, "source": "number_of_brokers"}
    assert settings["default.replication.factor"] == unknown
    assert settings["offsets.topic.replication.factor"] == unknown
    assert settings["min.insync.replicas"] == {"value": "2", "source": "static_broker"}


def test_defaults(run: Run) -> None:
    settings = settings_of(run)
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:9092"
    assert settings["http.listen"] == "127.0.0.1:9644"


def test_flags_override_variables_and_variables_override_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "millstream.toml"
    file.write_text("num.partitions = 7\nnode.id = 7\n[log]\ndir = '/from/file'\n")
    monkeypatch.setenv("MILLSTREAM_NUM_PARTITIONS", "8")
    monkeypatch.setenv("MILLSTREAM_LOG_DIR", "/from/variable")
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", "elsewhere:9092")
    monkeypatch.setenv("MILLSTREAM_PROFILE", "prod")
    settings = settings_of(run, "--config", str(file), "--data", "/from/flag")
    assert settings["num.partitions"] == "8"
    assert settings["node.id"] == "7"
    assert settings["log.dir"] == "/from/flag"
    monkeypatch.setenv("MILLSTREAM_CONFIG", str(file))
    assert settings_of(run, "--set", "num.partitions=9")["num.partitions"] == "9"
    assert settings_of(run)["node.id"] == "7"


def test_addresses(run: Run) -> None:
    settings = settings_of(run, "-l", "127.0.0.1:1234", "--http", "")
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:1234"
    assert settings["http.listen"] == ""
    several = settings_of(
        run, "-l", ":9092", "-l", "INSIDE://10.0.0.1:9093", "--advertise", "public.example:9092"
    )
    assert several["listeners"] == "PLAINTEXT://:9092,INSIDE://10.0.0.1:9093"
    assert several["advertised.listeners"] == "PLAINTEXT://public.example:9092"
    assert several["listener.security.protocol.map"] == "INSIDE:PLAINTEXT,PLAINTEXT:PLAINTEXT"


def test_a_listener_keeps_the_protocol_of_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocols = "OUTSIDE:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT"
    file = tmp_path / "broker.toml"
    file.write_text(f'listener.security.protocol.map = "{protocols}"')
    listen = ("-l", "OUTSIDE://127.0.0.1:9093", "-l", "PLAINTEXT://127.0.0.1:9092")
    found = settings_of(run, *listen, "--config", str(file))
    assert found["listener.security.protocol.map"] == protocols
    monkeypatch.setenv("MILLSTREAM_LISTENER_SECURITY_PROTOCOL_MAP", protocols)
    assert settings_of(run, *listen)["listener.security.protocol.map"] == protocols


def test_the_metadata_store(run: Run) -> None:
    assert settings_of(run)["metadata.store"] == "sqlite"
    address = "etcd://a:1,b:2/prefix"
    assert settings_of(run, "--metadata", address)["metadata.store"] == address
    outcome = run("serve", "--check", "--metadata", "a:1")
    assert outcome.code == 2
    assert "etcd://host:port" in outcome.error


def test_unnamed_addresses_are_named_by_position() -> None:
    flags = _address_flags(["a:1", "b:2"], ["c:3", "d:4"])
    assert flags["listeners"] == "PLAINTEXT://a:1,PLAINTEXT_2://b:2"
    assert flags["advertised.listeners"] == "PLAINTEXT://c:3,PLAINTEXT_2://d:4"
    assert "listener.security.protocol.map" not in _address_flags(["a:1"], [])


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set", "num.partitions"),
        ("--set", "num.partitions=none"),
        ("--set", "num.partitons=1"),
        ("--listen", "nowhere"),
        ("--http", "nowhere"),
        ("--config", "/no/such/file.toml"),
        ("--log-level", "loud"),
    ],
)
def test_wrong_settings_are_usage_errors(run: Run, arguments: tuple[str, ...]) -> None:
    outcome = run("serve", "--check", *arguments)
    assert outcome.code == 2, outcome
    assert arguments[1] in outcome.error or arguments[1].partition("=")[0] in outcome.error


def test_check_prints_a_table(run: Run) -> None:
    outcome = run("serve", "--check", "--set", "num.partitions=3")
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("num.partitions ")]
    assert line.split() == ["num.partitions", "3", "static_broker"]


def test_log_lines_as_json() -> None:
    record = logging.LogRecord("a.b", logging.INFO, "f.py", 1, "%s is %d", ("x", 1), None)
    row = json.loads(_JsonFormatter().format(record))
    assert (row["level"], row["logger"], row["message"]) == ("info", "a.b", "x is 1")


def test_an_interrupt_shuts_a_broker_down_cleanly(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        os.kill(broker.pid, signal.SIGINT)
        broker.stop()
        assert (broker.data / ".kafka_cleanshutdown").exists()
