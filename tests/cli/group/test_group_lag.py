"""`group describe` and `group list`: lag in seconds, headroom, and transient states."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness.process.broker_process import wait_until
from harness.raw.raw_client import RawClient
from millstream.cli.group import group_lag, unread
from millstream.cli.group.lag_reader import lag_of
from millstream.cli.group.unread import FirstUnread
from millstream.cli.support.position import Range
from millstream.cli.support.topic_config import Retention
from millstream.client import Partition
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest

if TYPE_CHECKING:
    from tests.cli.conftest import Run

HOUR_S = 3600
_numbers = count()


class Topic:
    """A topic of two partitions, and a group that reads it."""

    def __init__(self, broker: str, **configs: str) -> None:
        config = {"bootstrap.servers": broker, "log_level": 0}
        self.name = f"lag-{os.getpid()}-{next(_numbers)}"
        self.group = f"{self.name}-group"
        self._admin, self._producer = AdminClient(config), Producer(config)
        named = {name.replace("_", "."): text for name, text in configs.items()}
        self._admin.create_topics([NewTopic(self.name, 2, 1, config=named)])[self.name].result()

    def produce(self, *ages_s: float, partition: int = 0) -> None:
        for age_s in ages_s:
            written_ms = int((time.time() - age_s) * 1000)
            self._producer.produce(self.name, "v", "k", partition=partition, timestamp=written_ms)
            assert self._producer.flush(10) == 0

    def commit(self, *offsets: int) -> None:
        wanted = [TopicPartition(self.name, n, offset) for n, offset in enumerate(offsets)]
        request = ConsumerGroupTopicPartitions(self.group, wanted)
        self._admin.alter_consumer_group_offsets([request])[self.group].result()


def described(ask: Run, group: str) -> dict[str, Any]:
    outcome = ask("group", "describe", group, "--json")
    assert outcome.code == 0, outcome
    row: dict[str, Any] = json.loads(outcome.out)
    return row


def test_seconds_behind_and_headroom(ask: Run, broker: str) -> None:
    topic = Topic(broker, retention_ms=str(10 * HOUR_S * 1000))
    topic.produce(4 * HOUR_S, 3 * HOUR_S, 2 * HOUR_S)
    topic.produce(HOUR_S, partition=1)
    topic.commit(1, 0)
    row = described(ask, topic.group)
    first, second = row["partitions"]
    assert (first["lag"], second["lag"], row["lag"]) == (2, 1, 3)
    assert 0 <= first["lag_seconds"] - 3 * HOUR_S < 120
    assert 0 <= second["lag_seconds"] - HOUR_S < 120
    assert 0 <= 7 * HOUR_S - first["headroom_seconds"] < 120
    assert row["lag_seconds"] == first["lag_seconds"]
    assert row["headroom_seconds"] == first["headroom_seconds"]
    assert row["limited_by_size"] == []
    shown = ask("group", "describe", topic.group)
    assert "3 records behind by 3h" in shown.out
    assert [topic.name, "0", "1", "3", "2", "3h"] in [x.split()[:6] for x in shown.out.splitlines()]
    topic.commit(3, 1)
    row = described(ask, topic.group)
    assert (row["lag"], row["lag_seconds"], row["headroom_seconds"]) == (0, 0, None)


def test_without_retention_headroom_is_unlimited(ask: Run, broker: str) -> None:
    for configs in ({"retention_ms": "-1"}, {"cleanup_policy": "compact"}):
        topic = Topic(broker, **configs)
        topic.produce(60)
        topic.commit(0)
        row = described(ask, topic.group)
        assert (row["lag"], row["headroom_seconds"]) == (1, None)
        assert "unlimited" in ask("group", "describe", topic.group).out


def test_retention_by_size_is_mentioned(ask: Run, broker: str) -> None:
    topic = Topic(broker, retention_bytes="1000000")
    topic.produce(60)
    topic.commit(0)
    assert described(ask, topic.group)["limited_by_size"] == [topic.name]
    assert "also has retention.bytes" in ask("group", "describe", topic.group).error


def test_watch_fetches_only_partitions_with_a_new_commit(
    ask: Run, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(broker, retention_ms="-1")
    topic.produce(30, 20, 10)
    topic.commit(0)
    fetched: list[dict[tuple[str, int], int]] = []
    fetch = unread.UnreadReader._fetch

    def noted(self: Any, positions: Any) -> Any:
        fetched.append(dict(positions))
        return fetch(self, positions)

    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            topic.commit(2)
        if len(looks) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(unread.UnreadReader, "_fetch", noted)
    # Patched in this module only: other threads call time.sleep too.
    monkeypatch.setattr(group_lag, "time", SimpleNamespace(sleep=wait, time=time.time))
    outcome = ask("group", "describe", topic.group, "--watch", "0.5", "--json")
    assert outcome.code == 0, outcome
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [row["lag"] for row in rows] == [3, 3, 1, 1]
    assert [row["lag_seconds"] // 10 for row in rows] == [3, 3, 1, 1]
    assert fetched == [{(topic.name, 0): 0}, {(topic.name, 0): 2}]


KEY = Partition("t", 0)


@pytest.mark.parametrize(
    ("committed", "first", "limit_ms", "expected"),
    [
        (5, FirstUnread(None), 1000, (5, None, None)),
        (5, FirstUnread(0), None, (5, ANY, math.inf)),
        (5, FirstUnread(0), 1000, (5, ANY, 0)),
        (5, FirstUnread(is_nothing=True), 1000, (0, 0, math.inf)),
        (2, FirstUnread(None), None, (7, None, 0)),
    ],
)
def test_lag_and_headroom_from_the_first_unread_record(
    committed: int, first: FirstUnread, limit_ms: int | None, expected: tuple[Any, ...]
) -> None:
    found = lag_of(
        KEY, {KEY: committed}, {KEY: Range(3, 10)}, {KEY: first}, {"t": Retention(limit_ms)}
    )
    assert (found["lag"], found["lag_seconds"], found["headroom_seconds"]) == expected


def test_a_topic_without_known_retention_has_no_headroom() -> None:
    found = lag_of(KEY, {KEY: 5}, {KEY: Range(3, 10)}, {KEY: FirstUnread(0)}, {})
    assert found["headroom_seconds"] is None


# States that the client library does not know


@pytest.fixture
def client(broker: str) -> Iterator[RawClient]:
    host, port = broker.split(",")[0].rsplit(":", 1)
    with RawClient(host, int(port)) as connection:
        yield connection


def beat(client: RawClient, topic: Topic, member: str, epoch: int) -> int:
    request = ConsumerGroupHeartbeatRequest(
        group_id=topic.group, member_id=member, member_epoch=epoch
    )
    if epoch == 0:
        request.rebalance_timeout_ms = 60_000
        request.subscribed_topic_names = [topic.name]
        request.topic_partitions = []
    answer = client.call(request, 1)
    assert answer.error_code == 0, answer
    return int(answer.member_epoch)


def test_transient_states_are_shown(ask: Run, broker: str, client: RawClient) -> None:
    topic = Topic(broker)
    client.call(FindCoordinatorRequest(coordinator_keys=[topic.group]))

    def state() -> str:
        return str(described(ask, topic.group)["state"])

    def listed(*filters: str) -> list[str]:
        outcome = ask("group", "list", topic.group, "--json", *filters)
        assert outcome.code == 0, outcome
        return [row["state"] for row in json.loads(outcome.out)]

    beat(client, topic, "first", 0)
    assert (state(), listed()) == ("Stable", ["Stable"])
    epoch = beat(client, topic, "second", 0)

    def is_reconciling() -> bool:
        nonlocal epoch
        if state() == "Reconciling":
            return True
        epoch = beat(client, topic, "second", epoch)
        return False

    # Apache Kafka waits for a second before it assigns again.
    wait_until(is_reconciling, "the assignment")
    assert listed() == ["Reconciling"]
    assert listed("--state", "reconciling", "--state", "empty") == ["Reconciling"]
    assert listed("--state", "stable") == listed("--state", "assigning") == []
    beat(client, topic, "second", -1)
    assert state() in ("Assigning", "Reconciling"), (
        "the group is stable before its members have reconciled"
    )
    beat(client, topic, "first", -1)
    assert listed() == ["Empty"]
