"""Traces a worker: a span for each attempt at a message, and for each record that it sends.

All attempts are children of the context in the message's headers. A retry also links to the attempt
before it, if that ran in this process. Retried messages and dead letters keep the headers of the
message, and so its context. Records of `job.send` get contexts of their own.
"""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from millstream.client.tracing.choice import TracingOption, tracer_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

    from millstream.client.worker.message.job import Job

Handler = Callable[["Job[Any]"], Any]

#: Failed attempts that are remembered for the link of the next attempt.
_ATTEMPTS_MAX: Final = 10_000


def traced_handler(handler: Handler, tracing: TracingOption, group: str, servers: str) -> Handler:
    """Return the handler with a span for each call; the handler itself if it is not traced."""
    tracer = tracer_of(tracing)
    if tracer is None:
        return handler
    attempts = _Attempts(tracer, group, servers)
    if inspect.iscoroutinefunction(handler):
        return _async_handler(handler, attempts)

    def call(job: Job[Any]) -> Any:
        with attempts.span(job):
            return handler(job)

    return call


def _async_handler(handler: Callable[[Job[Any]], Awaitable[Any]], attempts: _Attempts) -> Handler:
    async def call(job: Job[Any]) -> Any:
        with attempts.span(job):
            return await handler(job)

    return call


class _Attempts:
    """The spans of attempts, and the last failed attempt of each message."""

    def __init__(self, tracer: Tracer, group: str, servers: str) -> None:
        from millstream.client.tracing.messaging_span import MessagingTracer

        self._spans = MessagingTracer(tracer, servers=servers, group=group)
        self._senders = MessagingTracer(tracer, servers=servers)
        self._lock = threading.Lock()
        self._failed: OrderedDict[tuple[str, int, int], SpanContext] = OrderedDict()

    @contextmanager
    def span(self, job: Job[Any]) -> Iterator[Span]:
        """Run the block as an attempt at the job's message."""
        from opentelemetry import trace

        from millstream.client.tracing.messaging_span import Position, fail_by

        record = job.record
        is_tombstone = record.raw_value is None
        position = Position(job.topic, job.partition, job.offset, record.raw_key, is_tombstone)
        before = self._taken(job)
        also = [] if before is None else [before]
        span = self._spans.start_process(position, list(record.headers), also)
        span.set_attribute("millstream.attempt", job.attempt)
        is_failed = True
        with trace.use_span(
            span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            try:
                yield span
                is_failed = self._ended(span, job)
            except BaseException as error:
                fail_by(span, error)
                raise
            finally:
                if is_failed:
                    self._keep(job, span.get_span_context())

    def _ended(self, span: Span, job: Job[Any]) -> bool:
        """Record the result of a handler that returned. Returns whether the attempt failed."""
        from millstream.client.tracing.messaging_span import Position, fail

        if job.result is not None and job.result.kind != "ack":
            fail(span, job.result.kind, str(job.result.error or ""))
            return True
        for output in job.outputs:
            position = Position(output.topic, output.partition, key=output.key)
            self._senders.start_send("create", position, output.headers).end()
        return False

    def _taken(self, job: Job[Any]) -> SpanContext | None:
        with self._lock:
            return self._failed.pop(_key(job), None)

    def _keep(self, job: Job[Any], context: SpanContext) -> None:
        with self._lock:
            self._failed[_key(job)] = context
            if len(self._failed) > _ATTEMPTS_MAX:
                self._failed.popitem(last=False)


def _key(job: Job[Any]) -> tuple[str, int, int]:
    return job.topic, job.partition, job.offset
