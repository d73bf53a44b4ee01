"""Rejected requests and connections: the reason, and the client.

A rejected request costs its client the connection, and no response states the reason. So the reason
goes into the broker's log, with the client's address and the API, and is counted by kind. The log
is rate-limited for each kind, so that a client which repeats a bad request neither fills the disk
nor hides the rejections of others.
"""

from __future__ import annotations

import logging
from collections import Counter
from enum import StrEnum
from typing import Final

_logger = logging.getLogger(__name__)

#: Log lines for each kind of rejection in each period.
LINES_MAX: Final = 5
PERIOD_S: Final = 10.0
#: Characters that are logged of a text from a client.
_TEXT_MAX: Final = 200


class Rejection(StrEnum):
    """Kinds of rejection; the values are labels of the metrics."""

    #: The length of a frame is not positive, or above the limit.
    FRAME = "frame"
    #: The header of a request cannot be parsed.
    HEADER = "header"
    #: This broker does not support the API.
    API = "api"
    #: This broker does not support the version of the API.
    VERSION = "version"
    #: The request is larger than requests other than Produce may be.
    SIZE = "size"
    #: The body of a request cannot be parsed.
    BODY = "body"
    #: The handler closes the connection, because the protocol has no response for the case.
    HANDLER = "handler"
    #: A login failed or took too long, or a request came without one, also by HTTP.
    AUTHENTICATION = "authentication"
    #: Too many connections, in total or from one address.
    CONNECTIONS = "connections"
    #: A TLS handshake that failed or took too long.
    HANDSHAKE = "handshake"


class RejectedRequestError(ValueError):
    """Raised for a request that is rejected without a response."""

    def __init__(
        self, kind: Rejection, reason: str, client_id: str | None = None, api: str = ""
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.client_id = client_id
        #: The name of the API; empty if it is unknown.
        self.api = api


class Rejections:
    """Counts and logs the rejections of one broker. Event loop only."""

    __slots__ = ("_periods", "counts")

    def __init__(self) -> None:
        self.counts: Counter[Rejection] = Counter()
        self._periods: dict[Rejection, _Period] = {}

    def note(self, error: RejectedRequestError, address: str, now: float) -> None:
        """Count a rejection, and log it unless `LINES_MAX` of its kind were logged in this period.

        `now` is monotonic time."""
        self.counts[error.kind] += 1
        period = self._periods.get(error.kind)
        if period is None or now - period.began_at >= PERIOD_S:
            skipped = 0 if period is None else period.skipped
            period = self._periods[error.kind] = _Period(now)
            if skipped:
                _logger.warning("%d more rejections (%s) were not logged", skipped, error.kind)
        if period.lines == LINES_MAX:
            period.skipped += 1
            return
        period.lines += 1
        _logger.warning(
            "rejected %s from %s (client %s): %s: %s",
            error.api or "a request",
            address,
            _short(repr(error.client_id)),
            error.kind,
            _short(error.reason),
        )


class _Period:
    __slots__ = ("began_at", "lines", "skipped")

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.lines = 0
        self.skipped = 0


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "..."
