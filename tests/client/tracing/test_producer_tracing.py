"""The spans of producers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from harness.span_store import SpanStore, header_of, links_of, parent_of
from millstream.client import (
    AsyncProducer,
    Consumer,
    DeliveryError,
    Producer,
    SerializationError,
)


def first_record(bootstrap: str, topic: str) -> Any:
    with Consumer(bootstrap, topics=[topic]) as consumer:
        return next(iter(consumer))


def test_a_span_for_each_record(bootstrap: str, topic: str, spans: SpanStore) -> None:
    config = {"client.id": "shop"}
    with (
        spans.tracer.start_as_current_span("checkout"),
        Producer(bootstrap, tracing=spans.provider, config=config) as producer,
    ):
        producer.send(topic, "2 apples", key="alice", headers={"color": "red"})
    span = spans.one(f"send {topic}")
    host, port = bootstrap.split(":")
    assert span.kind is SpanKind.PRODUCER
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "alice",
        "messaging.client.id": "shop",
        "server.address": host,
        "server.port": int(port),
    }
    assert parent_of(span) == header_of(spans.one("checkout"))
    record = first_record(bootstrap, topic)
    assert record.headers == [("color", b"red"), ("traceparent", header_of(span))]


def test_asyncio(bootstrap: str, topic: str, spans: SpanStore) -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap, tracing=spans.provider) as producer:
            await producer.send_and_wait(topic, None, key=b"\xff")

    asyncio.run(main())
    span = spans.one(f"send {topic}")
    attributes = span.attributes or {}
    assert attributes["messaging.kafka.message.tombstone"] is True
    assert "messaging.kafka.message.key" not in attributes
    assert attributes["messaging.kafka.offset"] == 0
    assert first_record(bootstrap, topic).header("traceparent") == header_of(span)


def test_a_context_in_the_headers_stays(bootstrap: str, topic: str, spans: SpanStore) -> None:
    given = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = [("traceparent", given), ("tracestate", b"vendor=1")]
    with Producer(bootstrap, tracing=spans.provider) as producer:
        producer.send(topic, "forwarded", headers=headers)
    span = spans.one(f"send {topic}")
    assert span.kind is SpanKind.CLIENT
    assert links_of(span) == [given]
    assert first_record(bootstrap, topic).headers == headers


def test_transactions(bootstrap: str, topic: str, spans: SpanStore, name: Any) -> None:
    with (
        Producer(bootstrap, transactional_id=name("billing"), tracing=spans.provider) as producer,
        producer.transaction() as transaction,
    ):
        transaction.send(topic, "bill")
    assert first_record(bootstrap, topic).header("traceparent") == header_of(
        spans.one(f"send {topic}")
    )


def test_failures(bootstrap: str, topic: str, spans: SpanStore) -> None:
    with (
        Producer(bootstrap, tracing=spans.provider) as producer,
        pytest.raises(SerializationError),
    ):
        producer.send(topic, {"not": "bytes"})
    with Producer("127.0.0.1:1", delivery_timeout=1, tracing=spans.provider) as producer:
        producer.send(topic, "to nowhere")
        # The span does not hide the failure from `flush`.
        with pytest.raises(DeliveryError, match="1 records"):
            producer.flush()
    found = {(each.attributes or {})["error.type"]: each for each in spans.wait(f"send {topic}", 2)}
    assert set(found) == {"millstream.client.error.SerializationError", "_MSG_TIMED_OUT"}
    assert {each.status.status_code for each in found.values()} == {StatusCode.ERROR}
