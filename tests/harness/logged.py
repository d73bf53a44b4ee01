"""What tests read in the log, whatever formatter other tests left behind: Spark sets its own."""

from __future__ import annotations

import traceback

import pytest


def tracebacks(caplog: pytest.LogCaptureFixture) -> str:
    """Return the tracebacks of all that was logged, with causes."""
    return "".join(
        text
        for record in caplog.records
        if record.exc_info is not None
        for text in traceback.format_exception(record.exc_info[1])
    )
