"""Java's clients under quotas: kafka-producer-perf-test and kafka-consumer-perf-test report it."""

from __future__ import annotations

import re

import pytest

from harness.process.brokers import Brokers
from harness.topic_content import read_messages
from kafka_tools.runner import ToolRunner
from millstream.client import Admin, QuotaEntity

pytestmark = pytest.mark.xdist_group("kafka-tools")

#: Bytes per second. A window of ten seconds passes at once, as in Kafka.
RATE = 100_000
RECORDS = 1400
RECORD_BYTES = 1000


def set_quota(brokers: Brokers, client_id: str, name: str, value: float | None) -> None:
    entity = QuotaEntity(client_id=client_id)
    with Admin(brokers.bootstrap) as admin:
        assert admin.alter_quotas({entity: {name: value}}) == {entity: None}


def metric(text: str, name: str) -> float:
    """Return the largest value of a metric that a tool printed."""
    values = [float(each) for each in re.findall(rf":{name}:\S*\s*:\s*([\d.]+)", text)]
    assert values, text[-3000:]
    return max(values)


def test_the_producer_reports_its_throttling(tools: ToolRunner, brokers: Brokers) -> None:
    brokers.create_topic("quota-java", 1)
    set_quota(brokers, "perf-quota", "producer_byte_rate", RATE)
    result = tools.run(
        "kafka-producer-perf-test",
        *("--bootstrap-server", brokers.bootstrap, "--topic", "quota-java"),
        *("--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1", "--print-metrics"),
        *("--command-property", "client.id=perf-quota", "acks=all", "linger.ms=0"),
    )
    assert (result.exit, result.err) == (0, ""), result
    assert f"{RECORDS} records sent" in result.out
    assert metric(result.out, "produce-throttle-time-max") > 0
    assert len(list(read_messages(brokers.bootstrap, ["quota-java"]))) == RECORDS


def test_the_consumer_reports_its_throttling(tools: ToolRunner, brokers: Brokers) -> None:
    brokers.create_topic("quota-java-read", 1)
    result = tools.run(
        "kafka-producer-perf-test",
        *("--bootstrap-server", brokers.bootstrap, "--topic", "quota-java-read"),
        *("--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1"),
    )
    assert result.exit == 0, result
    set_quota(brokers, "perf-quota-read", "consumer_byte_rate", RATE)
    result = tools.run(
        "kafka-consumer-perf-test",
        *("--bootstrap-server", brokers.bootstrap, "--topic", "quota-java-read"),
        *("--num-records", str(RECORDS), "--timeout", "60000", "--print-metrics"),
        *("--command-property", "client.id=perf-quota-read"),
        *("--command-property", "max.partition.fetch.bytes=50000"),
    )
    assert result.exit == 0, result
    assert metric(result.out, "fetch-throttle-time-max") > 0
