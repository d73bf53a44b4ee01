"""Kafka's tools for the cluster itself: features, the quorum, brokers, ACLs. On one broker, whose
metadata is in SQLite, and on three with an etcd.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.process.process_cluster import ProcessCluster
from kafka_tools.runner import ToolRunner

pytestmark = pytest.mark.xdist_group("cluster-tools")

TOOLS = "org.apache.kafka.tools."

#: `tool(CLASS, arguments...)` returns exit code and output. BOOTSTRAP is the brokers' address.
Tool = Callable[..., tuple[int, str]]
BOOTSTRAP = "BOOTSTRAP"
SERVER = ("--bootstrap-server", BOOTSTRAP)


class Place:
    """Brokers under test."""

    def __init__(self, bootstrap: str, cluster: ProcessCluster | None) -> None:
        self.bootstrap = bootstrap
        self.cluster = cluster

    @property
    def ids(self) -> list[int]:
        return [1] if self.cluster is None else [1, 2, 3]


#: On one broker `kafka_tools/test_parity.py` runs the same tools in `make test`.
@pytest.fixture(scope="module", params=[pytest.param("one", marks=pytest.mark.soak), "three"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder: Path = tmp_path_factory.mktemp("tools")
    if request.param == "one":
        with BrokerProcess(folder) as broker:
            yield Place(broker.bootstrap, None)
    else:
        with ProcessCluster(folder) as cluster:
            cluster.create_topic("t", 3)
            yield Place(cluster.bootstrap, cluster)


@pytest.fixture
def tool(place: Place, tools: ToolRunner) -> Tool:
    def run(name: str, *arguments: str) -> tuple[int, str]:
        given = [place.bootstrap if each == BOOTSTRAP else each for each in arguments]
        done = tools.run(TOOLS + name, *given)
        return done.exit, done.out + done.err

    return run


def test_features(tool: Tool) -> None:
    def features(*arguments: str) -> tuple[int, str]:
        return tool("FeatureCommand", *SERVER, *arguments)

    def levels() -> dict[str, tuple[int, int, int]]:
        code, text = features("describe")
        assert code == 0, text
        row = re.compile(
            r"Feature: (\S+)\s+SupportedMinVersion: (\d+)\s+SupportedMaxVersion: (\d+)\s+"
            r"FinalizedVersionLevel: (\d+)"
        )
        return {name: (int(a), int(b), int(c)) for name, a, b, c in row.findall(text)}

    before = {"group.version": (0, 1, 1), "transaction.version": (0, 2, 2)}
    assert levels() == before
    lower = ("--feature", "transaction.version=1")
    assert features("downgrade", *lower, "--dry-run") == (
        0,
        "transaction.version can be downgraded to 1.\n",
    )
    assert levels() == before
    code, text = features("upgrade", *lower)
    assert (code, "Could not upgrade transaction.version to 1." in text) == (1, True), text
    assert features("downgrade", *lower) == (0, "transaction.version was downgraded to 1.\n")
    assert features("disable", "--feature", "group.version") == (0, "group.version was disabled.\n")
    wait_until(lambda: levels()["group.version"] == (0, 1, 0), "the level on every broker")
    assert levels()["transaction.version"] == (0, 2, 1)
    code, text = features("upgrade", "--feature", "metadata.version=30")
    assert (code, "group.version, transaction.version" in text) == (1, True), text
    both = ("--feature", "group.version=1", "--feature", "transaction.version=2")
    assert features("upgrade", *both)[0] == 0
    wait_until(lambda: levels() == before, "the levels on every broker")


def test_quorum(place: Place, tool: Tool) -> None:
    code, text = tool("MetadataQuorumCommand", *SERVER, "describe", "--status")
    assert code == 0, text
    found = dict(re.findall(r"^(\w+):\s+(.*)$", text, re.MULTILINE))
    assert int(found["LeaderId"]) in place.ids
    assert 0 < int(found["LeaderEpoch"]) <= int(found["HighWatermark"])
    assert found["MaxFollowerLag"] == "0"
    voters = re.findall(r'"id": (\d+)', found["CurrentVoters"])
    observers = re.findall(r'"id": (\d+)', found["CurrentObservers"])
    assert voters == [found["LeaderId"]]
    assert sorted(map(int, voters + observers)) == place.ids
    code, text = tool("MetadataQuorumCommand", *SERVER, "describe", "--replication")
    assert code == 0, text
    rows = [line.split() for line in text.splitlines()[1:]]
    assert sorted((row[-1], row[0]) for row in rows) == sorted(
        [("Leader", voters[0]), *(("Observer", each) for each in observers)]
    )
    assert all(0 <= int(row[3]) <= int(row[2]) for row in rows), text


def test_the_cluster_and_its_brokers(place: Place, tool: Tool) -> None:
    code, text = tool("ClusterTool", "cluster-id", *SERVER)
    assert code == 0, text
    assert re.fullmatch(r"Cluster ID: \S{22}\n", text)
    for extra in ((), ("--include-fenced-brokers",)):
        code, text = tool("ClusterTool", "list-endpoints", *SERVER, *extra)
        assert code == 0, text
        rows = [line.split() for line in text.splitlines()[1:]]
        assert sorted(int(row[0]) for row in rows) == place.ids
        assert {tuple(row[4:]) for row in rows} == {("unfenced", "broker")}


def test_unregistering(place: Place, tool: Tool) -> None:
    def unregister(broker_id: int) -> tuple[int, str]:
        return tool("ClusterTool", "unregister", *SERVER, "--id", str(broker_id))

    code, text = unregister(9)
    assert (code, "BrokerIdNotRegisteredException" in text) == (1, True), text
    if place.cluster is None:
        code, text = unregister(1)
        assert (code, "the only live one" in text) == (1, True), text
        return
    assert unregister(3) == (0, "Broker 3 is no longer registered.\n")
    _, text = tool("ClusterTool", "list-endpoints", *SERVER)
    assert sorted(line.split()[0] for line in text.splitlines()[1:]) == ["1", "2"]
    place.cluster[3].stop()
    place.cluster[3].start()


def test_acls(tool: Tool) -> None:
    rule = ("--allow-principal", "User:a", "--operation", "READ", "--topic", "t")
    for arguments in (("--list",), ("--add", *rule), ("--remove", "--force", *rule)):
        code, text = tool("AclCommand", *SERVER, *arguments)
        assert code == 1, text
        assert "SecurityDisabledException: No Authorizer is configured." in text


def test_delegation_tokens_need_authentication(tool: Tool) -> None:
    tokens = ("--describe", "--command-config", "/dev/null")
    code, text = tool("DelegationTokenCommand", *SERVER, *tokens)
    assert (code, "UnsupportedByAuthenticationException" in text) == (1, True), text
