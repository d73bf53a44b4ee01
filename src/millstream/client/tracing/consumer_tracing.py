"""Traces a consumer: a span for each poll that returns records, with links to their contexts.

Applications process records after `poll` has returned, so the consumer cannot know how long that
takes. `process_span` is for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from millstream.client.tracing.choice import TracingOption, tracer_of

if TYPE_CHECKING:
    from confluent_kafka import Message
    from opentelemetry.trace import Tracer

    from millstream.client.record import Record

#: Called with the messages that are handed out, and when the wait for them began, in ns since 1970.
Received = Callable[[Sequence["Message"], int], None]


def poll_tracing(
    tracing: TracingOption, servers: str, client_id: str | None, group: str | None
) -> Received | None:
    """Return the function that traces polls; None if the consumer is not traced."""
    tracer = tracer_of(tracing)
    if tracer is None:
        return None
    from opentelemetry.trace import SpanKind

    from millstream.client.tracing.messaging_span import MessagingTracer, Position, links_of

    spans = MessagingTracer(tracer, servers=servers, client_id=client_id, group=group)

    def received(messages: Sequence[Message], began_ns: int) -> None:
        topics = {message.topic() or "" for message in messages}
        position = Position(topics.pop()) if len(topics) == 1 else None
        headers: Any = (message.headers() or [] for message in messages)
        links = links_of(headers)
        span = spans.start("poll", SpanKind.CLIENT, position, links=links, start_ns=began_ns)
        span.set_attribute("messaging.batch.message_count", len(messages))
        span.end()

    return received


def process_span(
    record: Record, *, group_id: str | None = None, tracing: TracingOption = None
) -> AbstractContextManager[Any]:
    """Return a context manager that is the span for the processing of a record.

    The span is current in the block. An exception in the block marks it as failed. Without
    OpenTelemetry, or without a tracer provider, it does nothing.
    """
    tracer = tracer_of(tracing)
    return nullcontext() if tracer is None else _processing(tracer, record, group_id)


@contextmanager
def _processing(tracer: Tracer, record: Record, group_id: str | None) -> Iterator[Any]:
    from opentelemetry import trace

    from millstream.client.tracing.messaging_span import MessagingTracer, Position, fail_by

    spans = MessagingTracer(tracer, group=group_id)
    position = Position(
        record.topic,
        record.partition,
        record.offset,
        record.raw_key,
        is_tombstone=record.raw_value is None,
    )
    span = spans.start_process(position, list(record.headers))
    with trace.use_span(
        span, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield span
        except BaseException as error:
            fail_by(span, error)
            raise
