"""Kafka's performance tools, on one broker and on three: nothing fails, and every record is there.

The producers keep their default number of requests in flight. The payloads are consecutive numbers,
so the test detects records that are lost, duplicated, or visible without a commit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import pytest

from harness.process.brokers import Brokers
from harness.topic_content import read_messages
from kafka_tools.runner import Result, ToolRunner

pytestmark = pytest.mark.xdist_group("kafka-tools")

PARTITIONS = 12
RECORDS = 3000
#: A rate that leaves several requests and several transactions in flight.
RECORDS_PER_SECOND = 6000
GROUP_PROTOCOLS = ("classic", "consumer")
PRODUCERS: Mapping[str, tuple[str, ...]] = {
    "acks 0": ("acks=0", "enable.idempotence=false"),
    "acks 1": ("acks=1", "enable.idempotence=false"),
    "acks all": ("acks=all", "enable.idempotence=false"),
    "idempotent": ("acks=all", "enable.idempotence=true"),
    "compressed": ("acks=all", "compression.type=zstd", "linger.ms=20"),
}


def produce(
    tools: ToolRunner, brokers: Brokers, topic: str, count: int, *rest: str, properties: str = ""
) -> Result:
    """Run the producer to its end; it must report no error."""
    result = tools.run(
        "kafka-producer-perf-test",
        *("--bootstrap-server", brokers.bootstrap, "--topic", topic),
        *("--num-records", str(count), "--payload-monotonic"),
        *("--throughput", str(RECORDS_PER_SECOND)),
        *(("--command-property", *properties.split()) if properties else ()),
        *rest,
    )
    assert (result.exit, result.err) == (0, ""), result
    assert f"{count} records sent" in result.out, result
    assert "xception" not in result.out, result
    return result


def check_content(brokers: Brokers, topic: str, count: int) -> None:
    """Check that `read_committed` consumers see every number up to `count` once."""
    found = Counter(message.value for message in read_messages(brokers.bootstrap, [topic]))
    wanted = Counter(b"%d" % number for number in range(count))
    assert found == wanted, f"lost: {wanted - found}, doubled: {found - wanted}"


@pytest.mark.parametrize("name", PRODUCERS)
def test_producer(tools: ToolRunner, brokers: Brokers, name: str) -> None:
    topic = f"perf-{name.replace(' ', '-')}"
    brokers.create_topic(topic, PARTITIONS)
    produce(tools, brokers, topic, RECORDS, properties=" ".join(PRODUCERS[name]))
    check_content(brokers, topic, RECORDS)


def test_transactional_producer(tools: ToolRunner, brokers: Brokers) -> None:
    brokers.create_topic("perf-transactional", PARTITIONS)
    produce_in_transactions(tools, brokers, "perf-transactional", RECORDS)
    check_content(brokers, "perf-transactional", RECORDS)


def produce_in_transactions(tools: ToolRunner, brokers: Brokers, topic: str, count: int) -> Result:
    """Produce small batches: each transaction needs many requests, five in flight."""
    transactions = ("--transactional-id", topic, "--transaction-duration-ms", "100")
    return produce(
        tools, brokers, topic, count, *transactions, properties="acks=all batch.size=200"
    )


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_transactional_producer_many_times(tools: ToolRunner, brokers: Brokers) -> None:
    brokers.create_topic("perf-many-times", PARTITIONS)
    count = 5 * RECORDS_PER_SECOND
    for _ in range(20):
        produce_in_transactions(tools, brokers, "perf-many-times", count)
    written = read_messages(brokers.bootstrap, ["perf-many-times"])
    found = Counter(message.value for message in written)
    assert found == Counter({b"%d" % number: 20 for number in range(count)})


@pytest.mark.parametrize("protocol", GROUP_PROTOCOLS)
def test_consumer(tools: ToolRunner, brokers: Brokers, protocol: str) -> None:
    topic = f"perf-consumer-{protocol}"
    brokers.create_topic(topic, PARTITIONS)
    produce(tools, brokers, topic, RECORDS)
    result = tools.run(
        "kafka-consumer-perf-test",
        *("--bootstrap-server", brokers.bootstrap, "--topic", topic),
        *("--group", topic, "--num-records", str(RECORDS), "--hide-header"),
        *("--command-property", f"group.protocol={protocol}"),
        *("--command-property", "isolation.level=read_committed"),
    )
    assert (result.exit, result.err) == (0, ""), result
    # Start, end, MB, MB/s, records, ...
    assert result.out.split(", ")[4] == str(RECORDS), result


@pytest.mark.parametrize("acks", ["1", "all"])
def test_end_to_end_latency(tools: ToolRunner, brokers: Brokers, acks: str) -> None:
    topic = f"perf-latency-{acks}"
    brokers.create_topic(topic, 1)
    result = tools.run(
        "kafka-e2e-latency",
        *("--bootstrap-server", brokers.bootstrap, "--topic", topic),
        *("--num-records", "200", "--producer-acks", acks, "--record-size", "100"),
    )
    assert (result.exit, result.err) == (0, ""), result
    assert re.search(r"Percentiles: 50th = \d+, 99th = \d+, 99\.9th = \d+", result.out), result
    assert len(read_messages(brokers.bootstrap, [topic])) == 200
