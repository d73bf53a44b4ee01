"""Which clients are traced, and what is imported."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace

from harness.span_store import SpanStore
from millstream.client import UsageError
from millstream.client.tracing import choice
from millstream.client.tracing.choice import tracer_of

BLOCKED = """
import sys
sys.modules["opentelemetry"] = None
"""
CLIENTS = """
import sys
from millstream import Consumer, Producer, UsageError, Worker, process_span
servers, topic = sys.argv[1:]
with Producer(servers) as producer:
    producer.send(topic, "0").result(30)
with Consumer(servers, topics=[topic]) as consumer:
    record = next(iter(consumer))
    with process_span(record):
        print(record.value, record.headers)
try:
    Producer(servers, tracing=True)
except UsageError as error:
    print(error)
"""
IMPORTED = """
print(sorted(each for each in sys.modules if each.split(".")[0] == "opentelemetry"))
"""


def run(program: str, *arguments: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_without_opentelemetry(bootstrap: str, topic: str) -> None:
    found = run(BLOCKED + CLIENTS, bootstrap, topic)
    assert found[0] == "b'0' []"
    assert "pip install 'millstream[opentelemetry]'" in found[1]


def test_nothing_is_imported_without_a_provider(bootstrap: str, topic: str) -> None:
    program = CLIENTS.split("try:")[0] + IMPORTED
    assert run(program, bootstrap, topic) == ["b'0' []", "[]"]


def test_a_global_provider_is_used(bootstrap: str, topic: str) -> None:
    program = (
        """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""
        + CLIENTS.split("try:")[0]
        + "print(sorted(each.name for each in exporter.get_finished_spans()))"
    )
    header, names = run(program, bootstrap, topic)
    assert "traceparent" in header
    assert names == str([f"poll {topic}", f"process {topic}", f"send {topic}"])


def test_the_option(spans: SpanStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracer_of(False) is None
    # The API alone, without a provider, traces nothing.
    assert tracer_of(None) is None
    assert tracer_of(True) is not None
    assert tracer_of(spans.provider) is not None
    wrong: Any = "yes"
    with pytest.raises(UsageError, match="tracing='yes'"):
        tracer_of(wrong)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans.provider)
    assert tracer_of(None) is not None
    assert choice.tracer_of(False) is None
