"""The spans of workers: attempts, retries, sent records and dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace

from client.conftest import new_topic
from harness.process.broker_process import wait_until
from harness.span_store import SpanStore, header_of, links_of, parent_of
from millstream.client import Consumer, Job, Producer, Worker
from millstream.client.dead_letter import DeadLetterTopic, Replay, Selection


def first_record(bootstrap: str, topic: str) -> Any:
    with Consumer(bootstrap, topics=[topic]) as consumer:
        return next(iter(consumer))


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("order", ["key", "none"])
def test_attempts_retries_and_dead_letters(
    bootstrap: str, name: Callable[[str], str], spans: SpanStore, order: Any, is_async: bool
) -> None:
    topic, output, group = (
        new_topic(bootstrap, name, 1),
        new_topic(bootstrap, name, 1),
        name("group"),
    )
    with Producer(bootstrap, tracing=spans.provider) as producer:
        producer.send(topic, "good", key="a")
        producer.send(topic, "bad", key="b")
    good, bad = map(header_of, spans.wait(f"send {topic}", 2))
    current: list[Any] = []

    def handle(job: Job) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)
        if job.record.raw_value == b"bad":
            raise ValueError("bad")
        job.send(output, "bill")

    async def handle_async(job: Job) -> None:
        handle(job)

    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=group,
        handler=handle_async if is_async else handle,
        order=order,
        attempts_max=2,
        backoff=0.01,
        tracing=spans.provider,
    )
    with worker:
        bill = first_record(bootstrap, output)
        letter = first_record(bootstrap, f"{topic}.dlq")
    attempts = spans.wait(f"process {topic}", 3)
    (done,) = (each for each in attempts if parent_of(each) == good)
    first, second = (each for each in attempts if parent_of(each) == bad)
    assert {each.get_span_context().span_id for each in attempts} == set(current)
    # The dead letter keeps the context of the message.
    assert letter.header("traceparent") == bad
    assert links_of(done) == [good]
    assert links_of(first) == [bad]
    assert links_of(second) == [bad, header_of(first)]
    assert [(each.attributes or {})["millstream.attempt"] for each in (first, second)] == [1, 2]
    assert (second.attributes or {})["error.type"] == "ValueError"
    attributes = done.attributes or {}
    assert attributes["messaging.consumer.group.name"] == group
    assert attributes["messaging.kafka.offset"] == 0
    created = spans.one(f"create {output}")
    assert parent_of(created) == header_of(done)
    assert bill.headers == [("traceparent", header_of(created))]
    assert set(spans.names()) == {f"send {topic}", f"process {topic}", f"create {output}"}


def test_a_replayed_dead_letter_stays_in_its_trace(
    bootstrap: str, name: Callable[[str], str], spans: SpanStore
) -> None:
    topic, again = (new_topic(bootstrap, name, 1) for _ in range(2))
    with Producer(bootstrap, tracing=spans.provider) as producer:
        producer.send(topic, "bad")
    sent = header_of(spans.one(f"send {topic}"))
    worker = Worker(
        bootstrap, topics=[topic], group_id=name("group"), handler=lambda job: job.reject("no")
    )
    with worker:
        wait_until(lambda: worker.counts.dead, "the dead letter")
    letters = DeadLetterTopic(topic, bootstrap)
    assert Replay(letters, Selection(), to=again).run().replayed == 1
    assert first_record(bootstrap, again).header("traceparent") == sent


def test_a_rejected_message_is_a_failed_attempt(
    bootstrap: str, topic: str, name: Callable[[str], str], spans: SpanStore
) -> None:
    with Producer(bootstrap) as producer:
        producer.send(topic, "bad")
    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=name("group"),
        handler=lambda job: job.reject("not for us"),
        tracing=spans.provider,
    )
    with worker:
        span = spans.one(f"process {topic}")
    assert span.parent is None
    assert (span.attributes or {})["error.type"] == "reject"
    assert span.status.description == "not for us"
