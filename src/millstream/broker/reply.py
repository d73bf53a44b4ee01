"""Replies of handlers that a coordinator decides about: one result, several parts, or awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from millstream.broker.context import Context
from millstream.groups.group import Caller
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Receiver, Reply, ReplyKind


def caller_of(context: Context) -> Caller:
    """Addresses are told as Kafka tells them, with a slash before them."""
    return Caller(context.client_id or "", f"/{context.client_address}", context.version)


def ask(
    kind: ReplyKind,
    context: Context,
    begin: Callable[[Reply[Any]], None],
    refuse: Callable[[ErrorCode], Any],
    respond: Callable[[Any], Any] | None = None,
) -> Reply[Any]:
    """Begin something that ends a reply; `respond` makes the response of the result, and `refuse`
    that of an error."""
    reply: Reply[Any] = Reply(kind, context.receiver, refuse, respond)
    begin(reply)
    return reply


async def wait_for(kind: ReplyKind, context: Context, begin: Callable[[Reply[Any]], None]) -> Any:
    """Begin something that ends a reply, and return the result, or raise BrokerError. For handlers
    that have to wait for something else as well."""
    awaited = _Awaited(context.receiver)
    begin(Reply(kind, awaited, BrokerError))
    return await awaited.future


class _Awaited:
    """The `Receiver` of a result that a coroutine waits for."""

    __slots__ = ("_receiver", "future")

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def receive(self, result: Any, /) -> None:
        if self.future.done():
            # The coroutine was cancelled.
            return
        if isinstance(result, BrokerError):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)

    def failed(self, kind: str, error: Exception, /) -> None:
        self._receiver.failed(kind, error)

    def abandon(self, kind: str, error: Exception, /) -> None:
        # The coroutine raises, and the session reports that.
        if not self.future.done():
            self.future.set_exception(error)


class Gathering:
    """A response made of parts that end one by one, in any order. The `Receiver` of the parts."""

    __slots__ = ("_kind", "_open_count", "_parts", "_receiver", "_reply", "_response", "_timer")

    def __init__(self, kind: ReplyKind, context: Context, response: Any) -> None:
        self._kind = kind
        self._receiver = context.receiver
        self._response = response
        #: One more than there are parts, so that nothing ends before all have begun.
        self._open_count = 1
        self._parts: list[Reply[Any]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._reply: Reply[Any] = Reply(kind, context.receiver, _no_error_response)
        self._reply.on_end = self._let_go

    def part(
        self, respond: Callable[[Any], None] | None, refuse: Callable[[ErrorCode], None]
    ) -> Reply[Any]:
        """A reply for one more part; both callbacks write into the response."""
        self._open_count += 1
        part: Reply[Any] = Reply(self._kind, self, refuse, respond)
        self._parts.append(part)
        return part

    def finish(self, timeout_s: float | None = None) -> Reply[Any]:
        """All parts have begun; what the handler returns. Parts that have not ended after
        `timeout_s` fail with REQUEST_TIMED_OUT."""
        self._close_one()
        if timeout_s is not None and self._reply.is_open:
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._time_out)
        return self._reply

    def _time_out(self) -> None:
        for part in self._parts:
            part.fail(ErrorCode.REQUEST_TIMED_OUT)

    def _let_go(self) -> None:
        """The response left, or the client disconnected."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        parts, self._parts = self._parts, []
        for part in parts:
            part.cancel()

    def receive(self, result: Any, /) -> None:
        self._close_one()

    def failed(self, kind: str, error: Exception, /) -> None:
        self._receiver.failed(kind, error)

    def abandon(self, kind: str, error: Exception, /) -> None:
        """One part has neither a result nor an error: the response can't be completed."""
        self._reply.cancel()
        self._receiver.abandon(kind, error)

    def _close_one(self) -> None:
        self._open_count -= 1
        if not self._open_count:
            self._reply.deliver(self._response)


def _no_error_response(code: ErrorCode) -> Any:
    """Each part has its own error; the whole response has none."""
    raise BrokerError(code)
