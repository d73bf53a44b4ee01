"""One JVM for all of Kafka's tools, and the brokers that they run against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.process.brokers import ONE, QUICK_GROUPS, THREE, Brokers, started
from harness.tool.java import require_java
from kafka_tools.runner import ToolRunner


# Only as long as tests of this folder run: threads that tools leave behind cost time.
@pytest.fixture(scope="package")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolRunner]:
    with ToolRunner(tmp_path_factory.mktemp("tools")) as runner:
        yield runner


@pytest.fixture(scope="package", params=[ONE, THREE])
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brokers]:
    require_java("jars")
    with started(tmp_path_factory.mktemp("brokers"), request.param, QUICK_GROUPS) as brokers:
        yield brokers
        brokers.stop()
        brokers.check_logs()
