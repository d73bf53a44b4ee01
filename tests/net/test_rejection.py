"""Rejected requests: each is counted, and some are logged."""

from __future__ import annotations

import logging

import pytest

from millstream.net.rejection import (
    LINES_MAX,
    PERIOD_S,
    RejectedRequestError,
    Rejection,
    Rejections,
)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_the_log_names_client_api_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    rejections = Rejections()
    error = RejectedRequestError(Rejection.VERSION, "version 99 is not supported", "me", "Fetch")
    rejections.note(error, "10.0.0.1", 0.0)
    (line,) = lines(caplog)
    for part in ("10.0.0.1", "Fetch", "'me'", "version 99 is not supported"):
        assert part in line
    assert caplog.records[0].levelno == logging.WARNING


def test_the_log_is_limited_for_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    rejections = Rejections()
    for _ in range(100):
        rejections.note(RejectedRequestError(Rejection.BODY, "noise"), "10.0.0.1", 1.0)
    rejections.note(RejectedRequestError(Rejection.SIZE, "something else"), "10.0.0.2", 1.0)
    assert len(lines(caplog)) == LINES_MAX + 1
    assert "something else" in lines(caplog)[-1]
    assert rejections.counts == {Rejection.BODY: 100, Rejection.SIZE: 1}
    caplog.clear()
    rejections.note(RejectedRequestError(Rejection.BODY, "again"), "10.0.0.1", 1.0 + PERIOD_S)
    assert f"{100 - LINES_MAX} more" in lines(caplog)[0]
    assert "again" in lines(caplog)[1]


def test_long_texts_are_shortened_and_control_characters_escaped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = RejectedRequestError(Rejection.API, "x" * 10_000, "a\nb" * 10_000, "")
    Rejections().note(error, "10.0.0.1", 0.0)
    (line,) = lines(caplog)
    assert len(line) < 1000
    assert "\n" not in line
