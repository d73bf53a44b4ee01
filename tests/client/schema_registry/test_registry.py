"""The connection to a schema registry: settings, errors, copies in other processes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest

from harness import order_schema as order
from harness.fake_registry import FakeRegistry
from harness.process.broker_process import HOST, free_port
from millstream.client.error import (
    RegistryError,
    RegistryUnavailable,
    SchemaNotFound,
    SerializationError,
    UsageError,
)
from millstream.client.schema_registry.registry import SchemaRegistry
from millstream.client.schema_registry.registry_format import RegistryAvroSerde
from millstream.client.serde_context import RecordContext

CONTEXT = RecordContext("orders", "value", [])
QUICK = {"max.retries": 0}


def test_schemas_by_id_and_subject(registry_url: str) -> None:
    written = RegistryAvroSerde(registry_url, order.AVRO).serialize(order.VALUE, CONTEXT)
    registry = SchemaRegistry(registry_url)
    number = int.from_bytes(written[1:5])
    found = registry.schema(number)
    assert found.kind == "AVRO"
    assert json.loads(found.text) == order.AVRO
    assert registry.latest("orders-value").text == found.text
    with pytest.raises(SchemaNotFound, match="the latest schema of subject 'bills-value'"):
        registry.latest("bills-value")


def test_a_schema_is_looked_up_once(fake_registry: FakeRegistry) -> None:
    RegistryAvroSerde(fake_registry.url, order.AVRO).serialize(order.VALUE, CONTEXT)
    registry = SchemaRegistry(fake_registry.url)
    before = len(fake_registry.requests)
    assert registry.schema(1) is registry.schema(1)
    assert len(fake_registry.requests) == before + 1


def test_a_copy_connects_by_itself(fake_registry: FakeRegistry) -> None:
    with SchemaRegistry(fake_registry.url, timeout=3.0, config=QUICK) as registry:
        copy = pickle.loads(pickle.dumps(registry))
    assert repr(copy) == f"<SchemaRegistry {fake_registry.url}>"
    assert copy.client.config()["timeout"] == 3.0
    RegistryAvroSerde(copy, order.AVRO).serialize(order.VALUE, CONTEXT)
    assert SchemaRegistry.of({"url": fake_registry.url}).latest("orders-value").kind == "AVRO"


def test_a_registry_that_cannot_be_reached() -> None:
    url = f"http://{HOST}:{free_port()}"
    registry = SchemaRegistry(url.replace("//", "//me:secret@"), config=QUICK)
    with pytest.raises(RegistryUnavailable, match="Check the URL") as caught:
        registry.schema(1)
    assert url in str(caught.value)
    assert "secret" not in str(caught.value)
    # A worker retries: nothing is wrong with the record.
    assert not isinstance(caught.value, SerializationError)


def test_a_registry_that_fails(fake_registry: FakeRegistry) -> None:
    registry = SchemaRegistry(fake_registry.url, config=QUICK)
    fake_registry.failing = 503
    with pytest.raises(RegistryUnavailable, match="failed with status 503"):
        registry.schema(1)
    fake_registry.failing = 400
    with pytest.raises(RegistryError, match="responded with status 400") as caught:
        registry.schema(1)
    assert (caught.value.status, caught.value.code) == (400, 40001)


def test_a_registry_in_this_process() -> None:
    for place in ("value", "headers"):
        serde = RegistryAvroSerde(SchemaRegistry("mock://"), order.AVRO, schema_id_in=place)
        context = RecordContext("orders", "value", [])
        assert serde.deserialize(serde.serialize(order.VALUE, context), context) == order.VALUE


def test_credentials() -> None:
    with FakeRegistry(username="me", password="secret") as fake:
        with pytest.raises(RegistryUnavailable, match="Check username and password"):
            SchemaRegistry(fake.url, username="me", password="wrong").latest("orders-value")
        with pytest.raises(SchemaNotFound):
            SchemaRegistry(fake.url, username="me", password="secret").latest("orders-value")


def test_wrong_settings() -> None:
    with pytest.raises(UsageError, match="Invalid url localhost"):
        SchemaRegistry("localhost:8081")
    with pytest.raises(UsageError, match="both username and password"):
        SchemaRegistry("http://localhost:8081", username="me")
    with pytest.raises(UsageError, match="has no option user"):
        SchemaRegistry("http://localhost:8081", user="me")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"settings .* are wrong"):
        SchemaRegistry("http://localhost:8081", ssl_cafile="/nowhere/ca.pem")
    with pytest.raises(UsageError, match="no 'url'"):
        SchemaRegistry.of({"username": "me"})


def test_without_the_extra_the_error_names_it() -> None:
    program = """
import sys
sys.modules["confluent_kafka.schema_registry"] = None
from millstream.client.schema_registry.registry_format import RegistryAvroSerde
try:
    RegistryAvroSerde("http://localhost:8081")
except Exception as error:
    print(type(error).__name__, error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "UsageError" in result.stdout, result.stderr
    assert "pip install 'millstream[schema-registry]'" in result.stdout


def test_nothing_is_imported_before_the_first_registry() -> None:
    program = """
import sys
import millstream.client
import millstream.client.schema_registry.registry_format
print(sorted(each for each in sys.modules if each.startswith("confluent_kafka.schema_registry")))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
