from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from harness.process.broker_process import free_port

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def found_by(run: Run, *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    outcome = run("doctor", *arguments, "--json")
    assert outcome.code == code, outcome
    value = json.loads(outcome.out)
    assert value["healthy"] == (code == 0)
    return {row["check"]: row for row in value["checks"]}


def test_a_healthy_cluster(ask: Run, topic: str) -> None:
    found = found_by(ask, "--only", "cluster")
    assert {row["scope"] for row in found.values()} == {"cluster"}
    assert found["brokers"]["found"] == "1 alive"
    for check in ("reachable", "brokers", "partitions", "in-sync replicas", "transactions"):
        assert found[check]["state"] == "healthy", found[check]
        assert found[check]["advice"] is None
    text = ask("doctor", "--only", "cluster")
    assert text.out.splitlines()[-1].startswith("healthy")


def test_a_lagging_group(ask: Run, topic: str) -> None:
    group = f"{topic}-slow"
    assert ask("produce", topic, "a", "-p", "0").code == 0
    assert ask("consume", topic, "--group", group, "-B", "-n", "1").code == 0
    for value in "bcd":
        assert ask("produce", topic, value, "-p", "0").code == 0
    row = found_by(ask, "--only", "cluster", "--max-lag", "2")["groups"]
    assert row["state"] == "warning"
    assert f"{group} (3 records)" in row["found"]
    assert "group describe" in row["advice"]
    assert found_by(ask, "--only", "cluster")["groups"]["state"] == "healthy"


def test_a_group_that_lost_records(ask: Run, broker: str, topic: str) -> None:
    group = f"{topic}-lost"
    assert ask("produce", topic, "a", "-p", "0").code == 0
    assert ask("consume", topic, "--group", group, "-B", "-n", "1").code == 0
    for value in "bc":
        assert ask("produce", topic, value, "-p", "0").code == 0
    admin = AdminClient({"bootstrap.servers": broker})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 2)]).values()
    deleted.result(60)
    row = found_by(ask, "--only", "cluster", code=1)["groups"]
    assert (row["state"], group in row["found"]) == ("unhealthy", True)
    # The other tests of this module need a healthy cluster.
    assert ask("group", "delete", group, "--yes").code == 0


def test_a_cluster_that_does_not_respond(run: Run) -> None:
    servers = f"127.0.0.1:{free_port()}"
    found = found_by(run, "--only", "cluster", "-b", servers, "--timeout", "5", code=1)
    assert list(found) == ["reachable"]
    assert servers in found["reachable"]["found"]
    assert "millstream serve" in found["reachable"]["advice"]


def test_a_host(ask: Run, broker: str, tmp_path: Path) -> None:
    port = broker.rpartition(":")[2]
    options = ("--only", "host", "--data", str(tmp_path), "--port", port)
    outcome = ask("doctor", *options, "--http-port", str(free_port()), "--json")
    found = {row["check"]: row for row in json.loads(outcome.out)["checks"]}
    assert set(found) >= {"file limit", "disk space", "file system", "clock", "memory", "etcd"}
    assert found[f"port {port}"]["found"] == "a broker listens for clients"
    for row in found.values():
        assert (row["advice"] is None) == (row["state"] in ("healthy", "skipped")), row
