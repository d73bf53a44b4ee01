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

from harness.process.broker_process import wait_until
from harness.process.spark_connect import spark_connect_server
from millstream import Admin, Producer
from millstream.client.dead_letter import DeadLetterTopic
from millstream.testing.broker import LocalBroker

#: Each test starts a JVM, so at most two run at a time.
pytestmark = [pytest.mark.xdist_group("spark-pipeline"), pytest.mark.timeout(900)]

SECONDS_MAX = 500
#: Options for a JVM that is too short-lived for its optimizing compiler.
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
ON_SPARK = (
    *("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=1"),
    # On a busy machine Spark's Python workers may need more than the default ten seconds to start.
    *("--conf", "spark.sql.pipelines.execution.maxConcurrentFlows=1"),
    *("--conf", "spark.sql.pipelines.maxFlowRetryAttempts=20"),
)


def command(*arguments: str) -> list[str]:
    # Background jobs of a shell ignore SIGINT, and so would the children of the tests.
    script = [sys.executable, "-m", "millstream.cli.main", *arguments]
    ours = ["--unset=MILLSTREAM_BOOTSTRAP_SERVERS", "--default-signal=INT"]
    return ["env", *ours, f"JAVA_TOOL_OPTIONS={SHORT_LIVED}", *script]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def order(name: str, cents: int) -> str:
    return json.dumps({"order_id": name, "customer": "alice", "amount_cents": cents})


def send(servers: str, *values: str) -> None:
    with Producer(servers) as producer:
        for value in values:
            producer.send("orders", value, key="alice")


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
    (letter,) = DeadLetterTopic("orders", servers).letters()
    assert letter.value == b"{broken"
    assert (letter.origin.topic, letter.origin.group) == ("orders", "orders-pipeline")


@pytest.mark.soak
def test_it_runs_until_it_is_interrupted(servers: str, project: Path, tmp_path: Path) -> None:
    send(servers, order("o1", 200_000))
    said, result = tmp_path / "said", tmp_path / "result"
    arguments = ("pipeline", "run", str(project), "--follow", "--json", *ON_SPARK)
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
def test_the_next_run_continues_where_the_last_one_ended(servers: str, project: Path) -> None:
    for name in ("o1", "o2"):
        send(servers, order(name, 200_000))
        done = call("pipeline", "run", str(project), "--json", *ON_SPARK)
        assert done.returncode == 0, done.stderr
        assert flows_of(done.stdout)["to_large_orders"]["rows"] == 1
    assert large_orders(servers) == ["o1", "o2"]
    nothing = call("pipeline", "run", str(project), "--refresh", "ordres", *ON_SPARK)
    assert nothing.returncode == 1
    assert "no flow of the project writes to ordres" in nothing.stderr


@pytest.mark.soak
def test_errors_in_a_project_are_reported_before_anything_runs(project: Path) -> None:
    good = call("pipeline", "validate", str(project), *ON_SPARK)
    assert (good.returncode, good.stdout) == (0, "shop: valid\n"), good.stderr
    view = project / "transformations" / "revenue.sql"
    view.write_text(view.read_text().replace("sum(amount_cents)", "sum(amount_dollars)"))
    bad = call("pipeline", "validate", str(project), *ON_SPARK)
    assert bad.returncode == 1
    assert "amount_dollars" in bad.stderr
    view.write_text("SELEKT 1")
    unreadable = call("pipeline", "validate", str(project), *ON_SPARK)
    assert unreadable.returncode == 1
    assert "transformations/revenue.sql: [PARSE_SYNTAX_ERROR]" in unreadable.stderr
    view.unlink()
    broken = project / "transformations" / "orders.py"
    broken.write_text(broken.read_text() + "\nraise KeyError('nonsense')\n")
    worse = call("pipeline", "validate", str(project), *ON_SPARK)
    assert worse.returncode == 1
    assert "transformations/orders.py, line " in worse.stderr
    assert "KeyError: 'nonsense'" in worse.stderr


@pytest.mark.soak
def test_an_unknown_topic_is_named(servers: str, project: Path) -> None:
    once = (*ON_SPARK, "--conf", "spark.sql.pipelines.maxFlowRetryAttempts=0")
    with Admin(servers) as admin:
        admin.delete_topic("orders")
    missing = call("pipeline", "run", str(project), "--json", *once)
    assert missing.returncode == 3
    assert "topic orders, which does not exist" in missing.stderr
    assert flows_of(missing.stdout)["orders"]["error"] == "UnknownTopic"
    assert "Traceback" not in missing.stderr


@pytest.mark.soak
@pytest.mark.parametrize("mark", ["starting Spark", "to_large_orders: running"])
def test_the_next_update_completes_a_terminated_one(
    servers: str, project: Path, tmp_path: Path, mark: str
) -> None:
    send(servers, *(order(f"o{number}", 200_000) for number in range(9)))
    said = tmp_path / "said"
    with said.open("w") as error:
        process = subprocess.Popen(
            command("pipeline", "run", str(project), *ON_SPARK), stdout=error, stderr=error
        )
        try:
            wait_until(lambda: mark in said.read_text(), mark, SECONDS_MAX)
            process.terminate()
            # Before Spark has started, the signal ends the process.
            assert process.wait(SECONDS_MAX) in (130, -signal.SIGTERM), said.read_text()
        finally:
            process.kill()
            process.wait()
    assert "Traceback" not in said.read_text()
    done = call("pipeline", "run", str(project), *ON_SPARK)
    assert done.returncode == 0, done.stderr
    assert large_orders(servers) == [f"o{number}" for number in range(9)]


@pytest.mark.soak
def test_on_a_spark_connect_server(servers: str, project: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "connect").mkdir()
    with spark_connect_server(folder) as remote:
        for name in ("o1", "o2"):
            send(servers, order(name, 200_000))
            done = call("pipeline", "run", str(project), "--json", "--remote", remote)
            assert done.returncode == 0, done.stderr
            assert flows_of(done.stdout)["orders"]["rows"] == 1
        assert large_orders(servers) == ["o1", "o2"]
        anew = call("pipeline", "run", str(project), "--full-refresh", "orders", "--remote", remote)
        assert anew.returncode == 0, anew.stderr
        assert (folder / "spark-warehouse" / "orders").is_dir()
