"""Isolates callbacks: a callback that raises does not affect other callbacks.

Callbacks of a high watermark, of a partition's readers, of timers and of leadership changes are
each called through `CallbackFailures`. A failure is logged with its context and counted by kind. If
a client's request waits behind the callback, the request gets an error response. The remaining
callbacks are still called.

`CallbackFailures` is also the `Receiver` of replies that no client waits for.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVarTuple

from millstream.model.reply import Reply

_logger = logging.getLogger(__name__)

A = TypeVarTuple("A")


class CallbackKind(StrEnum):
    """Kinds of callbacks that have no reply; the values are metric labels."""

    #: Waits for a high watermark, durable offset or low watermark.
    OFFSET_WAITER = "offset_waiter"
    #: Wake-ups of fetches that wait for more to read.
    FETCH_WAKE_UP = "fetch_wake_up"
    #: Notices to a follower's fetch session.
    FOLLOWER_SESSION = "follower_session"
    #: A partition changes its role, appears or disappears on this broker.
    LEADERSHIP = "leadership"
    #: A log was flushed.
    FLUSH = "flush"
    #: A coordinator's records are written.
    JOURNAL = "journal"
    #: Timers of groups and transactions.
    TIMER = "timer"
    #: A coordinator's shard opens or closes.
    SHARD = "shard"
    #: Waits for the end of a transaction.
    TRANSACTION_END = "transaction_end"
    #: Responses of other brokers.
    LINK = "link"
    #: The check for stalled connections, waits for request memory, and observers of handshakes.
    CONNECTION = "connection"
    #: Requests that run as tasks, and handlers that raise.
    HANDLER = "handler"


class CallbackFailures:
    """Logs and counts the failures of callbacks of one broker. Event loop only."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        #: Failures by kind.
        self.counts: Counter[str] = Counter()

    def note(self, kind: str, error: Exception, about: object = "") -> None:
        """Log and count a failure; `about` names its subject."""
        self.counts[kind] += 1
        _logger.error("callback %s failed: %s", kind, about, exc_info=error)

    def fail_reply(
        self, kind: str, error: Exception, reply: Reply[Any] | None, about: object = ""
    ) -> None:
        """Fail the request that waits; without one, log and count the failure."""
        if reply is not None and reply.is_open:
            reply.crash(error)
        else:
            self.note(kind, error, about)

    def run(
        self, kind: CallbackKind, about: object, callback: Callable[[*A], object], *arguments: *A
    ) -> None:
        """Call a callback; log and count its failure."""
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001  # logged and counted
            self.note(kind, error, about)

    # The receiver of replies that no client waits for

    def receive(self, result: Any, /) -> None:
        """Ignore the result: no client waits for it."""

    def failed(self, kind: str, error: Exception, /) -> None:
        self.note(kind, error)

    def abandon(self, kind: str, error: Exception, /) -> None:
        self.note(kind, error, "abandoned")
