"""One Spark session and one broker for all tests of this folder, because a JVM starts slowly."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.testing.broker import LocalBroker
from spark.sink.step_hook import FOLDER_VARIABLE, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDER = Path(__file__).parent
_CACHE = _FOLDER.parent.parent / ".cache"
#: Spark's own Kafka connector; empty if it could not be downloaded.
_CONNECTOR = sorted(map(str, (_CACHE / "spark-connector").glob("*.jar")))
_numbers = count(1)

#: Small, for a machine with two cores.
_CONFIG = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}

#: Retention is off, because records have old timestamps. Compaction runs soon.
_BROKER = {
    "log.cleaner.backoff.ms": 20,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "log.initial.task.delay.ms": 100,
    "log.retention.ms": -1,
}


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests that use the session in one xdist worker."""
    for item in items:
        if _FOLDER in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from millstream.spark.session import spark_session

    folder = tmp_path_factory.mktemp("spark")
    faults = folder / "faults"
    faults.mkdir()
    config = _CONFIG | {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.jars": ",".join(_CONNECTOR),
    }
    with pytest.MonkeyPatch.context() as patch:
        # The JVM keeps the environment that it starts with, and so do the processes it starts.
        for name, value in environment(faults).items():
            patch.setenv(name, value)
        session = spark_session("millstream-tests", master="local[2]", config=config)
        yield session
    session.stop()


@pytest.fixture
def faults(spark: SparkSession) -> Path:
    """The folder whose files name the steps at which the sink is killed: see `step_hook`."""
    return Path(os.environ[FOLDER_VARIABLE])


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Steps of the sink at which `Killed` is raised in this process, each once."""
    from spark.sink.direct_query import Killed
    from spark.sink.step_hook import hook_steps

    armed: set[str] = set()

    def reach(step: str) -> None:
        if step in armed:
            armed.remove(step)
            raise Killed(step)

    hook_steps(reach, monkeypatch.setattr)
    yield armed
    assert not armed, f"never reached: {armed}"


@pytest.fixture(scope="session")
def jvm_connector() -> None:
    """Skip tests of `format("kafka")` if the connector could not be downloaded."""
    if not _CONNECTOR:
        record = _CACHE / "tools.json"
        tools = json.loads(record.read_text()) if record.exists() else {}
        reason = tools.get("spark-connector", {}).get("reason") or "run scripts/setup-test-tools"
        pytest.skip(f"Spark's Kafka connector is not available: {reason}")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """The broker that these tests share. Each test uses its own topics."""
    with LocalBroker(tmp_path_factory.mktemp("broker"), _BROKER) as running:
        yield running


@pytest.fixture
def topic_name() -> str:
    """A topic name that no other test uses."""
    return f"topic-{next(_numbers)}"
