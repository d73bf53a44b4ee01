"""The log output of tests, independent of formatters that other tests installed."""

from __future__ import annotations

import traceback

import pytest


def tracebacks(caplog: pytest.LogCaptureFixture) -> str:
    """Return the tracebacks of all log records, with causes."""
    return "".join(
        text
        for record in caplog.records
        if record.exc_info is not None
        for text in traceback.format_exception(record.exc_info[1])
    )
