"""A stream, a pipeline and a job run unchanged on a standalone cluster with two workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from harness.process.spark_cluster import SparkCluster
from harness.spark_reading import read_client
from millstream.client.dead_letter import DeadLetterTopic
from millstream.testing.broker import LocalBroker

COUNT = 500
LARGE_CENTS = 100_000
PROGRAM = Path(__file__).with_name("standalone_program.py")
COMMAND = Path(sys.executable).with_name("millstream")
DEADLINE_S = 400
#: Wait until both workers have registered; otherwise one would run all tasks.
BOTH = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "100s",
    "spark.cores.max": "2",
}

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def _run(command: Sequence[str | Path]) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LocalBroker]:
    """Rename the topics of a new pipeline, because other tests use their names."""
    with LocalBroker(tmp_path / "broker") as running:
        yield running


def _applications(cluster: SparkCluster) -> list[set[str]]:
    """Return the applications with an executor on each worker."""
    folders = map(cluster.worker_folder, range(cluster.workers))
    return [{path.parent.name for path in folder.glob("app-*/*")} for folder in folders]


def test_a_stream_and_a_job_on_two_workers(
    cluster: SparkCluster, own_broker: LocalBroker, tmp_path: Path
) -> None:
    for topic in ("source", "target"):
        own_broker.create_topic(topic, 2)
    servers = own_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers})
    for number in range(COUNT):
        producer.produce("source", f"value-{number}", f"key-{number % 50}", partition=number % 2)
    assert producer.flush(60) == 0
    before = _applications(cluster)
    checkpoint = str(tmp_path / "checkpoint")
    _run([sys.executable, PROGRAM, cluster.master, servers, "source", "target", checkpoint])
    added = [new - old for new, old in zip(_applications(cluster), before, strict=True)]
    assert added[0] == added[1], "each worker has an executor of the one application"
    assert len(added[0]) == 1
    where = ["--bootstrap-server", servers, "--master", cluster.master]
    said = _run([COMMAND, "job", "audit", "source", "--output", "target", "--json", *where])
    report = json.loads(said)
    assert report["ok"], report
    assert report["matched"] == COUNT


def test_a_pipeline_on_two_workers(
    cluster: SparkCluster, own_broker: LocalBroker, tmp_path: Path
) -> None:
    for topic in ("orders", "large-orders", "orders.dlq"):
        own_broker.create_topic(topic, 2)
    servers = own_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers})
    for number in range(COUNT):
        order = {"order_id": f"o{number}", "customer": "alice", "amount_cents": number * 1000}
        value = "{broken" if number % 50 == 49 else json.dumps(order)
        producer.produce("orders", value, partition=number % 2)
    assert producer.flush(60) == 0
    project = tmp_path / "shop"
    _run([COMMAND, "pipeline", "init", project, "-b", servers])
    before = _applications(cluster)
    conf = [word for name, value in BOTH.items() for word in ("--conf", f"{name}={value}")]
    where = ["--master", cluster.master, *conf]
    flows = json.loads(_run([COMMAND, "pipeline", "run", project, "--json", *where]))["flows"]
    assert {flow["name"]: flow["state"] for flow in flows} == dict.fromkeys(
        ("orders", "revenue", "to_large_orders", "to_dead_letters"), "completed"
    )
    added = [new - old for new, old in zip(_applications(cluster), before, strict=True)]
    assert added[0] == added[1]
    assert len(added[0]) == 1
    large = [f"o{n}" for n in range(COUNT) if n * 1000 >= LARGE_CENTS and n % 50 != 49]
    written = read_client(own_broker, "large-orders", 2, "read_committed")
    assert sorted(json.loads(row.value or b"")["order_id"] for row in written) == sorted(large)
    letters = list(DeadLetterTopic("orders", servers).letters())
    assert len(letters) == COUNT // 50
    assert {letter.value for letter in letters} == {b"{broken"}
