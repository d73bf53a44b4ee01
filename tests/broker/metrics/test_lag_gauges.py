"""The lag of groups in scrapes of a live broker."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import RawClient, values_batch
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest

PREFIX = "millstream_consumer_group_"
Labels = dict[str, str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "metrics.lag.interval.ms": 20,
        "metrics.group.labels.max": 2,
        "metrics.group.partition.labels.max": 3,
    }
    with BrokerProcess(tmp_path_factory.mktemp("lag"), settings) as process:
        with RawClient(process.host, process.port) as client:
            client.create_topic("t", 2, {"retention.ms": 3_600_000})
            client.call(FindCoordinatorRequest(coordinator_keys=["g"]))
            for _ in range(10):
                assert client.produce("t", values_batch(b"x")).error_code == 0
        yield process


def commit(broker: BrokerProcess, group_id: str, *offsets: int) -> None:
    """Commit offsets for the partitions 0, 1, ..."""
    kind = OffsetCommitRequest.Topic
    rows = [
        kind.Partition(partition_index=number, committed_offset=offset)
        for number, offset in enumerate(offsets)
    ]
    request = OffsetCommitRequest(group_id=group_id, topics=[kind(name="t", partitions=rows)])
    with RawClient(broker.host, broker.port) as client:
        response = client.call(request, 9)
        assert not any(row.error_code for row in response.topics[0].partitions)


def scrape(broker: BrokerProcess) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    url = f"http://{broker.host}:{broker.http_port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as response:
        text = response.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(broker: BrokerProcess, name: str, **labels: str) -> float | None:
    return scrape(broker).get((name, frozenset(labels.items())))


def test_a_group_falls_behind_and_catches_up(broker: BrokerProcess) -> None:
    commit(broker, "g", 4, 0)
    here = {"group": "g", "topic": "t", "partition": "0"}
    wait_until(lambda: value(broker, f"{PREFIX}lag_records", **here) == 6, "the lag")
    found = scrape(broker)

    def shown(name: str, **labels: str) -> float:
        return found[f"{PREFIX}{name}", frozenset(labels.items())]

    assert 0 <= shown("lag_seconds", **here) < 120
    assert 3400 < shown("headroom_seconds", **here) <= 3600
    assert shown("headroom_seconds", **{**here, "partition": "1"}) == float("inf")
    assert shown("lag_records_sum", group="g") == shown("lag_records_max", group="g") == 6
    assert shown("lag_seconds_max", group="g") == shown("lag_seconds", **here)
    assert shown("headroom_seconds_min", group="g") == shown("headroom_seconds", **here)
    assert shown("members", group="g") == 0
    assert shown("state", group="g", state="Empty") == 1
    assert found["millstream_consumer_groups", frozenset({("state", "Empty")})] >= 1
    commit(broker, "g", 10, 0)
    wait_until(lambda: value(broker, f"{PREFIX}lag_records", **here) == 0, "the lag to be gone")
    assert value(broker, f"{PREFIX}lag_seconds", **here) == 0
    assert value(broker, f"{PREFIX}headroom_seconds", **here) == float("inf")


def test_the_label_budget_holds_and_is_reported(broker: BrokerProcess) -> None:
    commit(broker, "g", 10, 0)
    wait_until(lambda: value(broker, f"{PREFIX}members", group="g") == 0, "the first group")
    commit(broker, "second", 9, 0)
    wait_until(lambda: value(broker, f"{PREFIX}members", group="second") == 0, "the second group")
    for number in range(5):
        commit(broker, f"more-{number}", number)
    commit(broker, "nul\0 and line\nend", 5)
    folded = "millstream_metrics_groups_folded"
    wait_until(lambda: value(broker, folded) == 6, "the others")
    found = scrape(broker)
    groups = {dict(labels)["group"] for name, labels in found if name.startswith(PREFIX)}
    assert groups == {"g", "second", "_other"}
    other = frozenset({("group", "_other")})
    assert found[f"{PREFIX}lag_records_sum", other] == 10 + 9 + 8 + 7 + 6 + 5
    assert found[f"{PREFIX}lag_records_max", other] == 10
    assert found[f"{PREFIX}headroom_seconds_min", other] <= 3600
    rows = [labels for name, labels in found if name == f"{PREFIX}lag_records"]
    assert {dict(labels)["group"] for labels in rows} == {"g"}, "all partitions of a group or none"
    assert found["millstream_metrics_group_partitions_folded", frozenset()] == 2 + 6


def test_hot_partitions_are_shown(broker: BrokerProcess) -> None:
    hot = {"topic": "t", "partition": "1"}

    def is_hot() -> bool:
        with RawClient(broker.host, broker.port) as client:
            client.produce("t", values_batch(b"x" * 100_000), 1)
        return (value(broker, "millstream_hot_partition_bytes_per_second", **hot) or 0) > 1000

    wait_until(is_hot, "the rate")


def test_rounds_are_counted(broker: BrokerProcess) -> None:
    assert (value(broker, "millstream_lag_rounds_total") or 0) > 0
    assert value(broker, "millstream_lag_failures_total") == 0
