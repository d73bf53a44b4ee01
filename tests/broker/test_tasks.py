"""Every background task raises once, on live brokers: the task is restarted, and nothing else is
affected."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import millstream
from harness.in_process.server_set import HOST, ServerSet
from harness.process.broker_process import wait_until
from harness.process.tls_process import TlsHome
from harness.raw.raw_client import RawClient, records_of, values_batch
from millstream.broker.lifecycle import membership
from millstream.env.supervisor import Policy, SupervisedTask
from millstream.metadata.cluster_record import BrokerRecord
from millstream.model.error import ErrorCode
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest

SOURCE: Final = Path(millstream.__file__).parent
#: The packages of a broker's code.
PACKAGES: Final = (
    "broker",
    "controller",
    "coordination",
    "groups",
    "log",
    "metadata",
    "net",
    "replication",
    "transactions",
)
PARTITIONS: Final = 3
CLUSTER: Final = 3

#: Tasks that run on every broker of these tests.
EVERYWHERE: Final = {
    "audit-writer",
    "broker-registration",
    "controller",
    "file-removal",
    "group-loader",
    "high-watermark-checkpoint",
    "isr-review",
    "log-cleaner",
    "log-flush",
    "log-retention",
    "log-start-checkpoint",
    "metadata-follower",
    "offset-expiry",
    "producer-expiry",
    "recovery-point-checkpoint",
    "transaction-loader",
    "transactional-id-expiry",
}
#: Tasks of brokers that serve metrics, and of brokers that do not.
WITH_HTTP: Final = {"client-metrics-expiry", "group-lag"}
WITHOUT_HTTP: Final = {"partition-growth"}
#: Tasks of brokers with a listener for SASL and delegation tokens.
WITH_TOKENS: Final = {"token-expiry"}
#: Tasks of brokers with TLS.
WITH_TLS: Final = {"tls"}
#: Tasks of brokers in a cluster.
IN_A_CLUSTER: Final = {"broker-probe", "replica-fetcher"}
#: Tasks that end by themselves, and the file with the test of their failure.
FINITE: Final = {
    "broker-expulsion": "test_tasks.py",
    "broker-link": "test_peer_link.py",
    "etcd-nudge": "test_etcd_store.py",
    "isr-change": "test_isr_change.py",
    "joint-updates": "test_joint_update.py",
}


class InjectedError(Exception):
    pass


class Brokers:
    """Brokers with a topic on all of them, a client of each, and committed offsets of a group."""

    def __init__(self, brokers: ServerSet, count: int) -> None:
        self._brokers = brokers
        self.numbers = range(1, count + 1)
        self._clients = {number: brokers.client(number) for number in self.numbers}
        self._written = 0
        client = self._clients[1]
        client.create_topic("t", PARTITIONS, replication_factor=count)
        client.create_topic("compacted", 1, {"cleanup.policy": "compact"}, count)
        wait_until(
            lambda: all(self._leader("t", each) in self.numbers for each in range(PARTITIONS)),
            "leaders",
        )
        wait_until(self._commits, "the coordinator")
        wait_until(lambda: all(map(self._is_whole, range(PARTITIONS))), "all in sync")

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _leader(self, topic: str, number: int) -> int:
        return self._brokers.record(topic, number).leader

    def _is_whole(self, number: int) -> bool:
        record = self._brokers.record("t", number)
        return set(record.isr) == set(record.replicas)

    def _commits(self) -> bool:
        find = FindCoordinatorRequest(coordinator_keys=["g"])
        (found,) = self._clients[1].call(find).coordinators
        if found.error_code:
            return False
        row = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=0)
        topic = OffsetCommitRequest.Topic(name="t", partitions=[row])
        request = OffsetCommitRequest(group_id="g", topics=[topic])
        (topic,) = self._clients[found.node_id].call(request, 9).topics
        return topic.partitions[0].error_code == ErrorCode.NONE

    def use(self) -> None:
        """Write to every partition on all replicas, read it back, and commit an offset."""
        self._written += 1
        value = b"%d" % self._written
        for number in range(PARTITIONS):
            client: RawClient = self._clients[self._leader("t", number)]
            row = client.produce("t", values_batch(value), number)
            assert (row.error_code, row.base_offset) == (0, self._written - 1)
            fetched = client.fetch("t", row.base_offset, number)
            assert [each.value for each in records_of(fetched.records)] == [value]
        assert self._commits()

    # Tasks

    def tasks(self, number: int) -> list[SupervisedTask]:
        return self._brokers.ask(lambda: self._brokers.supervisors[number].tasks)

    def failures(self) -> dict[tuple[int, str], int]:
        """Return the number of failures of each task on each broker, without zeros."""

        def look() -> dict[tuple[int, str], int]:
            return {
                (number, name): count
                for number in self.numbers
                for name, count in self._brokers.supervisors[number].failures.items()
                if count
            }

        return self._brokers.ask(look)

    def interrupt(self, number: int, task: SupervisedTask) -> None:
        """Make a task raise, and return when it has."""
        supervisor = self._brokers.supervisors[number]
        before = self.failures().get((number, task.name), 0)
        error = InjectedError(f"in {task}")
        self._brokers.ask(lambda: supervisor.interrupt(task, error))
        wait_until(
            lambda: self.failures().get((number, task.name), 0) == before + 1, f"{task} to raise"
        )

    def find_dead(self, number: int, broker: BrokerRecord) -> None:
        """Report to one broker that the process of another is dead."""
        joined = self._brokers.servers[number]._membership
        assert joined is not None
        self._brokers.ask(lambda: joined._on_dead(broker))

    def is_well(self, number: int) -> bool:
        return not self._brokers.ask(lambda: self._brokers.servers[number].failed.done())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with ServerSet(
        tmp_path_factory.mktemp("cluster"),
        CLUSTER,
        audit_enable="true",
        log_cleaner_enable="true",
        metrics_lag_interval_ms="100",
    ) as servers:
        brokers = Brokers(servers, CLUSTER)
        yield brokers
        brokers.close()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    tls = TlsHome(tmp_path_factory.mktemp("tls"))
    with ServerSet(
        tmp_path_factory.mktemp("one"),
        1,
        ssl_keystore_location=f"{tls.folder}/broker.pem",
        http_listen=f"{HOST}:0",
        listeners=f"PLAINTEXT://{HOST}:0,SECURE://{HOST}:0,SSL://{HOST}:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,SECURE:SASL_PLAINTEXT,SSL:SSL",
        delegation_token_secret_key="key",
        cluster_settle_ms="0",
        audit_enable="true",
        log_cleaner_enable="true",
        metrics_lag_interval_ms="100",
    ) as servers:
        brokers = Brokers(servers, 1)
        yield brokers
        brokers.close()


def check_each_task(brokers: Brokers) -> None:
    brokers.use()
    interrupted: list[SupervisedTask] = []
    expected: dict[tuple[int, str], int] = {}
    for number in brokers.numbers:
        for task in brokers.tasks(number):
            if task.policy is not Policy.RESTART or task.name in FINITE:
                continue
            brokers.interrupt(number, task)
            key = (number, task.name)
            expected[key] = expected.get(key, 0) + 1
            brokers.use()
            interrupted.append(task)
    wait_until(
        lambda: all(task.runs == 2 and not task.is_pausing for task in interrupted),
        "all tasks to run again",
    )
    assert not any(task.is_done for task in interrupted)
    assert brokers.failures() == expected
    assert all(map(brokers.is_well, brokers.numbers))
    brokers.use()


def names(brokers: Brokers) -> set[str]:
    return {task.name for number in brokers.numbers for task in brokers.tasks(number)} - set(FINITE)


def test_each_task_of_a_single_broker_is_restarted(one: Brokers) -> None:
    assert names(one) == EVERYWHERE | WITH_HTTP | WITH_TOKENS | WITH_TLS
    check_each_task(one)


def test_each_task_of_a_cluster_is_restarted(cluster: Brokers) -> None:
    assert names(cluster) == EVERYWHERE | WITHOUT_HTTP | IN_A_CLUSTER
    check_each_task(cluster)


@pytest.mark.parametrize("name", ["metadata-follower", "broker-registration"])
def test_a_task_that_cannot_be_restarted_shuts_its_broker_down(tmp_path: Path, name: str) -> None:
    with ServerSet(tmp_path, CLUSTER) as servers:
        brokers = Brokers(servers, CLUSTER)
        (task,) = [each for each in brokers.tasks(3) if each.name == name]
        assert task.policy is Policy.STOP
        brokers.interrupt(3, task)
        wait_until(lambda: not brokers.is_well(3), "the broker to give up")
        assert [brokers.is_well(number) for number in (1, 2)] == [True, True]
        brokers._clients.pop(3).close()
        data = servers.services(3).directory.storage.path
        servers.stop(3)
        assert (data / ".kafka_cleanshutdown").exists()
        wait_until(
            lambda: all(servers.record("t", each).leader in (1, 2) for each in range(PARTITIONS)),
            "others to lead",
        )
        wait_until(brokers._commits, "another coordinator")
        brokers.use()
        assert brokers.failures() == {(3, name): 1}
        servers.start(3)
        wait_until(lambda: all(map(brokers._is_whole, range(PARTITIONS))), "all in sync")
        brokers.close()


def test_an_expulsion_that_raises_leaves_the_broker_to_its_lease(
    cluster: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise InjectedError("in an expulsion")

    monkeypatch.setattr(membership, "expel", fail)
    before = cluster.failures()
    cluster.find_dead(1, BrokerRecord(node_id=99, endpoints=()))
    expected = {**before, (1, "broker-expulsion"): 1}
    wait_until(lambda: cluster.failures() == expected, "the expulsion to raise")
    cluster.use()
    assert all(map(cluster.is_well, cluster.numbers))


# Rules of the source code

#: Functions that make a task.
MAKERS: Final = {"create_task", "ensure_future", "TaskGroup", "run_coroutine_threadsafe"}
#: Modules whose tasks belong to a request or a caller, which gets their failures.
OWNED: Final = {
    "broker/login/raw_login.py": "of one login: a failure ends its connection",
    "broker/metrics/http.py": "a scrape waits for it",
    "broker/process.py": "the process waits for it",
    "broker/session.py": "of one request: a failure ends its connection",
}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute):
                yield called.attr, node
            elif isinstance(called, ast.Name):
                yield called.id, node


def sources() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((SOURCE / package).rglob("*.py")):
            yield path.relative_to(SOURCE).as_posix(), path


def test_only_the_supervisor_makes_tasks() -> None:
    makers = {name for name, path in sources() if any(call in MAKERS for call, _ in calls(path))}
    assert makers == set(OWNED), "start tasks by `Supervisor.start`"


def test_every_task_is_made_to_raise_by_a_test() -> None:
    """A new task must run on the brokers above, or be finite and have a test of its own."""
    started = {
        argument.value
        for _, path in sources()
        for call, node in calls(path)
        if call == "start" and "upervisor" in ast.unparse(node.func)
        for argument in node.args[:1]
        if isinstance(argument, ast.Constant)
    }
    met = EVERYWHERE | WITH_HTTP | WITHOUT_HTTP | WITH_TOKENS | WITH_TLS | IN_A_CLUSTER
    assert started <= met | set(FINITE)
    assert set(FINITE) <= started
    tests = SOURCE.parents[1] / "tests"
    for name, file in FINITE.items():
        (path,) = tests.rglob(file)
        assert f'"{name}"' in path.read_text(), f"{file} has no test of {name}"
