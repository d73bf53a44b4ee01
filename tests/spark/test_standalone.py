"""A real standalone cluster, a master and two workers: a stream and a job run there unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from harness.spark_cluster import SparkCluster
from millstream.testing.broker import LocalBroker

COUNT = 500
PROGRAM = Path(__file__).with_name("standalone_program.py")
COMMAND = Path(sys.executable).with_name("millstream")
DEADLINE_S = 240


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


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_stream_and_a_job_on_two_workers(
    broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    source, target = f"{topic_name}-in", f"{topic_name}-out"
    for topic in (source, target):
        broker.create_topic(topic, 2)
    servers = broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers})
    for number in range(COUNT):
        producer.produce(source, f"value-{number}", f"key-{number % 50}", partition=number % 2)
    assert producer.flush(60) == 0
    with SparkCluster(tmp_path) as cluster:
        checkpoint = str(tmp_path / "checkpoint")
        _run([sys.executable, PROGRAM, cluster.master, servers, source, target, checkpoint])
        for number in range(cluster.workers):
            executors = list(cluster.worker_folder(number).glob("app-*/*"))
            assert len(executors) == 1, f"worker {number} had {executors}"
        where = ["--bootstrap-server", servers, "--master", cluster.master]
        said = _run([COMMAND, "job", "audit", source, "--output", target, "--json", *where])
    report = json.loads(said)
    assert report["ok"], report
    assert report["matched"] == COUNT
