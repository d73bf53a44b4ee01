"""The dashboard of workers: every query, answered by a Prometheus that scrapes workers."""

from __future__ import annotations

import os
import re
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from deploy.dashboard_query import WORKERS, queries, wait_for_results
from harness.process.broker_process import HOST, BrokerProcess, free_port
from harness.process.prometheus_process import PrometheusProcess
from harness.raw.raw_client import RawClient, values_batch
from harness.tool.deploy_tool import REPOSITORY
from millstream.process.readiness import responds
from millstream.process.server_process import ServerProcess

pytest.importorskip("millstream.cli.worker")

_METRIC = re.compile(r"\bmillstream_\w+")
_APPLICATION = """
from millstream import Worker

worker = Worker("{bootstrap}", topics=["jobs"], group_id="g")


@worker.handler
def handle(job):
    pass
"""


class WorkerProcesses(ServerProcess):
    """`millstream worker run` over an application in `folder`."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        super().__init__("workers", folder / "workers.log")
        (folder / "jobs.py").write_text(_APPLICATION.format(bootstrap=bootstrap))
        self._folder = folder
        self.address = f"{HOST}:{free_port()}"

    def command(self) -> Sequence[str]:
        command = [sys.executable, "-m", "millstream.cli.main", "worker", "run", "jobs:worker"]
        return [*command, "--metrics", self.address]

    def environment(self) -> Mapping[str, str]:
        path = os.environ.get("PYTHONPATH", "")
        return {**os.environ, "PYTHONPATH": f"{self._folder}{os.pathsep}{path}"}

    def working_folder(self) -> Path:
        return self._folder

    def is_ready(self) -> bool:
        return responds(f"http://{self.address}/readyz")

    def metric_names(self) -> set[str]:
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=60) as response:
            lines = response.read().decode().splitlines()
        return {line.split()[2] for line in lines if line.startswith("# TYPE ")}


def test_every_query_has_a_result(tmp_path: Path) -> None:
    asked = [query for query in queries() if query.dashboard == WORKERS]
    assert len(asked) > 10
    rules = REPOSITORY / "deploy" / "prometheus" / "alerts.yml"
    with BrokerProcess(tmp_path) as broker, RawClient(broker.host, broker.port) as client:
        client.create_topic("jobs")
        with (
            WorkerProcesses(tmp_path, broker.bootstrap) as workers,
            PrometheusProcess(tmp_path, {"w1": workers.address}, rules) as prometheus,
        ):
            client.produce("jobs", values_batch(b"1", b"2"))
            # The metrics of events come with the first one, those of the lag a little later.
            everything = [query._replace(is_after_event=False) for query in asked]
            wait_for_results(prometheus, everything)
            names = workers.metric_names()
            # A kill would leave the processes behind that the command started.
            assert workers.stop() == 0
    unknown = {
        name
        for query in asked
        for name in _METRIC.findall(re.sub(r'"[^"]*"', "", query.text))
        if re.sub(r"_(bucket|sum)\Z", "", name) not in names
    }
    assert unknown == set()
