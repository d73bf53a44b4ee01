"""The queue of audit events: bounded, and it counts what it drops."""

from __future__ import annotations

import asyncio
import json

from millstream.broker.audit.audit_queue import TEXT_CHARACTERS_MAX, AuditQueue, encode_record
from millstream.env.clock import SystemClock
from millstream.security.audit_event import AuditEvent, AuditKind


def event(resource: str = "topic:t") -> AuditEvent:
    return AuditEvent(
        AuditKind.CHANGE, "CreateTopics", "User:alice", "127.0.0.1", "app", resource, "ok"
    )


def test_events_are_taken_in_order_and_encoded_in_json() -> None:
    queue = AuditQueue(7, SystemClock(), 10)
    queue.record(event("topic:a"))
    queue.record(event("topic:b"))
    first, second = queue.take(10)
    row = json.loads(encode_record(first))
    assert (row["resource"], second.resource) == ("topic:a", "topic:b")
    assert row["principal"] == "User:alice"
    assert (row["broker"], row["kind"], row["outcome"]) == (7, "change", "ok")
    assert row["timestamp_ms"] > 0


def test_a_full_queue_drops_new_events_and_counts_them() -> None:
    queue = AuditQueue(1, SystemClock(), 2)
    for _ in range(5):
        queue.record(event())
    assert (len(queue), queue.recorded, queue.dropped) == (2, 2, 3)
    queue.take(1)
    queue.record(event())
    assert (len(queue), queue.dropped) == (2, 3)


def test_long_texts_are_cut() -> None:
    queue = AuditQueue(1, SystemClock(), 2)
    queue.record(event("x" * 10_000))
    (record,) = queue.take(1)
    assert len(record.resource) == TEXT_CHARACTERS_MAX


def test_waiting_for_an_event() -> None:
    async def run() -> None:
        queue = AuditQueue(1, SystemClock(), 2)
        waiting = asyncio.ensure_future(queue.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        queue.record(event())
        await asyncio.wait_for(waiting, 5)
        queue.take(1)
        assert not queue._wake.is_set()

    asyncio.run(run())
