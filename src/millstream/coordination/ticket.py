"""A request that waits for the coordinator's answer: the token of effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.model.error import ErrorCode


class Ticket:
    """Answered once, by `deliver` or by `fail`; later answers are dropped.

    A state machine keeps it for as long as its request has to wait. If the client goes away
    meanwhile the answer goes nowhere, which is the sender's concern."""

    __slots__ = ("_deliver", "_fail")

    def __init__(self, deliver: Callable[[Any], None], fail: Callable[[ErrorCode], None]) -> None:
        self._deliver: Callable[[Any], None] | None = deliver
        self._fail = fail

    def deliver(self, reply: Any) -> None:
        deliver, self._deliver = self._deliver, None
        if deliver is not None:
            deliver(reply)

    def fail(self, code: ErrorCode) -> None:
        """Answer with an error instead."""
        if self._deliver is not None:
            self._deliver = None
            self._fail(code)
