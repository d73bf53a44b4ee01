"""Faults on demand, between a broker's sessions and its handlers.

`Faults.install` puts itself in front of every handler of one broker. Until it is told otherwise it
hands requests through. It can refuse produces before anything is appended, drop the answers of
produces after they were, and hold answers back. Held answers keep their connection's order, as
every answer does, and leave at once when the faults are cleared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from millstream.broker.context import CloseConnectionError, Context
from millstream.broker.dispatch import Api, ApiTable, DispatchedHandler
from millstream.broker.error_response import error_response
from millstream.broker.handlers.produce import refuse_all
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Receiver, Reply, ReplyKind
from millstream.wire.api import ApiKey


@dataclass(slots=True)
class _Delay:
    #: Looked at when an answer is ready, which may be long after its request was.
    seconds: float = 0.0
    #: How many answers are still to be held back; None for all.
    remaining: int | None = 0


class Faults:
    """See the module's text. Event loop only."""

    __slots__ = ("_delays", "_failures", "_held", "_unanswered")

    def __init__(self) -> None:
        #: What the next produces are refused with, in turn.
        self._failures: list[ErrorCode] = []
        #: How many of the next produces are carried out and then not answered.
        self._unanswered = 0
        #: By API; None is every API that has none of its own.
        self._delays: dict[ApiKey | None, _Delay] = {}
        #: Answers on their way, as what sends each of them, and its timer.
        self._held: dict[object, tuple[Callable[[], None], asyncio.TimerHandle]] = {}

    def install(self, apis: ApiTable) -> None:
        for api in apis:
            api.handle = self._guard(api, api.handle)

    def fail_produces(self, count: int, code: ErrorCode) -> None:
        self._failures += [code] * count

    def drop_produce_answers(self, count: int) -> None:
        self._unanswered += count

    def delay_answers(self, seconds: float, key: ApiKey | None, count: int | None) -> None:
        delay = self._delays.setdefault(key, _Delay())
        delay.seconds, delay.remaining = seconds, count

    def clear(self) -> None:
        """Have no faults any more; answers that were held back leave now."""
        self._failures.clear()
        self._unanswered = 0
        for delay in self._delays.values():
            delay.seconds, delay.remaining = 0.0, 0
        self._delays.clear()
        for send, timer in list(self._held.values()):
            timer.cancel()
            send()

    def _guard(self, api: Api, handle: DispatchedHandler) -> DispatchedHandler:
        if api.key == ApiKey.PRODUCE:
            handle = self._guard_produce(handle)

        def handle_late(request: Any, context: Context) -> Any:
            delay = self._next_delay(api.key)
            if delay is None:
                return handle(request, context)
            receiver = context.receiver

            def refuse(code: ErrorCode) -> Any:
                response = error_response(api, request, context, code)
                if response is None:
                    raise BrokerError(code)
                return response

            late = _Late(self, Reply(ReplyKind.DELAYED, receiver, refuse), receiver, delay)
            context.receiver = late
            outcome = handle(request, context)
            if outcome is None:
                return None
            if asyncio.iscoroutine(outcome):
                context.receiver = receiver
                return self._await_late(outcome, delay)
            late.wait_for(outcome)
            return late.reply

        return handle_late

    def _guard_produce(self, handle: DispatchedHandler) -> DispatchedHandler:
        def handle_or_fail(request: Any, context: Context) -> Any:
            if self._failures:
                return refuse_all(request, self._failures.pop(0), "a fault that a test asked for")
            outcome = handle(request, context)
            if outcome is None or not self._unanswered:
                return outcome
            self._unanswered -= 1
            if isinstance(outcome, Reply):
                outcome.cancel()
            raise CloseConnectionError("a test drops the response")

        return handle_or_fail

    def _next_delay(self, key: ApiKey) -> _Delay | None:
        delay = self._delays.get(key) or self._delays.get(None)
        if delay is None or delay.remaining == 0:
            return None
        if delay.remaining is not None:
            delay.remaining -= 1
        return delay

    async def _await_late(self, outcome: Coroutine[Any, Any, Any], delay: _Delay) -> Any:
        response = await outcome
        waiter = asyncio.get_running_loop().create_future()
        call_off = self.after(delay.seconds, lambda: waiter.set_result(None))
        try:
            await waiter
        finally:
            call_off()
        return response

    def after(self, seconds: float, action: Callable[[], None]) -> Callable[[], None]:
        """Act after that time, or when the faults are cleared; returns what calls it off."""
        key = object()

        def act() -> None:
            del self._held[key]
            action()

        def call_off() -> None:
            timer.cancel()
            self._held.pop(key, None)

        timer = asyncio.get_running_loop().call_later(seconds, act)
        self._held[key] = (act, timer)
        return call_off


class _Late:
    """Holds one response back. The request itself was handled in time: its buffer is used again as
    soon as the handler has returned."""

    __slots__ = ("_delay", "_faults", "_receiver", "reply")

    def __init__(
        self, faults: Faults, reply: Reply[Any], receiver: Receiver, delay: _Delay
    ) -> None:
        self._faults = faults
        self._receiver = receiver
        self._delay = delay
        self.reply = reply

    def wait_for(self, outcome: Any) -> None:
        if not isinstance(outcome, Reply):
            self.receive(outcome)
        elif outcome.is_open:
            self.reply.on_end = outcome.cancel

    def receive(self, result: Any, /) -> None:
        reply = self.reply
        reply.on_end = self._faults.after(self._delay.seconds, lambda: reply.deliver(result))

    def failed(self, kind: str, error: Exception, /) -> None:
        self._receiver.failed(kind, error)

    def abandon(self, kind: str, error: Exception, /) -> None:
        self.reply.cancel()
        self._receiver.abandon(kind, error)
