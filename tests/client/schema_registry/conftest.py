"""The registries that the contract tests run with: one in this process, and Apicurio Registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from harness.fake_registry import FakeRegistry
from harness.process.registry_process import RegistryProcess, require_registry


@pytest.fixture(scope="session")
def apicurio_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of Apicurio Registry, which has no GUIDs."""
    require_registry()
    with RegistryProcess(tmp_path_factory.mktemp("registry")) as process:
        yield process.url


@pytest.fixture(scope="session", params=["fake", "apicurio"])
def registry_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a registry. Each test that uses it runs with both."""
    if request.param == "apicurio":
        yield request.getfixturevalue("apicurio_url")
    else:
        with FakeRegistry() as fake:
            yield fake.url


@pytest.fixture
def client(registry_url: str) -> Iterator[SchemaRegistryClient]:
    """confluent-kafka's own client."""
    with closing(SchemaRegistryClient({"url": registry_url})) as made:
        yield made


@pytest.fixture
def fake_registry() -> Iterator[FakeRegistry]:
    """A registry of this process with no schemas, which can be made to fail."""
    with FakeRegistry() as fake:
        yield fake
