"""`millstream pipeline` from init to topics and dead letters, on a real broker and a real Spark."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.broker_process import wait_until
from millstream import Admin, Producer
from millstream.client.dead_letter import Shelf
from millstream.testing.broker import LocalBroker

#: Each starts a JVM, and two of them are enough at a time.
pytestmark = [pytest.mark.xdist_group("spark-pipeline"), pytest.mark.timeout(900)]

SECONDS_MAX = 500
#: For a JVM that ends before its optimizing compiler pays.
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
ON_SPARK = (
    *("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=1"),
    # On a busy machine Spark's Python workers may not come up in the ten seconds that they have.
    *("--conf", "spark.sql.pipelines.execution.maxConcurrentFlows=1"),
    *("--conf", "spark.sql.pipelines.maxFlowRetryAttempts=20"),
)


def command(*arguments: str) -> list[str]:
    # Where tests run in the background of a shell, their children would ignore SIGINT.
    script = [sys.executable, "-m", "millstream.cli.main", *arguments]
    return ["env", "--default-signal=INT", f"JAVA_TOOL_OPTIONS={SHORT_LIVED}", *script]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def order(name: str, cents: int) -> str:
    return json.dumps({"order_id": name, "customer": "alice", "amount_cents": cents})


def send(servers: str, *values: str) -> None:
    with Producer(servers) as producer:
        for value in values:
            producer.send("orders", "alice", value)


def large_orders(servers: str) -> list[str]:
    arguments = ["consume", "large-orders", "--from-beginning", "--no-follow", "-b", servers]
    done = call(*arguments)
    assert done.returncode == 0, done.stderr
    return sorted(json.loads(line)["order_id"] for line in done.stdout.splitlines())


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[str]:
    with LocalBroker(tmp_path / "broker") as broker:
        with Admin(broker.bootstrap_servers) as admin:
            for topic in ("orders", "large-orders", "orders.dlq"):
                admin.create_topic(topic, partitions=2)
        yield broker.bootstrap_servers


@pytest.fixture
def project(servers: str, tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    made = call("pipeline", "init", str(folder), "-b", servers)
    assert made.returncode == 0, made.stderr
    return folder


def flows_of(result: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(result)["flows"]}


def test_from_init_to_topics_and_dead_letters(servers: str, project: Path) -> None:
    send(servers, order("o1", 500), order("o2", 250_000), "{broken", order("o3", 700))
    done = call("pipeline", "run", str(project), "--json", *ON_SPARK)
    assert done.returncode == 0, done.stderr
    flows = flows_of(done.stdout)
    assert (flows["orders"]["rows"], flows["orders"]["lag"]) == (4, 0)
    assert {each["state"] for each in flows.values()} == {"completed"}
    assert "rows/s" in done.stderr
    assert large_orders(servers) == ["o2"]
    (letter,) = Shelf({"bootstrap.servers": servers}, "orders").letters()
    assert letter.value == b"{broken"
    assert (letter.origin.topic, letter.origin.group) == ("orders", "orders-pipeline")


@pytest.mark.soak
def test_it_goes_on_until_it_is_interrupted(servers: str, project: Path, tmp_path: Path) -> None:
    send(servers, order("o1", 200_000))
    said, result = tmp_path / "said", tmp_path / "result"
    arguments = ("pipeline", "run", str(project), "--continuous", "--json", *ON_SPARK)
    with said.open("w") as error, result.open("w") as out:
        process = subprocess.Popen(command(*arguments), stdout=out, stderr=error)
        try:
            wait_until(
                lambda: "up to date" in said.read_text() or process.poll() is not None,
                "the first update",
                SECONDS_MAX,
            )
            send(servers, order("o2", 300_000))
            wait_until(
                lambda: process.poll() is not None or large_orders(servers) == ["o1", "o2"],
                "the second update",
                SECONDS_MAX,
            )
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS_MAX) == 0, said.read_text()
        finally:
            process.kill()
            process.wait()
    assert large_orders(servers) == ["o1", "o2"]
    assert flows_of(result.read_text())["orders"]["rows"] == 2
    assert "Traceback" not in said.read_text()


@pytest.mark.soak
def test_the_next_run_goes_on_where_the_last_one_ended(servers: str, project: Path) -> None:
    for name in ("o1", "o2"):
        send(servers, order(name, 200_000))
        done = call("pipeline", "run", str(project), "--json", *ON_SPARK)
        assert done.returncode == 0, done.stderr
        assert flows_of(done.stdout)["to_large_orders"]["rows"] == 1
    assert large_orders(servers) == ["o1", "o2"]


@pytest.mark.soak
def test_what_is_wrong_with_a_project_is_told_before_anything_runs(project: Path) -> None:
    good = call("pipeline", "validate", str(project), *ON_SPARK)
    assert (good.returncode, good.stdout) == (0, "shop: valid\n"), good.stderr
    view = project / "transformations" / "revenue.sql"
    view.write_text(view.read_text().replace("sum(amount_cents)", "sum(amount_dollars)"))
    bad = call("pipeline", "validate", str(project), *ON_SPARK)
    assert bad.returncode == 1
    assert "amount_dollars" in bad.stderr
    broken = project / "transformations" / "orders.py"
    broken.write_text(broken.read_text() + "\nraise KeyError('nonsense')\n")
    worse = call("pipeline", "validate", str(project), *ON_SPARK)
    assert worse.returncode == 1
    assert "transformations/orders.py, line " in worse.stderr
    assert "KeyError: 'nonsense'" in worse.stderr


@pytest.mark.soak
def test_a_broker_that_is_gone_is_named(project: Path) -> None:
    arguments = ("-b", "127.0.0.1:1", "--conf", "spark.sql.pipelines.maxFlowRetryAttempts=0")
    failed = call("pipeline", "run", str(project), "--master", "local[2]", *arguments)
    assert failed.returncode == 1
    assert "127.0.0.1:1" in failed.stderr
    assert "Traceback" not in failed.stderr
