"""The page that makes an open cluster secure, followed on a cluster whose clients work throughout.

The settings and the commands are those of the page; only names of hosts and files are replaced.
"""

from __future__ import annotations

import json
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from typer.testing import CliRunner

from docs.documents import REPOSITORY, Block, blocks
from harness.process.broker_process import HOST, BrokerProcess, free_port, wait_until
from harness.process.process_cluster import ProcessCluster
from harness.raw.raw_client import RawClient
from millstream import Admin, Consumer, MillstreamError, Producer
from millstream.cli.main import build
from millstream.process.readiness import responds
from millstream.security.local_authority import LocalAuthority

PAGE = REPOSITORY / "docs" / "how-to" / "open-to-secure.md"
TOPIC, GROUP = "orders", "billing"
PASSWORDS = {"admin": "admin-secret", "broker": "broker-secret", "app": "app-secret"}
OPEN, SECURE = "PLAINTEXT", "SASL_SSL"
COUNT = 2


class Page:
    """The blocks of settings, in order, and the commands."""

    def __init__(self, folder: Path) -> None:
        found = blocks(PAGE)
        self._folder = folder
        self.settings = [self._parse(each) for each in found if each.language == "toml"]
        self.commands = [
            line.partition("#")[0].split()[1:]
            for each in found
            if each.language == "bash"
            for line in each.code.splitlines()
        ]

    def _parse(self, block: Block) -> dict[str, Any]:
        code = block.code.replace("/etc/millstream", str(self._folder))
        code = code.replace('password="..."', f'password="{PASSWORDS["broker"]}"')
        return dict(_flat(tomllib.loads(code)))


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


