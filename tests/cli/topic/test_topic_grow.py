from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from harness.process.broker_process import wait_until
from millstream.client import Admin, Consumer, Partition

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.cli.topic.topic_grow._POLL_S", 0.05)


@pytest.fixture
def filled(ask: Run, topic: str) -> str:
    assert ask("produce", topic, "a", "b", "c", "-p", "1").code == 0
    return topic


def partitions(ask: Run, topic: str) -> int:
    (row,) = json.loads(ask("topic", "list", topic, "--json").out)
    return int(row["partitions"])


def grow(ask: Run, topic: str, *arguments: str) -> Any:
    return ask("topic", "grow", topic, "--partitions", "5", *arguments)


def test_a_topic_grows(ask: Run, filled: str) -> None:
    refused = grow(ask, filled)
    assert refused.code == 2
    assert "--yes" in refused.error
    plan = grow(ask, filled, "--dry-run", "--json")
    assert json.loads(plan.out) == {
        "topic": filled,
        "partitions": 3,
        "new_partitions": 5,
        "unread": [],
        "result": "would be grown",
    }
    assert partitions(ask, filled) == 3
    assert grow(ask, filled, "--yes").out == f"{filled}: grown from 3 to 5 partitions\n"
    assert partitions(ask, filled) == 5
    fewer = ask("topic", "grow", filled, "-p", "2", "--yes")
    assert fewer.code == 1
    assert "INVALID_PARTITIONS" in fewer.error


def test_keeping_the_order_waits_for_groups(ask: Run, filled: str, broker: str) -> None:
    group = f"{filled}-group"
    with Admin(broker) as admin:
        admin.alter_group_offsets(group, {Partition(filled, 1): 1})
    plan = json.loads(grow(ask, filled, "--keep-order", "--dry-run", "--json").out)
    assert plan["unread"] == [
        {"group": group, "partition": 1, "committed_offset": 1, "end_offset": 3, "lag": 2}
    ]
    late = grow(ask, filled, "--keep-order", "--yes", "--max-wait", "100ms")
    assert late.code == 1, late
    assert [group, "1", "1", "3", "2"] in [line.split() for line in late.out.splitlines()]
    assert f"Group {group!r} has no members" in late.error
    assert f"{group} did not read everything" in late.error
    assert partitions(ask, filled) == 3

    def read() -> None:
        with Consumer(broker, topics=[filled], group_id=group) as consumer:
            wait_until(lambda: len(consumer.poll()) > 0, "records")

    reader = threading.Thread(target=read)
    reader.start()
    done = grow(ask, filled, "--keep-order", "--yes", "--json")
    reader.join()
    assert done.code == 0, done
    assert json.loads(done.out)["result"] == "grown"
    assert partitions(ask, filled) == 5


def test_a_group_may_be_left_out(ask: Run, filled: str, broker: str) -> None:
    group = f"{filled}-abandoned"
    with Admin(broker) as admin:
        admin.alter_group_offsets(group, {Partition(filled, 1): 0})
    done = grow(ask, filled, "--keep-order", "--ignore-group", group, "--yes")
    assert done.code == 0, done
    assert f"No group reads {filled}" in done.error


def test_a_topic_that_does_not_exist(ask: Run) -> None:
    outcome = grow(ask, "nope", "--yes")
    assert outcome.code == 3
    assert "topic 'nope' does not exist" in outcome.error


def test_wrong_usage(run: Run) -> None:
    assert run("topic", "grow", "t").code == 2
    assert run("topic", "grow", "t", "-p", "2", "--max-wait", "1m").code == 2
