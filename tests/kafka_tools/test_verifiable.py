"""Kafka's verifiable producer and consumer, which its own system tests are made of, in every group
protocol, on one broker and on three."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import wait_until
from harness.process.brokers import Brokers
from harness.topic_content import read_messages
from kafka_tools.runner import Result, RunningTool, ToolRunner

pytestmark = pytest.mark.xdist_group("kafka-tools")

PARTITIONS = 6
RECORDS = 500
CLASSIC = "classic"
#: Group protocols with their assignors.
PROTOCOLS = {
    "classic range": ("classic", "org.apache.kafka.clients.consumer.RangeAssignor"),
    "classic cooperative": (
        "classic",
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    ),
    "consumer uniform": ("consumer", "uniform"),
    "consumer range": ("consumer", "range"),
}


def events(result: Result) -> list[dict[str, Any]]:
    """Return what a verifiable tool reported: each line is a JSON object."""
    return [json.loads(line) for line in result.out.splitlines()]


def named(found: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in found if event["name"] == name]


def produce(tools: ToolRunner, brokers: Brokers, topic: str, *options: str) -> Result:
    """Produce RECORDS numbers; the tool reports every one as acknowledged."""
    result = tools.run(
        "kafka-verifiable-producer",
        *("--bootstrap-server", brokers.bootstrap, "--topic", topic),
        *("--max-messages", str(RECORDS), *options),
    )
    assert (result.exit, result.err) == (0, ""), result
    (summary,) = named(events(result), "tool_data")
    assert (summary["sent"], summary["acked"]) == (RECORDS, RECORDS), summary
    return result


@pytest.mark.parametrize("acks", ["0", "1", "-1"])
def test_producer(tools: ToolRunner, brokers: Brokers, acks: str) -> None:
    topic = f"verified-acks{acks}"
    brokers.create_topic(topic, PARTITIONS)
    options = ("--acks", acks, "--repeating-keys", "7", "--value-prefix", "1")
    result = produce(tools, brokers, topic, *options)
    found = read_messages(brokers.bootstrap, [topic])
    assert {message.value for message in found} == {b"1.%d" % n for n in range(RECORDS)}
    assert len(found) == RECORDS
    if acks != "0":
        reported = {
            (event["partition"], event["offset"]): event["value"].encode()
            for event in named(events(result), "producer_send_success")
        }
        assert reported == {(each.partition, each.offset): each.value for each in found}


class Member:
    """A verifiable consumer of a group, and what it has reported so far."""

    def __init__(self, running: RunningTool) -> None:
        self._running = running
        self._read = 0
        self._held: set[int] = set()
        self._consumed: Counter[tuple[int, int]] = Counter()

    def assigned(self) -> set[int]:
        """Return the partitions that the member owns."""
        self._look()
        return self._held

    def consumed(self) -> Counter[tuple[int, int]]:
        """Return how often the member read each partition and offset."""
        self._look()
        return self._consumed

    def _look(self) -> None:
        lines = self._running.lines()
        assert self._running.errors == ""
        for line in lines[self._read :]:
            event = json.loads(line)
            if event["name"] == "record_data":
                self._consumed[event["partition"], event["offset"]] += 1
            elif event["name"] == "partitions_assigned":
                self._held |= {each["partition"] for each in event["partitions"]}
            elif event["name"] == "partitions_revoked":
                self._held -= {each["partition"] for each in event["partitions"]}
        self._read = len(lines)

    def stop(self) -> None:
        result = self._running.stop()
        assert (result.exit, result.err) == (0, ""), result
        assert named(events(result), "shutdown_complete"), result


@pytest.mark.parametrize("name", PROTOCOLS)
def test_members_of_a_group(tools: ToolRunner, brokers: Brokers, name: str, tmp_path: Path) -> None:
    """One member reads. A second joins and gets its share. One leaves, and the other gets all."""
    topic = f"verified-{name.replace(' ', '-')}"
    brokers.create_topic(topic, PARTITIONS)
    protocol, assignor = PROTOCOLS[name]
    choice = "--assignment-strategy" if protocol == CLASSIC else "--group-remote-assignor"
    own = tmp_path / "consumer.properties"
    # In the consumer protocol the broker assigns.
    own.write_text("heartbeat.interval.ms=200\n" if protocol == CLASSIC else "")
    everything = set(range(PARTITIONS))
    with ExitStack() as running:

        def join() -> Member:
            started = tools.running(
                "kafka-verifiable-consumer",
                *("--bootstrap-server", brokers.bootstrap, "--topic", topic, "--verbose"),
                *("--group-id", topic, "--group-protocol", protocol, choice, assignor),
                *("--command-config", str(own)),
            )
            return Member(running.enter_context(started))

        first = join()
        wait_until(lambda: first.assigned() == everything, "the first member's assignment")
        produce(tools, brokers, topic)
        wait_until(lambda: first.consumed().total() == RECORDS, "the records at the first member")
        second = join()
        wait_until(
            lambda: (
                len(second.assigned()) == PARTITIONS // 2
                and first.assigned() == everything - second.assigned()
            ),
            "each member's half",
        )
        produce(tools, brokers, topic)
        wait_until(
            lambda: (first.consumed() + second.consumed()).total() == 2 * RECORDS,
            "the records at both members",
        )
        first.stop()
        wait_until(lambda: second.assigned() == everything, "the second member to take over")
        produce(tools, brokers, topic)
        wait_until(
            lambda: (first.consumed() + second.consumed()).total() == 3 * RECORDS,
            "the records at the second member",
        )
        second.stop()
    written = read_messages(brokers.bootstrap, [topic])
    wanted = Counter((message.partition, message.offset) for message in written)
    assert first.consumed() + second.consumed() == wanted
