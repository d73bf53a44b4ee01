"""Replies that a coordinator ends: one result, several parts, or an awaited result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from millstream.broker.context import Context
from millstream.groups.group import Caller
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Receiver, Reply, ReplyKind
from millstream.wire.schema import Message

T = TypeVar("T")


def caller_of(context: Context) -> Caller:
    """Return the client of a request. Like Kafka, groups show its address with a leading slash."""
    return Caller(context.client_id or "", f"/{context.client_address}", context.version)


def start_reply(
    kind: ReplyKind,
    context: Context,
    begin: Callable[[Reply[T]], None],
    reject: Callable[[ErrorCode], Message],
    respond: Callable[[T], Message] | None = None,
) -> Reply[T]:
    """Call `begin` with a new reply, and return the reply.

    `respond` makes the response from the result, and `reject` makes it from an error. Without
    `respond` the result is the response."""
    reply: Reply[T] = Reply(kind, context.receiver, reject, respond)
    begin(reply)
    return reply


async def await_result(kind: ReplyKind, context: Context, begin: Callable[[Reply[T]], None]) -> T:
    """Call `begin` with a new reply, and return the result of the reply. Raises BrokerError. For
    handlers that also wait for something else."""
    awaited: _Awaited[T] = _Awaited(context.receiver)
    begin(Reply(kind, awaited, BrokerError))
    return await awaited.future


class _Awaited(Generic[T]):
    """The `Receiver` of a result that a coroutine waits for."""

    __slots__ = ("_receiver", "future")

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def receive(self, result: T | BrokerError, /) -> None:
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


class CombinedReply:
    """A response of several parts that end in any order. The `Receiver` of the parts."""

    __slots__ = (
        "_kind",
        "_open_count",
        "_parts",
        "_receiver",
        "_reply",
        "_response",
        "_timer",
        "context",
    )

    def __init__(self, kind: ReplyKind, context: Context, response: Message) -> None:
        self._kind = kind
        self.context = context
        self._receiver = context.receiver
        self._response = response
        #: Open parts, plus 1 until `finish`: the response waits for all parts to begin.
        self._open_count = 1
        self._parts: list[Reply[Any]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._reply: Reply[Message] = Reply(kind, context.receiver, _no_error_response)
        self._reply.on_end = self._release

    def part(
        self, respond: Callable[[T], None] | None, reject: Callable[[ErrorCode], None]
    ) -> Reply[T]:
        """Return the reply of one more part. Both callbacks write into the response."""
        self._open_count += 1
        part: Reply[T] = Reply(self._kind, self, reject, respond)
        self._parts.append(part)
        return part

    def finish(self, timeout_s: float | None = None) -> Reply[Message]:
        """Return the reply of the whole response, once all parts have begun. Parts that are open
        after `timeout_s` fail with REQUEST_TIMED_OUT."""
        self._close_one()
        if timeout_s is not None and self._reply.is_open:
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._time_out)
        return self._reply

    def _time_out(self) -> None:
        for part in self._parts:
            part.fail(ErrorCode.REQUEST_TIMED_OUT)

    def _release(self) -> None:
        """Cancel the timer and the open parts, as the reply has ended."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        parts, self._parts = self._parts, []
        for part in parts:
            part.cancel()

    def receive(self, result: None, /) -> None:
        self._close_one()

    def failed(self, kind: str, error: Exception, /) -> None:
        self._receiver.failed(kind, error)

    def abandon(self, kind: str, error: Exception, /) -> None:
        """Abandon the response: one part has neither a result nor an error."""
        self._reply.cancel()
        self._receiver.abandon(kind, error)

    def _close_one(self) -> None:
        self._open_count -= 1
        if not self._open_count:
            self._reply.deliver(self._response)


def _no_error_response(code: ErrorCode) -> Message:
    """Raise `code`: the parts have errors of their own, the whole response has none."""
    raise BrokerError(code)
