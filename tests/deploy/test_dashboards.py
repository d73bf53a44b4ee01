"""The Grafana dashboards: up to date, well-formed, and every query answered by Prometheus."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy.dashboard_query import FILES, WORKERS, queries, wait_for_results
from harness.lag_scrape import Readers
from harness.process.process_cluster import ProcessCluster
from harness.process.prometheus_process import PrometheusProcess
from harness.raw.raw_transaction import GROUP
from harness.tool.deploy_tool import REPOSITORY

_METRIC = re.compile(r"\b(?:millstream|process)_\w+")

each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def test_the_files_are_up_to_date() -> None:
    script = REPOSITORY / "scripts" / "grafana_dashboards.py"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


def test_there_is_a_dashboard_for_each_subject() -> None:
    assert [file.stem for file in FILES] == ["cluster", "groups", "overview", "topics", WORKERS]
    documents = [json.loads(file.read_text()) for file in FILES]
    assert len({document["uid"] for document in documents}) == len(documents)


@each_file
def test_panels_do_not_overlap_and_have_ids_of_their_own(file: Path) -> None:
    panels = json.loads(file.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + column, place["y"] + line)
            for column in range(place["w"])
            for line in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@each_file
def test_every_variable_is_defined_and_used(file: Path) -> None:
    document = json.loads(file.read_text())
    defined = {variable["name"] for variable in document["templating"]["list"]}
    texts = " ".join(
        target["expr"] for panel in document["panels"] for target in panel.get("targets", [])
    )
    used = set(re.findall(r"\$(\w+)", texts)) - {"__rate_interval"}
    assert used | {"datasource"} == defined


class Scraped(NamedTuple):
    """A Prometheus that scrapes three brokers, and the names of their metrics."""

    prometheus: PrometheusProcess
    metrics: set[str]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Return three brokers with traffic, dead letters and a group that is behind."""
    folder = tmp_path_factory.mktemp("dashboards")
    settings = {"metrics.lag.interval.ms": 50, "offsets.topic.num.partitions": 3}
    rules = REPOSITORY / "deploy" / "prometheus" / "alerts.yml"
    with ProcessCluster(folder, 3, settings) as cluster:
        for topic in ("orders", "orders.dlq"):
            cluster.create_topic(topic, 1)
        readers = Readers(cluster.bootstrap)
        cluster.coordinator("g", GROUP)
        targets = {
            f"b{number}": f"{each.host}:{each.http_port}" for number, each in enumerate(cluster)
        }
        with PrometheusProcess(folder, targets, rules) as prometheus:
            for topic in ("orders", "orders.dlq"):
                readers.produce(topic, 0, 3, 1)
            readers.commit("g", {("orders", 0): 1})
            yield Scraped(prometheus, {name for each in cluster for name in each.metric_names()})


def test_every_query_has_a_result(scraped: Scraped) -> None:
    """Queries on events that a healthy cluster does not have may return no series."""
    asked = [query for query in queries() if query.dashboard != WORKERS]
    assert len(asked) > 80
    wait_for_results(scraped.prometheus, asked)
    unknown = {
        name
        for query in asked
        for name in _METRIC.findall(re.sub(r'"[^"]*"', "", query.text))
        if name.removesuffix("_bucket") not in scraped.metrics
    }
    assert unknown == set()
