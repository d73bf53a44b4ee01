"""Loading of schemas, which keeps requests to the registry off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from harness import order_schema as order
from harness.fake_registry import FakeRegistry
from millstream.client.error import RegistryUnavailable, SerializationError
from millstream.client.schema_registry import registry_serde
from millstream.client.schema_registry.registry import SchemaRegistry
from millstream.client.schema_registry.registry_format import RegistryAvroSerde
from millstream.client.serde_context import LoadingSerde, RecordContext

CONTEXT = RecordContext("orders", "value", [])
OTHER = RecordContext("bills", "value", [])


def test_a_serializer_is_loaded_after_the_first_value(fake_registry: FakeRegistry) -> None:
    serde = RegistryAvroSerde(fake_registry.url, order.AVRO)
    assert isinstance(serde, LoadingSerde)
    assert not serde.is_loaded(CONTEXT)
    serde.serialize(order.VALUE, CONTEXT)
    assert serde.is_loaded(CONTEXT)
    assert not serde.is_loaded(OTHER)
    before = len(fake_registry.requests)
    serde.serialize(order.VALUE, CONTEXT)
    assert len(fake_registry.requests) == before


def test_a_latest_version_that_expires_is_never_loaded(fake_registry: FakeRegistry) -> None:
    registry = SchemaRegistry(fake_registry.url, config={"cache.latest.ttl.sec": 60})
    serde = RegistryAvroSerde(registry, order.AVRO)
    serde.serialize(order.VALUE, CONTEXT)
    assert not serde.is_loaded(CONTEXT)


def on_event_loop(call: Callable[[], Any]) -> Any:
    """Return the result of a function that is called on an event loop."""

    async def main() -> Any:
        return call()

    return asyncio.run(main())


def test_loading_asks_once_for_each_schema(fake_registry: FakeRegistry) -> None:
    written = RegistryAvroSerde(fake_registry.url, order.AVRO).serialize(order.VALUE, CONTEXT)
    serde = RegistryAvroSerde(fake_registry.url)
    before = len(fake_registry.requests)
    serde.load(written, CONTEXT)
    serde.load(written, CONTEXT)
    assert on_event_loop(lambda: serde.deserialize(written, CONTEXT)) == order.VALUE
    assert len(fake_registry.requests) == before + 1


def test_the_error_of_loading_is_raised_without_a_request(
    fake_registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = RegistryAvroSerde(fake_registry.url, order.AVRO).serialize(order.VALUE, CONTEXT)
    registry = SchemaRegistry(fake_registry.url, config={"max.retries": 0})
    serde = RegistryAvroSerde(registry)
    monkeypatch.setattr(registry_serde, "_RETRY_S", 600.0)
    fake_registry.failing = 503
    serde.load(written, CONTEXT)
    before = len(fake_registry.requests)
    serde.load(written, CONTEXT)
    with pytest.raises(RegistryUnavailable, match="503"):
        on_event_loop(lambda: serde.deserialize(written, CONTEXT))
    assert len(fake_registry.requests) == before
    fake_registry.failing = None
    # A thread that may wait asks again at once.
    assert serde.deserialize(written, CONTEXT) == order.VALUE
    assert on_event_loop(lambda: serde.deserialize(written, CONTEXT)) == order.VALUE


def test_bytes_that_cannot_be_read_are_an_error_of_their_own(fake_registry: FakeRegistry) -> None:
    serde = RegistryAvroSerde(fake_registry.url)
    serde.load(b"plain", CONTEXT)
    with pytest.raises(SerializationError, match="no schema id"):
        on_event_loop(lambda: serde.deserialize(b"plain", CONTEXT))
    assert not fake_registry.requests


def test_a_lookup_on_an_event_loop_runs_in_the_background(fake_registry: FakeRegistry) -> None:
    written = RegistryAvroSerde(fake_registry.url, order.AVRO).serialize(order.VALUE, CONTEXT)
    serde = RegistryAvroSerde(fake_registry.url)

    async def main() -> Any:
        with pytest.raises(RegistryUnavailable, match="Schema 1 is being looked up"):
            serde.deserialize(written, CONTEXT)
        async with asyncio.timeout(30):
            while True:
                try:
                    return serde.deserialize(written, CONTEXT)
                except RegistryUnavailable:
                    await asyncio.sleep(0.01)

    assert asyncio.run(main()) == order.VALUE


def test_lookups_on_an_event_loop_do_not_pile_up(
    fake_registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = RegistryAvroSerde(fake_registry.url, order.AVRO).serialize(order.VALUE, CONTEXT)
    serde = RegistryAvroSerde(SchemaRegistry(fake_registry.url, config={"max.retries": 0}))
    monkeypatch.setattr(registry_serde, "_RETRY_S", 600.0)
    fake_registry.failing = 503
    before = len(fake_registry.requests)

    async def main() -> None:
        async with asyncio.timeout(30):
            while True:
                with pytest.raises(RegistryUnavailable) as caught:
                    serde.deserialize(written, CONTEXT)
                if "503" in str(caught.value):
                    return
                await asyncio.sleep(0)

    asyncio.run(main())
    assert len(fake_registry.requests) == before + 1
