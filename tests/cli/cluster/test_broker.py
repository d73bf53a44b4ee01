"""`millstream broker`: list brokers, and decommission a broker of a cluster of four.

The tests share one cluster. Each continues from the state that the previous test leaves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.process.broker_process import wait_until
from harness.process.process_cluster import ProcessCluster

if TYPE_CHECKING:
    from tests.cli.conftest import Run

pytestmark = pytest.mark.xdist_group("decommission")

SECONDS_MAX = 90.0
RECORDS = 2000
PARTITIONS = 16
#: Small fetch responses, so that a throttle can keep a move in progress.
SETTINGS = {
    "replica.fetch.max.bytes": 4096,
    "replica.fetch.response.max.bytes": 8192,
    "replica.fetch.wait.max.ms": 200,
    "replica.fetch.backoff.ms": 100,
    "min.insync.replicas": 1,
}
SLOW, FAST = "3000", "1000000000"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    folder = tmp_path_factory.mktemp("decommission")
    with ProcessCluster(folder, 4, SETTINGS, racks=("a", "b")) as cluster:
        yield cluster


@pytest.fixture
def ask(run: Run, cluster: ProcessCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", cluster.bootstrap)
    monkeypatch.setattr("millstream.cli.cluster.broker._POLL_S", 0.1)
    return run


def told(ask: Run, *arguments: str) -> Any:
    outcome = ask(*arguments, "--json")
    assert outcome.code == 0, outcome
    return json.loads(outcome.out)


def cluster_status(ask: Run) -> dict[str, Any]:
    """Return the status, healthy or not: the exit code is 1 while the cluster is unhealthy. A
    broker that has just died can make the request fail; the cluster counts as unhealthy then."""
    out = ask("cluster", "status", "--json").out
    return dict(json.loads(out)) if out else {"healthy": False, "missing_brokers": []}


def status(ask: Run, broker: int) -> dict[str, Any]:
    return dict(told(ask, "broker", "decommission", str(broker), "--status"))


def replicas(ask: Run, topic: str = "*") -> list[list[int]]:
    return [row["replicas"] for row in told(ask, "cluster", "partitions", topic)]


def controller(ask: Run) -> int:
    (found,) = [row["broker"] for row in told(ask, "broker", "list") if row["controller"]]
    return int(found)


def read_all(ask: Run) -> int:
    outcome = ask("consume", "kept", "--from-beginning", "--no-follow")
    assert outcome.code == 0, outcome
    return len(outcome.out.splitlines())


def test_list_shows_brokers_and_their_replicas(ask: Run) -> None:
    created = ask("topic", "create", "kept", "-p", str(PARTITIONS), "-r", "2")
    assert created.code == 0, created
    lines = "".join(f"{number}:{'x' * 500}\n" for number in range(RECORDS))
    # Batches that are smaller than a fetch response.
    options = ("--key-separator", ":", "-X", "batch.num.messages=4")
    produced = ask("produce", "kept", *options, stdin=lines)
    assert produced.code == 0, produced
    rows = told(ask, "broker", "list")
    assert [(row["broker"], row["state"], row["rack"]) for row in rows] == [
        (1, "alive", "a"),
        (2, "alive", "b"),
        (3, "alive", "a"),
        (4, "alive", "b"),
    ]
    assert [row["replicas"] for row in rows] == [PARTITIONS // 2] * 4
    assert sum(row["controller"] for row in rows) == 1
    table = ask("broker", "list").out
    assert table.count("alive") == 4
    assert "controller" in table


def test_requests_that_are_rejected(ask: Run) -> None:
    outcome = ask("broker", "decommission", "9")
    assert outcome.code == 3, outcome
    outcome = ask("broker", "decommission", "4", "--cancel")
    assert outcome.code == 1, outcome
    assert "not being decommissioned" in outcome.error
    assert ask("broker", "decommission", "4", "--cancel", "--status").code == 2
    assert ask("topic", "create", "wide", "-p", "1", "-r", "4").code == 0
    outcome = ask("broker", "decommission", "4")
    assert outcome.code == 1, outcome
    assert "3 brokers would remain" in outcome.error
    assert "wide" in outcome.error
    assert ask("topic", "delete", "wide", "--yes").code == 0
    assert status(ask, 4)["state"] == "alive"


def test_cancel_while_replicas_move(ask: Run, cluster: ProcessCluster) -> None:
    before = replicas(ask)
    begun = told(ask, "broker", "decommission", "4", "--throttle", SLOW, "--no-wait")
    assert begun["state"] == "decommissioning"
    wait_until(lambda: status(ask, 4)["moving"], "moves to begin", SECONDS_MAX)
    held = status(ask, 4)
    left = sum(each.metric("millstream_decommission_replicas_left") for each in cluster)
    assert left == held["replicas"]
    assert 0 < held["replicas"] == PARTITIONS // 2
    outcome = ask("broker", "decommission", "4", "--cancel")
    assert outcome.code == 0, outcome
    assert "in service" in outcome.out
    assert [sorted(row) for row in replicas(ask)] == [sorted(row) for row in before]
    after = status(ask, 4)
    assert (after["state"], after["replicas"], after["moving"]) == ("alive", held["replicas"], 0)


def test_a_killed_command_or_controller_does_not_stop_a_decommission(
    ask: Run, cluster: ProcessCluster
) -> None:
    acting = controller(ask)
    leaver = 4 if acting != 4 else 2
    program = str(Path(sys.executable).with_name("millstream"))
    command = [program, "broker", "decommission", str(leaver), "--throttle", SLOW]
    with subprocess.Popen(
        command, env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        wait_until(lambda: status(ask, leaver)["moving"], "moves to begin", SECONDS_MAX)
        process.send_signal(signal.SIGKILL)
    cluster[acting].kill()
    wait_until(lambda: controller(ask) != acting, "another controller", SECONDS_MAX)
    assert status(ask, leaver)["state"] == "decommissioning"
    cluster[acting].start()
    outcome = ask("broker", "decommission", str(leaver), "--throttle", FAST)
    assert outcome.code == 0, outcome
    assert f"Broker {leaver} is empty" in outcome.out
    # A second run reports the same result.
    again = told(ask, "broker", "decommission", str(leaver))
    assert (again["state"], again["replicas"], again["leads"]) == ("decommissioned", 0, 0)


def test_settings_of_one_broker_and_of_all(ask: Run) -> None:
    name = "log.retention.ms"
    assert ask("broker", "config", "set", f"{name}=86400000").code == 0
    assert ask("broker", "config", "set", f"{name}=3600000", "--broker", "3").code == 0
    values = {}
    for broker in (1, 3):
        (row,) = told(ask, "broker", "config", "describe", name, "--broker", str(broker))
        values[broker] = (row["value"], row["source"])
    assert values == {1: ("86400000", "cluster"), 3: ("3600000", "broker")}
    assert ask("broker", "config", "unset", name, "--broker", "3").code == 0
    assert ask("broker", "config", "unset", name).code == 0


def test_a_decommissioned_broker_has_no_replicas_and_gets_none(
    ask: Run, cluster: ProcessCluster
) -> None:
    (leaver,) = [
        row["broker"] for row in told(ask, "broker", "list") if row["state"] == "decommissioned"
    ]
    racks = {row["broker"]: row["rack"] for row in told(ask, "broker", "list")}
    kept = replicas(ask, "kept")
    assert len(kept) == PARTITIONS
    # Each rack still has one replica of each partition.
    assert [sorted(racks[each] for each in row) for row in kept] == [["a", "b"]] * PARTITIONS
    assert all(leaver not in row for row in kept)
    assert ask("topic", "create", "new", "-p", "6", "-r", "3").code == 0
    assert all(leaver not in row for row in replicas(ask, "new"))
    assert ask("topic", "create", "wide", "-p", "1", "-r", "4").code == 1
    folders = cluster[leaver].data
    wait_until(lambda: not list(folders.glob("kept-*")), "its logs to be deleted", SECONDS_MAX)
    cluster[leaver].stop()
    wait_until(lambda: cluster_status(ask)["healthy"], "a healthy cluster", SECONDS_MAX)
    assert read_all(ask) == RECORDS


def test_a_broker_that_is_dead_can_be_replaced(ask: Run, cluster: ProcessCluster) -> None:
    """A cancelled decommission frees the id of the stopped broker."""
    (gone,) = [
        row["broker"] for row in told(ask, "broker", "list") if row["state"] == "decommissioned"
    ]
    assert ask("broker", "decommission", str(gone), "--cancel").code == 0
    assert gone not in [row["broker"] for row in told(ask, "broker", "list")]
    cluster[gone].start()
    victim = next(each for each in (1, 3) if each != gone)
    assert ask("topic", "delete", "new", "--yes").code == 0
    cluster[victim].kill()
    wait_until(lambda: cluster_status(ask)["missing_brokers"] == [victim], "the loss", SECONDS_MAX)
    sick = ask("doctor", "--only", "cluster", "--json")
    states = {row["check"]: row for row in json.loads(sick.out)["checks"]}
    assert sick.code == 1, sick
    assert f"missing: {victim}" in states["brokers"]["found"]
    assert states["partitions"]["state"] == "unhealthy"
    outcome = ask("broker", "decommission", str(victim))
    assert outcome.code == 0, outcome
    wait_until(lambda: cluster_status(ask)["healthy"], "a healthy cluster", SECONDS_MAX)
    assert all(victim not in row for row in replicas(ask))
    assert read_all(ask) == RECORDS


def test_an_election_brings_leaders_back_to_the_preferred_replicas(
    ask: Run, cluster: ProcessCluster
) -> None:
    """A restarted broker leads nothing until an election."""
    rows = told(ask, "cluster", "partitions", "kept")
    broker = rows[0]["leader"]
    cluster[broker].stop()
    cluster[broker].start()
    wait_until(lambda: cluster_status(ask)["healthy"], "a healthy cluster", SECONDS_MAX)
    moved = [
        row["partition"]
        for row in told(ask, "cluster", "partitions", "kept")
        if row["replicas"][0] == broker != row["leader"]
    ]
    elected = told(ask, "cluster", "elect", "ke*", "--preferred")
    assert [row["partition"] for row in elected if row["result"] == "elected"] == moved
    for row in told(ask, "cluster", "partitions", "kept"):
        assert row["leader"] == row["replicas"][0]
