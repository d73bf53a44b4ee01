"""The shipped alert rules: well-formed, and based on metrics that a live broker has."""

from __future__ import annotations

import re
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import RawClient, values_batch
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
_METRIC = re.compile(r"\b(?:millstream|process|python)_\w+")
_SELECTOR = re.compile(r"\b(\w+)\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_DURATION = re.compile(r"(?:\d+(?:ms|[smhdwy]))+\Z")
_TEMPLATE = re.compile(r"\{\{(.*?)\}\}")
#: Labels and metrics that Prometheus itself adds.
_OWN_LABELS = {"job", "instance"}


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


each_rule = pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """Return the labels of all samples by metric, from a broker with a group that lags."""
    settings = {"metrics.lag.interval.ms": 50, "max.connections": 1000}
    with BrokerProcess(tmp_path_factory.mktemp("alerts"), settings) as broker:
        with RawClient(broker.host, broker.port) as client:
            client.create_topic("t")
            client.produce("t", values_batch(b"a", b"b"))
            client.create_topic("t.dlq")
            client.produce("t.dlq", values_batch(b"a"))
            client.call(FindCoordinatorRequest(coordinator_keys=["g"]))
            row = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=0)
            topic = OffsetCommitRequest.Topic(name="t", partitions=[row])
            client.call(OffsetCommitRequest(group_id="g", topics=[topic]), 9)
            client.produce("nowhere at all", values_batch(b"refused"))
        wait_until(lambda: broker.metric("millstream_consumer_group_lag_records_sum"), "the lag")
        wait_until(lambda: broker.metric("millstream_dead_letters"), "the dead letters")
        url = f"http://{broker.host}:{broker.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as response:
            text = response.read().decode()
    found: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        # A labelled counter has no samples before its first event.
        found[family.name + ("_total" if family.type == "counter" else "")] += []
        for sample in family.samples:
            found[sample.name].append(sample.labels)
    return dict(found)


def test_the_file_has_the_shape_of_prometheus_rules() -> None:
    document = yaml.safe_load(RULES.read_text())
    assert set(document) == {"groups"}
    names = [group["name"] for group in document["groups"]]
    assert len(names) == len(set(names))
    for group in document["groups"]:
        assert set(group) <= {"name", "interval", "limit", "rules"}
    alerts = [rule["alert"] for rule in rules()]
    assert len(alerts) == len(set(alerts))


@each_rule
def test_a_rule_has_all_required_fields(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
    assert re.fullmatch(r"Millstream\w+", rule["alert"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]
    assert _DURATION.match(rule.get("for", "0s"))
    expression = rule["expr"]
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)
    assert re.search(r"[<>]|==", expression), "the expression has no comparison"


@each_rule
def test_every_metric_and_label_exists(
    rule: dict[str, Any], samples: dict[str, list[dict[str, str]]]
) -> None:
    expression = re.sub(r'"[^"]*"', '""', rule["expr"])
    metrics = _METRIC.findall(expression)
    assert metrics or "up{" in expression
    assert set(metrics) <= set(samples)
    for name, selectors in _SELECTOR.findall(expression):
        known = _OWN_LABELS.union(*(labels for labels in samples.get(name, [])))
        assert set(_LABEL.findall(selectors)) <= known, name


@each_rule
def test_annotations_use_existing_labels(
    rule: dict[str, Any], samples: dict[str, list[dict[str, str]]]
) -> None:
    present = set(_OWN_LABELS)
    for name in _METRIC.findall(rule["expr"]):
        present.update(*samples[name])
    for text in rule["annotations"].values():
        for template in _TEMPLATE.findall(text):
            label = re.match(r"\s*\$labels\.(\w+)\s*\Z", template)
            value = re.match(r"\s*\$value(?:\s*\|\s*humanize\w*)?\s*\Z", template)
            assert label or value, template
            # These labels appear only with the first rejected connection, follower or decommission,
            # and with TLS.
            rare = {"reason", "follower", "broker", "listener"}
            assert label is None or label[1] in present | rare


def test_the_lag_of_groups_is_covered(samples: dict[str, list[dict[str, str]]]) -> None:
    used = {name for rule in rules() for name in _METRIC.findall(rule["expr"])}
    assert {
        "millstream_consumer_group_lag_seconds_max",
        "millstream_consumer_group_lag_records_sum",
        "millstream_consumer_group_headroom_seconds_min",
        "millstream_consumer_group_members",
    } <= used
    for name in used:
        if name.startswith("millstream_consumer_group_"):
            assert samples[name], name


def test_dead_letters_are_covered(samples: dict[str, list[dict[str, str]]]) -> None:
    used = {name for rule in rules() for name in _METRIC.findall(rule["expr"])}
    names = {"millstream_dead_letters", "millstream_dead_letters_oldest_age_seconds"}
    assert names <= used
    for name in names:
        assert samples[name] == [{"topic": "t.dlq"}]


def test_the_cluster_is_covered(samples: dict[str, list[dict[str, str]]]) -> None:
    used = {name for rule in rules() for name in _METRIC.findall(rule["expr"])}
    covered = {
        "offline_partitions",
        "under_min_isr_partitions",
        "under_replicated_partitions",
        "isr_shrinks_total",
        "isr_expands_total",
        "replica_lag_seconds_max",
        "leader_partitions",
        "controller_id",
        "active_controller",
        "controller_elections_total",
        "leader_election_seconds_bucket",
        "unclean_leader_elections_total",
        "reassigning_partitions",
        "decommission_replicas_left",
        "broker_fenced",
        "lease_renewed_ago_seconds",
        "transactions_open",
    }
    assert {f"millstream_{name}" for name in covered} <= used
    without_labels = covered - {"replica_lag_seconds_max", "decommission_replicas_left"}
    for name in without_labels:
        assert samples[f"millstream_{name}"], name
