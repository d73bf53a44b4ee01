"""`millstream cluster`: inspect a cluster, and start one on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from harness.process.broker_process import free_port, wait_until
from harness.process.etcd_process import require_etcd
from millstream.cli.cluster.cluster import PartitionRow
from millstream.cli.cluster.cluster_up import _replication_settings, _split

if TYPE_CHECKING:
    from tests.cli.conftest import Run

#: For clients and for other members.
_PORTS_OF_ETCD = 2


def rows_of(run: Run, *arguments: str) -> list[dict[str, Any]]:
    outcome = run("cluster", *arguments, "--json")
    assert outcome.code == 0, outcome
    return list(json.loads(outcome.out))


def test_status_of_one_broker(ask: Run, topic: str) -> None:
    outcome = ask("cluster", "status")
    assert outcome.code == 0, outcome
    assert outcome.out.startswith("healthy\n")
    assert "1 alive" in outcome.out
    found = json.loads(ask("cluster", "status", "--json").out)
    assert found["healthy"]
    assert found["brokers"] == 1
    assert found["partitions"] >= 3
    (row,) = rows_of(ask, "brokers")
    assert row["leads"] == row["replicas"] == found["partitions"]
    assert row["out_of_sync"] == 0
    assert f"{row['host']}:{row['port']}" in ask("cluster", "brokers").out


def test_partitions_are_filtered_by_topic_broker_and_health(ask: Run, topic: str) -> None:
    rows = rows_of(ask, "partitions", topic)
    assert [(row["topic"], row["partition"]) for row in rows] == [(topic, n) for n in range(3)]
    leader = rows[0]["leader"]
    assert rows[0]["replicas"] == rows[0]["isr"] == [leader]
    assert rows_of(ask, "partitions", "?" + topic[1:], "--broker", str(leader)) == rows
    assert rows_of(ask, "partitions", topic, "--broker", "999") == []
    assert rows_of(ask, "partitions", topic, "--unhealthy") == []
    assert topic in ask("cluster", "partitions", topic).out
    assert "All partitions are healthy" in ask("cluster", "partitions", "--unhealthy").error


def test_an_election_that_is_not_needed(ask: Run, topic: str) -> None:
    unneeded = [{"topic": topic, "partition": n, "result": "not needed"} for n in range(3)]
    assert rows_of(ask, "elect", topic) == unneeded
    assert rows_of(ask, "elect", f"?{topic[1:]}", topic, "--preferred") == unneeded
    assert rows_of(ask, "elect", f"{topic}|nothing", "--regex", "-p", "2") == unneeded[2:]
    unclean = rows_of(ask, "elect", topic, "--partition", "1", "--unclean", "--yes")
    assert unclean == unneeded[1:2]
    everything = rows_of(ask, "elect", "--all-topics")
    assert [row for row in everything if row["topic"] == topic] == unneeded
    assert "3 partitions needed no election" in ask("cluster", "elect", topic).error


def test_elections_that_are_rejected(ask: Run, topic: str) -> None:
    unasked = ask("cluster", "elect", topic, "--unclean")
    assert unasked.code == 2, unasked
    assert "--yes" in unasked.error
    assert ask("cluster", "elect").code == 2
    assert ask("cluster", "elect", topic, "--all-topics").code == 2
    missing = ask("cluster", "elect", f"no-such-{topic}")
    assert (missing.code, "does not exist" in missing.error) == (3, True), missing
    assert "no topic matches" in ask("cluster", "elect", f"no-such-{topic}*").error
    assert ask("cluster", "elect", topic, "--partition", "99").code == 3


def test_an_unreachable_broker(run: Run) -> None:
    for command in ("status", "brokers", "partitions"):
        outcome = run("cluster", command, "-b", f"127.0.0.1:{free_port()}", "--timeout", "5")
        assert outcome.code == 4, outcome


def test_a_partition_row_knows_its_preferred_leader_and_replication() -> None:
    whole = PartitionRow("t", 0, 1, (1, 2), (2, 1))
    assert whole.is_led_by_preferred
    assert not whole.is_under_replicated
    assert not PartitionRow("t", 0, 2, (1, 2), (2,)).is_led_by_preferred
    assert PartitionRow("t", 0, None, (1, 2), (2,)).is_under_replicated


def test_replication_factors_depend_on_the_number_of_brokers() -> None:
    assert _replication_settings(2)["default.replication.factor"] == 2
    assert _replication_settings(3)["default.replication.factor"] == 3
    assert _replication_settings(5) == _replication_settings(3)


def test_racks_may_be_separated_by_commas() -> None:
    assert _split(["a,b", " c "]) == ["a", "b", "c"]


class Up:
    """`millstream cluster up` as a child process."""

    def __init__(self, folder: Path, brokers: int) -> None:
        self.port, self.http_port = free_port(brokers), free_port(brokers)
        self.etcd_port = free_port(_PORTS_OF_ETCD)
        self.output = folder / "up.out"
        self.arguments = ["--brokers", str(brokers), "--data", str(folder / "data")]
        self.arguments += ["--port", str(self.port), "--http-port", str(self.http_port)]
        self.arguments += ["--etcd-port", str(self.etcd_port), "--rack", "a,b"]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        program = str(Path(sys.executable).with_name("millstream"))
        kept = {name: text for name, text in os.environ.items() if "MILLSTREAM" not in name}
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                [program, "cluster", "up", *self.arguments],
                stdout=output,
                stderr=output,
                env={**kept, "COLUMNS": "200"},
            )
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, self.output.read_text()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)

    def wait_until_up(self, process: subprocess.Popen[bytes]) -> None:
        def is_up() -> bool:
            assert process.poll() is None, self.output.read_text()
            return "Clients connect to" in self.output.read_text()

        wait_until(is_up, "the cluster to be up", 90)

    def pids(self) -> dict[str, int]:
        words = [line.split() for line in self.output.read_text().splitlines()]
        return {
            row[0]: int(row[3]) for row in words if row and row[0].startswith(("broker-", "etcd-"))
        }


def test_up_starts_stops_and_restarts_with_its_data(run: Run, tmp_path: Path) -> None:
    require_etcd()
    up = Up(tmp_path, brokers=2)
    with up.running() as process:
        up.wait_until_up(process)
        rows = rows_of(run, "brokers", "-b", up.bootstrap)
        assert [(row["broker"], row["rack"]) for row in rows] == [(1, "a"), (2, "b")]
        assert [row["port"] for row in rows] == [up.port, up.port + 1]
        created = run("topic", "create", "kept", "-p", "4", "-b", up.bootstrap)
        assert created.code == 0, created
    pids = up.pids()
    assert set(pids) == {"etcd-1", "broker-1", "broker-2"}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    with up.running() as process:
        up.wait_until_up(process)
        rows = rows_of(run, "partitions", "kept", "-b", up.bootstrap)
        assert [len(row["replicas"]) for row in rows] == [2] * 4
        # The command reports a broker that dies, and the others continue.
        os.kill(up.pids()["broker-2"], signal.SIGKILL)
        wait_until(
            lambda: "broker-2 has ended (killed by SIGKILL)" in up.output.read_text(), "the report"
        )
        assert process.poll() is None
    assert "Traceback" not in up.output.read_text()


def test_up_secure_encrypts_and_authenticates(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_etcd()
    up = Up(tmp_path, brokers=2)
    up.arguments.append("--secure")
    security = tmp_path / "data" / "security"
    for _ in range(2):
        with up.running() as process:
            up.wait_until_up(process)
            outcome = run("cluster", "status", "-b", up.bootstrap, "--timeout", "3")
            assert outcome.code != 0, outcome
            with pytest.raises(HTTPError, match="401"):
                urlopen(f"http://127.0.0.1:{up.http_port}/metrics", timeout=10)
            with monkeypatch.context() as patch:
                patch.setenv("MILLSTREAM_PROFILE_FILE", str(security / "profiles.toml"))
                outcome = run("cluster", "status")
                assert outcome.code == 0, outcome
                created = run("topic", "create", "kept", "-p", "2", "--if-not-exists")
                assert created.code == 0, created
                rows = rows_of(run, "partitions", "kept")
                # The followers fetch, so they have logged in to their leaders.
                assert [len(row["isr"]) for row in rows] == [2, 2]
    assert (security / "users").stat().st_mode & 0o077 == 0
    password = (security / "users").read_text().splitlines()[0].partition(":")[2]
    logs = [path.read_text() for path in (tmp_path / "data").glob("*.log")]
    assert not any(password in text for text in (up.output.read_text(), *logs))


def test_up_prints_why_a_broker_does_not_start(tmp_path: Path) -> None:
    require_etcd()
    up = Up(tmp_path, brokers=1)
    up.arguments += ["--set", "num.partitions=none"]
    process = subprocess.run(
        [str(Path(sys.executable).with_name("millstream")), "cluster", "up", *up.arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 1
    assert "broker-1 ended while starting; " in process.stderr
    assert "num.partitions" in process.stderr
    assert not _listens(up.etcd_port)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("option", "offset"), [("--port", 2), ("--http-port", 0), ("--etcd-port", 1)]
)
def test_up_does_not_take_another_process_for_its_own(
    run: Run, tmp_path: Path, option: str, offset: int
) -> None:
    """A broker of the user may use the default ports already, and would look like a new one."""
    ports = {name: free_port(3) for name in ("--port", "--http-port", "--etcd-port")}
    given = [word for name, port in ports.items() for word in (name, str(port))]
    with socket.create_server(("127.0.0.1", ports[option] + offset)) as server:
        outcome = run("cluster", "up", "--data", str(tmp_path / "data"), *given)
        assert outcome.code == 1, outcome
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert f"another process listens on {address}" in outcome.error
        assert option in outcome.error
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("arguments", [("--brokers", "0"), ("--set", "x")])
def test_wrong_usage(run: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    outcome = run("cluster", "up", "--data", str(tmp_path), *arguments)
    assert outcome.code == 2, outcome


def test_up_rejects_data_of_an_etcd_of_another_size(run: Run, tmp_path: Path) -> None:
    require_etcd()
    up = Up(tmp_path, brokers=3)
    for number in (1, 2, 3):
        (tmp_path / "data" / f"etcd-{number}").mkdir(parents=True)
    outcome = run("cluster", "up", *up.arguments)
    assert outcome.code == 2, outcome
    assert "--etcd-members 3" in outcome.error
