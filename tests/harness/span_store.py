"""A tracer provider that keeps the spans of a test in memory, and contexts as their headers."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from harness.process.broker_process import wait_until


class SpanStore:
    """The spans that were ended, by name."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [each for each in self._exporter.get_finished_spans() if each.name == name]

    def wait(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Wait until this many spans of the name have ended."""
        wait_until(lambda: len(self.named(name)) >= count, f"{count} spans {name!r}")
        found = self.named(name)
        assert len(found) == count, found
        return found

    def one(self, name: str) -> ReadableSpan:
        return self.wait(name)[0]

    def names(self) -> list[str]:
        return [each.name for each in self._exporter.get_finished_spans()]


def header_of(span: ReadableSpan) -> bytes:
    """Return the `traceparent` header with the context of a span."""
    return _header(span.get_span_context())


def parent_of(span: ReadableSpan) -> bytes | None:
    """Return the context of a span's parent in the form of the header."""
    return None if span.parent is None else _header(span.parent)


def links_of(span: ReadableSpan) -> list[bytes]:
    """Return the contexts that a span links to in the form of the header."""
    return [_header(each.context) for each in span.links]


def _header(context: Any) -> bytes:
    flags = int(context.trace_flags)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}".encode()
