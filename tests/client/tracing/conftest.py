"""The spans of one test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.span_store import SpanStore


@pytest.fixture
def spans() -> Iterator[SpanStore]:
    store = SpanStore()
    yield store
    store.provider.shutdown()
