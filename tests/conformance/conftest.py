"""The brokers under test and the clients that talk to them.

Every test runs on one broker and on three with three replicas of each topic, both started for the
session. `make test` runs each test on one broker or, where `ON_THREE` names it, on three. The soak
runs it on the others.
MILLSTREAM_CONFORMANCE_BOOTSTRAP names other brokers (host:port, separated by commas), so that the
same tests can run against Apache Kafka. Tests that need Maven Central or npm are skipped with the
reason that scripts/setup-test-tools recorded. Any other missing tool fails the tests.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from clients.aio import AiokafkaClient
from clients.confluent import ConfluentAdmin, ConfluentClient
from clients.contract import Admin, Client, DriverProcess
from clients.kafka_python import KafkaPythonAdmin, KafkaPythonClient
from clients.kcat import KcatClient
from clients.lines import JavaAdmin, JavaClient, KafkajsAdmin, KafkajsClient
from locations import CACHE, FOLDER, JARS, REPOSITORY

from harness.process.broker_process import KEEPS_OLD_RECORDS
from harness.process.brokers import ONE, THREE, started
from kafka_tools.runner import ToolRunner

# Maven Central and npm may be unreachable; Debian's and PyPI's packages must not be.
MAY_BE_MISSING = {"jars", "kafkajs"}
NEEDS = {"java": ("java", "jars"), "kafkajs": ("node", "kafkajs"), "kcat": ("kcat",)}
ELSEWHERE = os.environ.get("MILLSTREAM_CONFORMANCE_BOOTSTRAP")
#: Tests that `make test` runs on three brokers, and the soak on one. Every client writes and reads
#: every kind of record in every codec in the first of them; the admin clients do all that they can.
ON_THREE = {
    "test_written_by_one_read_by_another",
    "test_idempotence",
    "test_acks",
    "test_seek_by_time",
    "test_each_partition_has_its_own_records",
}
C = TypeVar("C", Client, Admin)

ADMIN_FILE = FOLDER / "test_admin.py"


@pytest.hookimpl(tryfirst=True)  # xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of the same brokers on one worker, except tests with a cluster of their own.
    Otherwise each worker would start brokers, a JVM and Node.js."""
    for item in items:
        if not item.path.is_relative_to(FOLDER) or item.get_closest_marker("xdist_group"):
            continue
        is_on_three = isinstance(item, pytest.Function) and _broker_count(item) == 3
        group = "conformance-cluster" if is_on_three else "conformance"
        item.add_marker(pytest.mark.xdist_group(group))
        if isinstance(item, pytest.Function) and _broker_count(item) in (1, 3):
            is_wanted_on_three = item.originalname in ON_THREE or item.path == ADMIN_FILE
            if is_on_three is not is_wanted_on_three:
                item.add_marker(pytest.mark.soak)


def _broker_count(item: pytest.Function) -> int | None:
    return item.callspec.params.get("bootstrap") if hasattr(item, "callspec") else None


@pytest.fixture(scope="session")
def require_tool() -> Callable[[str], None]:
    """Skip or fail the calling test if a tool is missing."""
    record = CACHE / "tools.json"
    if not record.exists():
        subprocess.run(
            [sys.executable, str(REPOSITORY / "scripts" / "setup-test-tools")], check=True
        )
    tools: dict[str, dict[str, Any]] = json.loads(record.read_text())

    def require(name: str) -> None:
        state = tools[name]
        if not state["available"]:
            end = pytest.skip if name in MAY_BE_MISSING else pytest.fail
            end(f"{name} is not available: {state['reason']}")

    return require


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolRunner]:
    """Kafka's tools, in one JVM for the tests of a file."""
    with ToolRunner(tmp_path_factory.mktemp("tools")) as runner:
        yield runner


