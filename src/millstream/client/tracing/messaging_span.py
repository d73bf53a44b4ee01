"""Spans by OpenTelemetry's conventions for messaging with Kafka, and contexts in record headers.

    span name          type      kind       relation
    create <topic>     create    PRODUCER   its context goes into the record's headers
    send <topic>       send      PRODUCER   its context goes into the record's headers
    send <topic>       send      CLIENT     the headers have a context already: link to it
    poll [<topic>]     receive   CLIENT     links to the contexts of the records
    process <topic>    process   CONSUMER   link to the record's context, and its child unless there
                                            is a current span

A context that is in the headers already stays: it belongs to the program that created the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

Headers = list[tuple[str, Any]]

#: The SDK keeps 128 links of a span by default.
_LINKS_MAX: Final = 128
_OPERATION_TYPES: Final = {
    "create": "create",
    "send": "send",
    "poll": "receive",
    "process": "process",
}
_KEY_CHARACTERS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Position:
    """Where a record is; what is not known yet is None."""

    topic: str
    partition: int | None = None
    offset: int | None = None
    key: object = None
    is_tombstone: bool = False


class MessagingTracer:
    """Starts the spans of one client."""

    def __init__(
        self,
        tracer: Tracer,
        *,
        servers: str | None = None,
        client_id: str | None = None,
        group: str | None = None,
    ) -> None:
        self._tracer = tracer
        self._common: dict[str, Any] = {"messaging.system": "kafka", **_server(servers)}
        if client_id:
            self._common["messaging.client.id"] = client_id
        if group:
            self._common["messaging.consumer.group.name"] = group

    def start(
        self,
        operation: str,
        kind: SpanKind,
        position: Position | None,
        *,
        parent: contexts.Context | None = None,
        links: Sequence[Link] = (),
        start_ns: int | None = None,
    ) -> Span:
        """Start a span that is not current."""
        attributes = {
            **self._common,
            "messaging.operation.name": operation,
            "messaging.operation.type": _OPERATION_TYPES[operation],
            **({} if position is None else _attributes(position)),
        }
        name = operation if position is None else f"{operation} {position.topic}"
        return self._tracer.start_span(
            name, parent, kind, attributes, links, start_ns, record_exception=False
        )

    def start_send(
        self, operation: str, position: Position, headers: Headers, *, is_child: bool = False
    ) -> Span:
        """Start the span of a record that is sent, and put its context into the headers.

        Headers with a context stay as they are, and the span links to it; with `is_child` the span
        is also its child.
        """
        origin = context_in(headers)
        if origin is None:
            span = self.start(operation, SpanKind.PRODUCER, position)
            inject(headers, trace.set_span_in_context(span))
            return span
        links = links_to([origin])
        parent = origin if is_child else None
        return self.start(operation, SpanKind.CLIENT, position, parent=parent, links=links)

    def start_process(
        self, position: Position, headers: Headers, also: Iterable[trace.SpanContext] = ()
    ) -> Span:
        """Start the span for the processing of one record. `also` are further links."""
        origin = context_in(headers)
        links = [*links_to([] if origin is None else [origin]), *map(Link, also)]
        has_current = trace.get_current_span().get_span_context().is_valid
        parent = None if has_current else origin
        return self.start("process", SpanKind.CONSUMER, position, parent=parent, links=links)


def context_in(headers: Iterable[tuple[str, Any]] | None) -> contexts.Context | None:
    """Return the context in the headers of a record, or None."""
    carrier: dict[str, str] = {}
    for name, value in headers or ():
        if value is not None:
            carrier[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    found = propagate.extract(carrier, contexts.Context())
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def inject(headers: Headers, context: contexts.Context) -> None:
    """Append a context to the headers of a record."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    headers += [(name, value.encode()) for name, value in carrier.items()]


def links_to(found: Iterable[contexts.Context]) -> list[Link]:
    """Return links to the spans of these contexts."""
    return [Link(trace.get_current_span(each).get_span_context()) for each in found]


def links_of(headers: Iterable[Headers]) -> list[Link]:
    """Return links to the contexts in the headers of records, up to the limit of a span."""
    links: list[Link] = []
    for each in headers:
        if len(links) == _LINKS_MAX:
            break
        context = context_in(each) if each else None
        links += [] if context is None else links_to([context])
    return links


def fail(span: Span, kind: str, message: str) -> None:
    """Mark the span as failed. `kind` is an exception's class or Kafka's name of the error."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, message))


def fail_by(span: Span, error: BaseException) -> None:
    """Mark the span as failed by an exception, and record the exception."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    if isinstance(error, Exception):
        span.record_exception(error)
    fail(span, name, str(error))


def _attributes(position: Position) -> dict[str, Any]:
    found: dict[str, Any] = {"messaging.destination.name": position.topic}
    if position.partition is not None:
        found["messaging.destination.partition.id"] = str(position.partition)
    if position.offset is not None:
        found["messaging.kafka.offset"] = position.offset
    key = _key(position.key)
    if key is not None:
        found["messaging.kafka.message.key"] = key
    if position.is_tombstone:
        found["messaging.kafka.message.tombstone"] = True
    return found


def _key(key: object) -> str | None:
    """Return a key as text; None if it is not text."""
    if isinstance(key, bytes):
        try:
            key = key.decode()
        except UnicodeDecodeError:
            return None
    return key[:_KEY_CHARACTERS_MAX] if isinstance(key, str) else None


def _server(servers: str | None) -> dict[str, Any]:
    """Return the attributes of the first bootstrap server."""
    host, _, port = (servers or "").split(",")[0].strip().rpartition(":")
    if not host or not port.isdecimal():
        return {}
    return {"server.address": host.strip("[]"), "server.port": int(port)}
