"""`topic move` on three brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from harness.process.broker_process import wait_until
from harness.process.brokers import COUNT_NAMES, Brokers, started
from millstream.client import Admin, ConfigResource, Partition, Producer

if TYPE_CHECKING:
    from tests.cli.conftest import Run

pytestmark = pytest.mark.xdist_group(f"topic move on {COUNT_NAMES[3]}")

#: Small fetch responses, so that a throttle can keep a move in progress.
SETTINGS = {
    "replica.fetch.max.bytes": 4096,
    "replica.fetch.response.max.bytes": 8192,
    "replica.fetch.wait.max.ms": 200,
}
RATES = ("leader.reassignment.throttled.rate", "follower.reassignment.throttled.rate")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with started(tmp_path_factory.mktemp("move"), 3, SETTINGS) as brokers:
        yield brokers


@pytest.fixture
def ask(run: Run, brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", brokers.bootstrap)
    monkeypatch.setattr("millstream.cli.topic.topic_move._POLL_S", 0.1)
    return run


def replicas(ask: Run, topic: str) -> list[list[int]]:
    (row,) = json.loads(ask("topic", "describe", topic, "--json").out)
    return [each["replicas"] for each in row["partitions"]]


def test_a_topic_moves_to_other_brokers(ask: Run, brokers: Brokers) -> None:
    one, two, three = brokers.node_ids
    assert ask("topic", "create", "spread", "-p", "4", "-r", "1").code == 0
    to = f"{two},{three}"
    plan = ask("topic", "move", "spread", "--to", to, "-r", "2", "--dry-run", "--json")
    assert plan.code == 0, plan
    planned = [row["new_replicas"] for row in json.loads(plan.out)]
    assert all(sorted(each) == [two, three] for each in planned)
    refused = ask("topic", "move", "spread", "--to", to, "-r", "2")
    assert refused.code == 2
    assert "NEW REPLICAS" in refused.out
    assert "--yes" in refused.error
    done = ask("topic", "move", "spread", "--to", to, "-r", "2", "--yes", "--json")
    assert done.code == 0, done
    assert {row["result"] for row in json.loads(done.out)} == {"moved"}
    assert replicas(ask, "spread") == planned
    exact = ask("topic", "move", "spread", "--to", f"{one},{two}", "-p", "0", "--yes")
    assert exact.code == 0, exact
    assert replicas(ask, "spread")[0] == [one, two]
    again = ask("topic", "move", "spread", "--to", f"{one},{two}", "-p", "0", "--json")
    assert [row["result"] for row in json.loads(again.out)] == ["stays"]


def test_a_move_is_cancelled(ask: Run, brokers: Brokers) -> None:
    one, two, _ = brokers.node_ids
    assert ask("topic", "create", "slow", "-p", "1", "-r", "1").code == 0
    assert ask("topic", "move", "slow", "--to", str(one), "-p", "0", "--yes").code == 0
    with Producer(brokers.bootstrap) as producer:
        for _number in range(200):
            producer.send("slow", b"x" * 1000)
    nothing = ask("topic", "move", "slow", "--cancel", "--yes", "--json")
    assert (nothing.code, json.loads(nothing.out)) == (0, [])
    with Admin(brokers.bootstrap) as admin:
        admin.alter_config(ConfigResource.broker(), dict.fromkeys(RATES, "100"))
        partition = Partition("slow", 0)
        assert admin.alter_partition_reassignments({partition: [two]}) == {partition: None}
        wait_until(lambda: bool(admin.list_partition_reassignments(["slow"])), "the move")
        shown = ask("topic", "move", "slow", "--cancel", "--dry-run", "--json")
        assert [row["result"] for row in json.loads(shown.out)] == ["would be cancelled"]
        done = ask("topic", "move", "slow", "--cancel", "--yes", "--json")
        assert done.code == 0, done
        assert [row["result"] for row in json.loads(done.out)] == ["cancelled"]
        admin.alter_config(ConfigResource.broker(), dict.fromkeys(RATES, None))
        wait_until(lambda: not admin.list_partition_reassignments(["slow"]), "no move")
    assert replicas(ask, "slow") == [[one]]


def test_what_does_not_exist(ask: Run, brokers: Brokers) -> None:
    assert ask("topic", "create", "known", "-p", "1", "-r", "1").code == 0
    missing = ask("topic", "move", "nope", "--to", "1", "--yes")
    assert missing.code == 3
    assert "topic 'nope' does not exist" in missing.error
    unknown = ask("topic", "move", "known", "--to", "77", "--yes")
    assert unknown.code == 3
    assert "broker 77 is not alive" in unknown.error
    assert ask("topic", "move", "known", "--to", "77", "-p", "5").code == 3


@pytest.mark.parametrize(
    "arguments",
    [(), ("--to", "1", "--cancel"), ("--to", "a"), ("--to", "1", "-p", "0", "-r", "1")],
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("topic", "move", "t", *arguments, "-b", "127.0.0.1:1").code == 2
