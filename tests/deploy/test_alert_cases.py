"""Every alert, evaluated by Prometheus on the metrics of live brokers."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.alert_case import CASES, HEALTHY, MINUTES, Change, series
from harness.lag_scrape import Readers
from harness.process.broker_process import wait_until
from harness.process.process_cluster import ProcessCluster
from harness.process.prometheus_process import require_prometheus
from harness.raw.raw_transaction import GROUP

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
LETTERS = "t.dlq"
LARGE = 1e15
_METRIC = re.compile(r"\b(?:(?:millstream|process)_\w+|up\b)")


def rules() -> dict[str, dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text())
    return {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}


class Row(NamedTuple):
    """One sample of one broker, with the labels that Prometheus adds."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    value: float

    @classmethod
    def of(cls, metric: str, labels: Mapping[str, str], value: float) -> Row:
        return cls(metric, tuple(sorted(labels.items())), value)

    @property
    def name(self) -> str:
        shown = ",".join(f'{key}="{text}"' for key, text in self.labels)
        return f"{self.metric}{{{shown}}}"


class Metrics(NamedTuple):
    """The metrics of all brokers."""

    rows: list[Row]
    #: Includes metrics without rows.
    names: set[str]


def scrape(cluster: ProcessCluster) -> Metrics:
    rows: list[Row] = []
    names: set[str] = set()
    for number, broker in enumerate(cluster):
        own = {"instance": f"b{number}", "job": "millstream"}
        url = f"http://{broker.host}:{broker.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as response:
            text = response.read().decode()
        rows.append(Row.of("up", own, 1))
        for family in text_string_to_metric_families(text):
            names.add(family.name + ("_total" if family.type == "counter" else ""))
            rows += [
                Row.of(each.name, {**each.labels, **own}, each.value) for each in family.samples
            ]
    return Metrics(rows, names | {row.metric for row in rows})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    settings = {"metrics.lag.interval.ms": 50, "offsets.topic.num.partitions": 3}
    with ProcessCluster(tmp_path_factory.mktemp("alerts"), 3, settings) as brokers:
        brokers.create_topic("t", 3)
        brokers.create_topic(LETTERS, 1)
        yield brokers


@pytest.fixture(scope="module")
def metrics(cluster: ProcessCluster) -> Metrics:
    """Return the metrics of healthy brokers, with dead letters and a group without lag."""
    readers = Readers(cluster.bootstrap)
    for topic, count in {"t": 3, LETTERS: 1}.items():
        for number in range(count):
            readers.produce(topic, number, 2, 1)
    cluster.coordinator("g", GROUP)
    readers.commit("g", {("t", number): 2 for number in range(3)})

    def is_shown() -> bool:
        found = scrape(cluster)
        metrics = {row.metric for row in found.rows}
        ends = [row.value for row in found.rows if row.metric == "millstream_log_end_offset"]
        behind = [
            row.value for row in found.rows if row.metric == "millstream_replica_lag_records_max"
        ]
        return (
            {"millstream_consumer_group_lag_records_sum", "millstream_dead_letters"} <= metrics
            and ends.count(2) == 12
            and not any(behind)
        )

    wait_until(is_shown, "the metrics of the group, the dead letters and the replicas")
    return scrape(cluster)


def metrics_of(rule: dict[str, Any]) -> set[str]:
    return set(_METRIC.findall(re.sub(r'"[^"]*"', '""', rule["expr"])))


def changed(rows: Sequence[Row], changes: Sequence[Change]) -> dict[str, str]:
    """Return the series of these rows with the changes applied."""
    # promtool cannot read an infinite number.
    found = {row.name: series(f"{min(row.value, LARGE):g}") for row in rows}
    for change in changes:
        matching = [
            row
            for row in rows
            if row.metric == change.metric and change.labels.items() <= dict(row.labels).items()
        ]
        if change.is_new:
            assert not matching, f"{change} exists already"
            matching = [
                Row.of(change.metric, {**change.labels, "instance": "b1", "job": "millstream"}, 0)
            ]
        assert matching, f"no broker has {change}"
        for row in matching if change.is_for_all else matching[:1]:
            found[row.name] = series(change.values)
    return found


def promtool_test(folder: Path, rule: dict[str, Any], tests: list[dict[str, Any]]) -> None:
    require_prometheus()
    (folder / "rule.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    document = {"rule_files": ["rule.yml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "test.yml").write_text(yaml.safe_dump(document))
    result = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def evaluated(
    values: Mapping[str, str], expression: str, samples: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a promtool test of the value of an expression at the end."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": text} for name, text in values.items()],
        "promql_expr_test": [
            {"expr": expression, "eval_time": f"{MINUTES - 1}m", "exp_samples": samples}
        ],
    }


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == set(rules())


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_in_its_cases_and_not_for_healthy_brokers(
    alert: str, metrics: Metrics, tmp_path: Path
) -> None:
    rule = rules()[alert]
    wanted = metrics_of(rule)
    assert wanted - {"up"} <= metrics.names
    rows = [row for row in metrics.rows if row.metric in wanted]
    healthy = [change for change in HEALTHY if change.metric in wanted]
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    tests = [evaluated(changed(rows, healthy), firing, [])]
    for case in CASES[alert]:
        assert {change.metric for change in case} <= wanted
        values = changed(rows, [*healthy, *case])
        tests.append(evaluated(values, f"{firing} > bool 0", [{"labels": "{}", "value": 1}]))
    promtool_test(tmp_path, rule, tests)


def test_dead_letters_are_counted_once_with_several_replicas(
    cluster: ProcessCluster, metrics: Metrics, tmp_path: Path
) -> None:
    def ends() -> dict[str, float]:
        return {
            row.name: row.value
            for row in scrape(cluster).rows
            if row.metric == "millstream_log_end_offset" and ("topic", LETTERS) in row.labels
        }

    before = ends()
    assert len(before) == 3
    Readers(cluster.bootstrap).produce(LETTERS, 0, 4, 1)
    wait_until(
        lambda: ends() == {name: value + 4 for name, value in before.items()},
        "the replicas to have the dead letters",
    )
    values = {name: series(f"{value:g}|{ends()[name]:g}") for name, value in before.items()}
    rule = rules()["MillstreamDeadLetters"]
    sample = {"labels": f'{{topic="{LETTERS}"}}', "value": 4}
    promtool_test(tmp_path, rule, [evaluated(values, rule["expr"], [sample])])
