"""The spans of the outbox: the relay continues the trace of the writer."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from opentelemetry.trace import SpanKind

from harness.span_store import SpanStore, header_of, links_of, parent_of
from millstream.client import Consumer
from millstream.client.outbox import Outbox
from millstream.client.outbox.address import database_at
from millstream.client.outbox.relay import Relay, RelaySettings
from millstream.client.outbox.schema import TABLE_DEFAULT


def test_the_relay_continues_the_trace_of_the_writer(
    bootstrap: str, topic: str, spans: SpanStore, tmp_path: Path
) -> None:
    path = tmp_path / "app.db"
    database = database_at(f"sqlite:///{path}", TABLE_DEFAULT)
    database.init(None, notify=False)
    traced, plain = Outbox(tracing=spans.provider), Outbox()
    with closing(sqlite3.connect(path)) as connection, spans.tracer.start_as_current_span("order"):
        traced.write(connection, topic, "0", key="k", headers={"color": "red"})
        plain.write(connection, topic, "1", key="k")
        connection.commit()
    settings = RelaySettings(drain=True, tracing=spans.provider)
    Relay(database, {"bootstrap.servers": bootstrap}, settings, lambda _sentence: None).run()
    created = spans.one(f"create {topic}")
    assert created.kind is SpanKind.PRODUCER
    assert parent_of(created) == header_of(spans.one("order"))
    first, second = spans.wait(f"send {topic}", 2)
    assert first.kind is SpanKind.CLIENT
    assert (parent_of(first), links_of(first)) == (header_of(created), [header_of(created)])
    assert (second.parent, second.kind) == (None, SpanKind.PRODUCER)
    records: list[Any] = []
    with Consumer(bootstrap, topics=[topic]) as consumer:
        while len(records) < 2:
            records += consumer.poll()
    assert records[0].headers == [("color", b"red"), ("traceparent", header_of(created))]
    assert records[1].headers == [("traceparent", header_of(second))]