@pytest.fixture(scope="session", params=[ELSEWHERE] if ELSEWHERE else [ONE, THREE])
def bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The addresses of the brokers under test."""
    if ELSEWHERE:
        yield ELSEWHERE
        return
    with started(tmp_path_factory.mktemp("brokers"), request.param, KEEPS_OLD_RECORDS) as brokers:
        yield brokers.bootstrap
        brokers.stop()
        brokers.check_logs()


@pytest.fixture(scope="session")
def java_process(
    bootstrap: str, require_tool: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DriverProcess]:
    flags = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"]
    command = ["java", *flags, str(FOLDER / "java" / "Driver.java"), bootstrap]
    process = DriverProcess(command, tmp_path_factory.mktemp("java") / "errors", dict(os.environ))
    yield process
    process.close()


@pytest.fixture(scope="session")
def node_process(
    bootstrap: str, require_tool: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DriverProcess]:
    environment = {**os.environ, "NODE_PATH": str(CACHE / "node" / "node_modules")}
    command = ["node", str(FOLDER / "node" / "driver.js"), bootstrap]
    process = DriverProcess(command, tmp_path_factory.mktemp("node") / "errors", environment)
    yield process
    process.close()


@contextmanager
def made_by_name(
    makers: Mapping[str, Callable[[], C]], require_tool: Callable[[str], None]
) -> Iterator[Callable[[str], C]]:
    """Yield a function that returns a client by name, which is created on first use."""
    made: dict[str, C] = {}

    def find(name: str) -> C:
        for tool in NEEDS.get(name, ()):
            require_tool(tool)
        if name not in made:
            made[name] = makers[name]()
        return made[name]

    yield find
    for client in made.values():
        client.close()


@pytest.fixture(scope="session")
def client_named(
    bootstrap: str, require_tool: Callable[[str], None], request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Client]]:
    """Return a client by name; it is created on first use."""
    makers: dict[str, Callable[[], Client]] = {
        "confluent": lambda: ConfluentClient(bootstrap),
        "aiokafka": lambda: AiokafkaClient(bootstrap),
        "kafka-python": lambda: KafkaPythonClient(bootstrap),
        "kcat": lambda: KcatClient(bootstrap),
        "java": lambda: JavaClient(request.getfixturevalue("java_process")),
        "kafkajs": lambda: KafkajsClient(request.getfixturevalue("node_process")),
    }
    with made_by_name(makers, require_tool) as find:
        yield find


@pytest.fixture
def client(request: pytest.FixtureRequest, client_named: Callable[[str], Client]) -> Client:
    return client_named(request.param)


@pytest.fixture(scope="session")
def admin_named(
    bootstrap: str, require_tool: Callable[[str], None], request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Admin]]:
    """Return an admin client by name; it is created on first use."""
    makers: dict[str, Callable[[], Admin]] = {
        "confluent": lambda: ConfluentAdmin(bootstrap),
        "kafka-python": lambda: KafkaPythonAdmin(bootstrap),
        "java": lambda: JavaAdmin(request.getfixturevalue("java_process")),
        "kafkajs": lambda: KafkajsAdmin(request.getfixturevalue("node_process")),
    }
    with made_by_name(makers, require_tool) as find:
        yield find


@pytest.fixture
def admin(request: pytest.FixtureRequest, admin_named: Callable[[str], Admin]) -> Admin:
    return admin_named(request.param)


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[], str]:
    """Return topic names that no other test, worker or run has used."""
    numbers = itertools.count()
    return lambda: f"conformance-{os.getpid()}-{next(numbers)}"


@pytest.fixture(scope="session")
def new_topic(bootstrap: str, fresh_name: Callable[[], str]) -> Callable[..., str]:
    """Create a topic that keeps records of any age and accepts large ones; return its name."""
    admin = ConfluentAdmin(bootstrap)

    def create(partitions: int = 1, **configs: str) -> str:
        name = fresh_name()
        defaults = {"retention.ms": "-1", "max.message.bytes": str(8 << 20)}
        given = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topic(name, partitions, {**defaults, **given})
        return name

    return create