class Migration:
    """A cluster whose brokers are restarted one by one with more settings."""

    def __init__(self, cluster: ProcessCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._settings: dict[str, Any] = {}
        self._ports = {broker.port: {OPEN: broker.port, SECURE: free_port()} for broker in cluster}
        authority = LocalAuthority.open_or_create(folder)
        authority.issue("broker", hosts=(HOST,), days=2)
        (folder / "users").write_text("admin:admin-secret\nbroker:broker-secret\n")
        (folder / "http.token").write_text("http-secret")

    def servers(self, protocol: str) -> str:
        return ",".join(f"{HOST}:{ports[protocol]}" for ports in self._ports.values())

    def security(self, user: str) -> dict[str, str]:
        """Return the keywords with which a user connects to the secure listener."""
        return {
            "bootstrap_servers": self.servers(SECURE),
            "security_protocol": SECURE,
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": user,
            "sasl_password": PASSWORDS[user],
            "ssl_cafile": str(self._folder / "ca.pem"),
        }

    def restart_with(self, more: dict[str, Any]) -> None:
        """Restart the brokers one after the other, each once the one before it is in sync."""
        self._settings |= more
        for broker in self._cluster:
            self._configure(broker)
            broker.stop()
            broker.start()
            address = f"{broker.http_url}/readyz/in-sync"
            wait_until(lambda url=address, token=broker.http_token: responds(url, token), address)  # type: ignore[misc]

    def _configure(self, broker: BrokerProcess) -> None:
        settings = dict(self._settings)
        ports = self._ports[broker.port]
        names = [each.partition("://")[0] for each in settings.pop("listeners")]
        broker.listeners = [f"{name}://{HOST}:{ports[name]}" for name in names]
        if "http.bearer.token.file" in settings:
            broker.http_token = "http-secret"
        file = broker.data.parent / "broker.toml"
        file.write_text("".join(f"{name!r} = {json.dumps(settings[name])}\n" for name in settings))
        broker.config_file = file


class Traffic:
    """A client that produces and consumes without a pause. It may move to another listener."""

    def __init__(self) -> None:
        self._is_stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[Exception] = []
        self.sent: list[str] = []
        self.received: list[str] = []

    def start(self, **options: Any) -> Self:
        self._is_stopped.clear()
        self._threads = [
            threading.Thread(target=self._run, args=(run, options))
            for run in (self._produce, self._consume)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        self._is_stopped.set()
        for thread in self._threads:
            thread.join()
        self.check()

    def check(self) -> None:
        assert not self._failures

    def wait_for_more(self) -> None:
        """Return once records that are sent from now on have arrived."""
        last = len(self.sent) + 1

        def has_arrived() -> bool:
            self.check()
            return len(self.sent) >= last and self.sent[last - 1] in self.received

        wait_until(has_arrived, "records to arrive")

    def _run(self, run: Any, options: dict[str, Any]) -> None:
        try:
            run(options)
        except MillstreamError as error:
            self._failures.append(error)

    def _produce(self, options: dict[str, Any]) -> None:
        with Producer(**options) as producer:
            while not self._is_stopped.wait(0.02):
                value = str(len(self.sent))
                producer.send_and_wait(TOPIC, value)
                self.sent.append(value)

    def _consume(self, options: dict[str, Any]) -> None:
        with Consumer(
            topics=[TOPIC], group_id=GROUP, auto_offset_reset="earliest", **options
        ) as consumer:
            while not self._is_stopped.is_set():
                for record in consumer.poll(timeout=0.2):
                    assert record.value is not None
                    self.received.append(record.value.decode())


def run(command: list[str], security: dict[str, str], *more: str) -> str:
    """Run a command of the page as `admin`."""
    properties = {
        "security.protocol": security["security_protocol"],
        "sasl.mechanism": security["sasl_mechanism"],
        "sasl.username": security["sasl_username"],
        "sasl.password": security["sasl_password"],
        "ssl.ca.location": security["ssl_cafile"],
    }
    given = [word for name, text in properties.items() for word in ("-X", f"{name}={text}")]
    where = ["-b", security["bootstrap_servers"]]
    outcome = CliRunner().invoke(build(["acl"]), [*command, *where, *given, *more])
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def stored_values(count: int, options: dict[str, str]) -> list[str]:
    """Return the values of the topic, of which there are at least `count`, as they were sent."""
    found: list[str] = []
    with Consumer(topics=[TOPIC], auto_offset_reset="earliest", **options) as consumer:
        while len(found) < count:
            records = consumer.poll(timeout=30)
            assert records, f"only {len(found)} of {count} records are in the topic"
            found += [str(record.value, "utf-8") for record in records]
    return sorted(found, key=int)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    settings = {
        "default.replication.factor": COUNT,
        "offsets.topic.replication.factor": COUNT,
        "transaction.state.log.replication.factor": COUNT,
        "offsets.topic.num.partitions": 1,
        "min.insync.replicas": 1,
    }
    with ProcessCluster(tmp_path, COUNT, settings) as started:
        started.create_topic(TOPIC, 2)
        yield started


def test_an_open_cluster_becomes_secure_while_clients_work(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    page = Page(tmp_path / "security")
    listeners, learn, broker_listener, enforce = page.settings
    migration = Migration(cluster, tmp_path / "security")
    traffic = Traffic().start(bootstrap_servers=cluster.bootstrap)
    traffic.wait_for_more()

    migration.restart_with(listeners)
    traffic.wait_for_more()

    migration.restart_with(learn)
    traffic.wait_for_more()
    admin, own = migration.security("admin"), migration.security("app")
    with Admin(**admin) as client:
        client.create_user("app", PASSWORDS["app"])
    traffic.stop()
    traffic.start(**own)
    traffic.wait_for_more()
    show, apply = page.commands
    shown = json.loads(run(show, admin, "--json"))
    assert shown["learning"]
    assert {"User:app", "User:ANONYMOUS"} <= {row["principal"] for row in shown["acls"]}
    run(apply, admin, "--yes")
    with Admin(**admin) as client:
        assert {acl.principal for acl in client.list_acls()} == {"User:app"}

    migration.restart_with(broker_listener)
    migration.restart_with(enforce)
    traffic.wait_for_more()
    with (
        pytest.raises(MillstreamError, match="TOPIC_AUTHORIZATION_FAILED"),
        Producer(migration.servers(OPEN)) as anonymous,
    ):
        anonymous.send_and_wait(TOPIC, "intruder")

    migration.restart_with({"listeners": [f"{SECURE}://:9093"]})
    traffic.wait_for_more()
    traffic.stop()
    for broker in cluster:
        with pytest.raises(ConnectionRefusedError), RawClient(HOST, broker.port):
            pass
    assert stored_values(len(traffic.sent), admin) == traffic.sent
