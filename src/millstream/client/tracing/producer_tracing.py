"""Traces a producer: a span from `send` until the delivery report of the record.

A traced producer has another `send`, so the `send` of other producers has no step more. The span is
not current while the record is in flight. Its context is in the record's headers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.client.schedule import listed
from millstream.client.tracing.choice import TracingOption, tracer_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from millstream.client.producer.delivery import Delivery
    from millstream.client.tracing.messaging_span import MessagingTracer

Sent = TypeVar("Sent", bound="Delivery")


def traced_send(
    send: Callable[..., Sent], tracing: TracingOption, servers: str, client_id: str | None
) -> Callable[..., Sent] | None:
    """Return `send` with a span for each record; None if the producer is not traced."""
    spans = _tracer(tracing, servers, client_id)
    if spans is None:
        return None

    @functools.wraps(send)
    def traced(topic: str, value: Any, *extra: Any, **options: Any) -> Sent:
        span, options = _begun(spans, topic, value, options)
        try:
            delivery = send(topic, value, *extra, **options)
        except BaseException as error:
            _failed(span, error)
            raise
        delivery.add_done_callback(functools.partial(_delivered, span))
        return delivery

    traced.__signature__ = inspect.signature(send)  # type: ignore[attr-defined]
    return traced


def traced_async_send(
    send: Callable[..., Awaitable[Sent]],
    tracing: TracingOption,
    servers: str,
    client_id: str | None,
) -> Callable[..., Awaitable[Sent]] | None:
    """As `traced_send`, of an `AsyncProducer`."""
    spans = _tracer(tracing, servers, client_id)
    if spans is None:
        return None

    @functools.wraps(send)
    async def traced(topic: str, value: Any, *extra: Any, **options: Any) -> Sent:
        span, options = _begun(spans, topic, value, options)
        try:
            delivery = await send(topic, value, *extra, **options)
        except BaseException as error:
            _failed(span, error)
            raise
        delivery.add_done_callback(functools.partial(_delivered, span))
        return delivery

    traced.__signature__ = inspect.signature(send)  # type: ignore[attr-defined]
    return traced


def _tracer(tracing: TracingOption, servers: str, client_id: str | None) -> MessagingTracer | None:
    tracer = tracer_of(tracing)
    if tracer is None:
        return None
    from millstream.client.tracing.messaging_span import MessagingTracer

    return MessagingTracer(tracer, servers=servers, client_id=client_id)


def _begun(
    spans: MessagingTracer, topic: str, value: Any, options: dict[str, Any]
) -> tuple[Span, dict[str, Any]]:
    from millstream.client.tracing.messaging_span import Position

    headers = listed(options.get("headers"))
    position = Position(
        topic, options.get("partition"), key=options.get("key"), is_tombstone=value is None
    )
    span = spans.start_send("send", position, headers)
    return span, {**options, "headers": headers}


def _failed(span: Span, error: BaseException) -> None:
    from millstream.client.tracing.messaging_span import fail_by

    fail_by(span, error)
    span.end()


def _delivered(span: Span, delivery: Delivery) -> None:
    from millstream.client.tracing.messaging_span import fail

    error, message = delivery.report()
    partition, offset = message.partition(), message.offset()
    if error is not None:
        fail(span, error.name(), error.str())
    elif partition is not None:
        span.set_attribute("messaging.destination.partition.id", str(partition))
        if offset is not None and offset >= 0:
            span.set_attribute("messaging.kafka.offset", offset)
    span.end()
