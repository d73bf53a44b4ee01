"""Waits, for a limited time, until transactions have ended.

A producer of transaction version 2 begins its next transaction as soon as the end of the previous
one is decided, while markers are still being sent. Its requests wait here instead of being rejected
and retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from millstream.model.reply import Reply

#: How long the remaining actions wait once the first transaction has ended.
_AFTER_FIRST_S: Final = 0.001


class EndingTransactions(Protocol):
    """The transactions that are ending. The transaction coordinator implements it."""

    def is_ending(self, transactional_id: str) -> bool: ...

    def when_ended(
        self, transactional_id: str, callback: Callable[[], None]
    ) -> Callable[[], None]: ...


class _Waiting(NamedTuple):
    reply: Reply[Any]
    act: Callable[[], None]
    cancel: Callable[[], None]


class EndWait:
    """Actions with a common deadline, each of which waits for one transaction to end.

    The actions share a response. So the deadline moves closer once the first transaction has ended:
    the response must not wait long for a slow transaction. Event loop only.
    """

    __slots__ = ("_deadline", "_endings", "_timer", "_waiting")

    def __init__(self, endings: EndingTransactions, wait_s: float) -> None:
        self._endings = endings
        self._waiting: dict[Callable[[], None], _Waiting] = {}
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + wait_s
        self._timer = loop.call_at(self._deadline, self._expire)

    def add(self, transactional_id: str, reply: Reply[Any], act: Callable[[], None]) -> None:
        """Call `act` once: when the transaction has ended or the deadline has passed. The call is
        immediate if the transaction is not ending.

        If `act` raises, `reply` fails."""
        if not self._endings.is_ending(transactional_id):
            self._move_deadline()
            reply.run(act)
            return

        def ended() -> None:
            del self._waiting[ended]
            self._move_deadline()
            reply.run(act)

        cancel = self._endings.when_ended(transactional_id, ended)
        self._waiting[ended] = _Waiting(reply, act, cancel)

    def _move_deadline(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _AFTER_FIRST_S
        if deadline < self._deadline:
            self._deadline = deadline
            self._timer.cancel()
            self._timer = loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for reply, act, cancel in waiting.values():
            cancel()
            reply.run(act)
