"""Traces the outbox: the writer's context is in the row's headers, and the relay continues it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.client.tracing.choice import TracingOption, tracer_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from millstream.client.tracing.messaging_span import MessagingTracer

Headers = list[tuple[str, Any]]


class WriteTracing:
    """Gives each event that an application writes a span, and puts its context into the headers."""

    def __init__(self, spans: MessagingTracer) -> None:
        self._spans = spans

    def note(self, topic: str, key: object, headers: Headers) -> None:
        """Record that an event is written."""
        from millstream.client.tracing.messaging_span import Position

        self._spans.start_send("create", Position(topic, key=key), headers).end()


class SendTracing:
    """The spans of the events of one batch, from the first record until the commit."""

    def __init__(self, spans: MessagingTracer) -> None:
        self._spans = spans
        self._open: list[Span] = []

    def start(self, topic: str, key: object, headers: Headers) -> None:
        """Start the span of an event, as a child of its writer's."""
        from millstream.client.tracing.messaging_span import Position

        position = Position(topic, key=key)
        self._open.append(self._spans.start_send("send", position, headers, is_child=True))

    def end(self, error: BaseException | None = None) -> None:
        """End the spans of the batch."""
        from millstream.client.tracing.messaging_span import fail_by

        spans, self._open = self._open, []
        for span in spans:
            if error is not None:
                fail_by(span, error)
            span.end()


def write_tracing(tracing: TracingOption) -> WriteTracing | None:
    """Return the tracing of an outbox's writer; None if it is not traced."""
    spans = _tracer(tracing, None)
    return None if spans is None else WriteTracing(spans)


def send_tracing(tracing: TracingOption, servers: str | None) -> SendTracing | None:
    """Return the tracing of one sink of a relay; None if it is not traced."""
    spans = _tracer(tracing, servers)
    return None if spans is None else SendTracing(spans)


def _tracer(tracing: TracingOption, servers: str | None) -> MessagingTracer | None:
    tracer = tracer_of(tracing)
    if tracer is None:
        return None
    from millstream.client.tracing.messaging_span import MessagingTracer

    return MessagingTracer(tracer, servers=servers)
