"""The spans of consumers, and of applications that process records."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from harness.span_store import SpanStore, header_of, links_of, parent_of
from millstream.client import AsyncConsumer, Consumer, Producer, process_span


def test_a_span_for_each_poll_with_records(bootstrap: str, topic: str, spans: SpanStore) -> None:
    with Producer(bootstrap, tracing=spans.provider) as producer:
        for number in range(3):
            producer.send(topic, f"{number}")
    with Producer(bootstrap) as producer:
        producer.send(topic, "without a context")
    sent = spans.wait(f"send {topic}", 3)
    group = f"{topic}-readers"
    with Consumer(bootstrap, topics=[topic], group_id=group, tracing=spans.provider) as consumer:
        count = 0
        while count < 4:
            count += len(consumer.poll())
        consumer.poll(timeout=0)
    polled = spans.named(f"poll {topic}")
    attributes = [dict(each.attributes or {}) for each in polled]
    assert sum(each["messaging.batch.message_count"] for each in attributes) == 4
    assert attributes[0]["messaging.operation.type"] == "receive"
    assert attributes[0]["messaging.consumer.group.name"] == group
    assert {each.kind for each in polled} == {SpanKind.CLIENT}
    links = [link for each in polled for link in links_of(each)]
    assert links == [header_of(each) for each in sent]
    assert all((each.end_time or 0) >= (each.start_time or 0) > 0 for each in polled)


def test_asyncio(bootstrap: str, topic: str, spans: SpanStore) -> None:
    with Producer(bootstrap, tracing=spans.provider) as producer:
        producer.send(topic, "0")

    async def main() -> None:
        async with AsyncConsumer(bootstrap, topics=[topic], tracing=spans.provider) as consumer:
            async for _ in consumer:
                break

    asyncio.run(main())
    assert links_of(spans.one(f"poll {topic}")) == [header_of(spans.one(f"send {topic}"))]


def test_processing_continues_the_trace_of_the_record(
    bootstrap: str, topic: str, spans: SpanStore
) -> None:
    with Producer(bootstrap, tracing=spans.provider) as producer:
        producer.send(topic, "0", key="alice")
    sent = header_of(spans.one(f"send {topic}"))
    with Consumer(bootstrap, topics=[topic]) as consumer:
        record = next(iter(consumer))
    with process_span(record, group_id="billing", tracing=spans.provider) as span:
        assert trace.get_current_span() is span
    found = spans.one(f"process {topic}")
    assert found.kind is SpanKind.CONSUMER
    assert (parent_of(found), links_of(found)) == (sent, [sent])
    assert dict(found.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "alice",
        "messaging.consumer.group.name": "billing",
    }
    # Inside another span, the record's context is only linked.
    with spans.tracer.start_as_current_span("batch") as outer:
        with pytest.raises(ValueError, match="bad"), process_span(record, tracing=spans.provider):
            raise ValueError("bad")
        assert outer.is_recording()
    _, failed = spans.wait(f"process {topic}", 2)
    assert (parent_of(failed), links_of(failed)) == (header_of(spans.one("batch")), [sent])
    assert (failed.attributes or {})["error.type"] == "ValueError"
    assert failed.status.status_code is StatusCode.ERROR
    assert [each.name for each in failed.events] == ["exception"]
