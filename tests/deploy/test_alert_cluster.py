"""The alerts on lag, evaluated by Prometheus: for a group whose coordinator moves, and for each
partition of a live cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.lag_scrape import HOUR_S, Readers
from harness.process.broker_process import wait_until
from harness.process.process_cluster import ProcessCluster
from harness.process.prometheus_process import PrometheusProcess, require_prometheus
from harness.raw.raw_transaction import GROUP
from millstream.wire.messages.metadata import MetadataRequest

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
PREFIX = "millstream_consumer_group_"
#: Samples of the synthetic series, four per minute.
STAY, GAP = 16, 3


def promtool(*arguments: str) -> None:
    require_prometheus()
    result = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_prometheus_accepts_the_rules() -> None:
    promtool("check", "rules", str(RULES))


# A coordinator that moves every four minutes, and needs most of a minute to load


def moving(name: str, value: float, **labels: str) -> list[dict[str, str]]:
    """Return the series of a gauge of the group `g` that three brokers export in turn."""
    series = []
    for turn in range(3):
        names = {"group": "g", "instance": f"b{turn}", "job": "millstream", **labels}
        shown = ",".join(f'{key}="{text}"' for key, text in names.items())
        before = f"_x{turn * (STAY + GAP) - 1} " if turn else ""
        values = f"{before}{value:g}x{STAY - 1} stale"
        series.append({"series": f"{PREFIX}{name}{{{shown}}}", "values": values})
    return series


def texts_of(rule: dict[str, Any], value: str) -> dict[str, str]:
    return {
        key: text.replace("{{ $labels.group }}", "g")
        .replace("{{ $value | humanizeDuration }}", value)
        .replace("{{ $value }}", value)
        for key, text in rule["annotations"].items()
    }


@pytest.mark.parametrize(
    ("alert", "gauges", "value"),
    [
        ("MillstreamGroupFarBehind", {"lag_seconds_max": 600}, "10m 0s"),
        (
            "MillstreamDataLossAhead",
            {"lag_seconds_max": 7200, "headroom_seconds_min": 3600},
            "1h 0m 0s",
        ),
        ("MillstreamGroupLagUnknown", {"lag_unknown_partitions": 2}, "2"),
    ],
)
def test_an_alert_keeps_firing_while_the_coordinator_moves(
    tmp_path: Path, alert: str, gauges: dict[str, float], value: str
) -> None:
    (rule,) = [
        rule
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
        if rule["alert"] == alert
    ]
    firing = {
        "exp_labels": {"group": "g", "job": "millstream", **rule["labels"]},
        "exp_annotations": texts_of(rule, value),
    }
    test = {
        "interval": "15s",
        "input_series": [each for name, x in gauges.items() for each in moving(name, x)],
        "alert_rule_test": [
            {"eval_time": "3m", "alertname": alert, "exp_alerts": []},
            {"eval_time": "10m30s", "alertname": alert, "exp_alerts": [firing]},
            {"eval_time": "13m", "alertname": alert, "exp_alerts": [firing]},
            {"eval_time": "25m", "alertname": alert, "exp_alerts": []},
        ],
    }
    document = {"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [test]}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(document))
    promtool("test", "rules", str(file))


# Live brokers

PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    settings = {
        "metrics.lag.interval.ms": 50,
        "offsets.topic.num.partitions": 6,
        "auto.leader.rebalance.enable": False,
    }
    with ProcessCluster(tmp_path_factory.mktemp("alerts"), 3, settings) as brokers:
        yield brokers


def impatient_rules(folder: Path) -> Path:
    """Write the shipped rules without their `for` durations; return the file."""
    document = yaml.safe_load(RULES.read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    file = folder / "alerts.yml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_alerts_fire_for_each_partition(cluster: ProcessCluster, tmp_path: Path) -> None:
    """Each group lags in a different partition."""
    cluster.create_topic("first", 1)
    readers = Readers(cluster.bootstrap)
    behind: dict[str, tuple[str, int]] = {}
    retention = {"retention.ms": str(int(1.5 * HOUR_S * 1000))}
    for topic, replicas in {"spread": 3, "single": 1}.items():
        readers.create_topic(topic, PARTITIONS, replicas, retention)
        for number in range(PARTITIONS):
            readers.produce(topic, number, 2, HOUR_S)
            behind[f"{topic}-{number}"] = (topic, number)
    for group, late in behind.items():
        cluster.coordinator(group, GROUP)
        readers.commit(group, {place: 1 if place == late else 2 for place in behind.values()})
    with cluster.client() as client:
        request = MetadataRequest(topics=[MetadataRequest.Topic(name="single")])
        (row,) = client.call(request).topics
    led_by_3 = {each.partition_index for each in row.partitions if each.leader_id == 3}
    assert led_by_3
    targets = {
        f"b{number}": f"{broker.host}:{broker.http_port}" for number, broker in enumerate(cluster)
    }
    with PrometheusProcess(tmp_path, targets, impatient_rules(tmp_path)) as prometheus:

        def groups(alert: str) -> list[str]:
            return sorted(labels["group"] for labels in prometheus.firing(alert))

        def are_firing(*alerts: str) -> bool:
            return all(groups(alert) == sorted(behind) for alert in alerts)

        of_all = (
            "MillstreamGroupFarBehind",
            "MillstreamDataLossAhead",
            "MillstreamGroupDeserted",
        )
        wait_until(lambda: are_firing(*of_all), "an alert to fire for each group")
        assert groups("MillstreamGroupLagUnknown") == []
        cluster[3].kill()
        wait_until(
            lambda: are_firing("MillstreamGroupLagUnknown"),
            "the alert on partitions without a leader",
        )
        assert are_firing(*of_all)
