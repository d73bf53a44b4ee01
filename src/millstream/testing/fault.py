"""Faults on demand, between a broker's sessions and its handlers.

`Faults.install` wraps every handler of one broker. By default requests pass through. Faults can
reject Produce requests before anything is appended, drop their responses after the append, and
delay responses. Delayed responses keep the order of their connection, and leave at once when the
faults are cleared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from millstream.broker.context import CloseConnectionError, Context
from millstream.broker.dispatch import Api, ApiTable, DispatchedHandler
from millstream.broker.error_response import error_response
from millstream.broker.handlers.produce import reject_all
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Receiver, Reply, ReplyKind
from millstream.wire.api import ApiKey


@dataclass(slots=True)
class _Delay:
    #: Read when a response is ready, which may be long after its request.
    seconds: float = 0.0
    #: Number of responses still to delay; None for all.
    remaining: int | None = 0


class Faults:
    """The faults of one broker. Event loop only."""

    __slots__ = ("_delayed", "_delays", "_dropped_responses", "_failures")

    def __init__(self) -> None:
        #: Errors of the next Produce requests, in order.
        self._failures: list[ErrorCode] = []
        #: Number of the next Produce requests whose responses are dropped.
        self._dropped_responses = 0
        #: By API; the key None is for every API without an entry.
        self._delays: dict[ApiKey | None, _Delay] = {}
        #: Delayed responses: the function that sends each, and its timer.
        self._delayed: dict[object, tuple[Callable[[], None], asyncio.TimerHandle]] = {}

    def install(self, apis: ApiTable) -> None:
        for api in apis:
            api.handle = self._guard(api, api.handle)

    def fail_produces(self, count: int, code: ErrorCode) -> None:
        self._failures += [code] * count

    def drop_produce_answers(self, count: int) -> None:
        self._dropped_responses += count

    def delay_answers(self, seconds: float, key: ApiKey | None, count: int | None) -> None:
        delay = self._delays.setdefault(key, _Delay())
        delay.seconds, delay.remaining = seconds, count

    def clear(self) -> None:
        """Remove all faults; delayed responses leave now."""
        self._failures.clear()
        self._dropped_responses = 0
        for delay in self._delays.values():
            delay.seconds, delay.remaining = 0.0, 0
        self._delays.clear()
        for send, timer in list(self._delayed.values()):
            timer.cancel()
            send()

    def _guard(self, api: Api, handle: DispatchedHandler) -> DispatchedHandler:
        if api.key == ApiKey.PRODUCE:
            handle = self._guard_produce(handle)

        def handle_delayed(request: Any, context: Context) -> Any:
            delay = self._next_delay(api.key)
            if delay is None:
                return handle(request, context)
            receiver = context.receiver

            def reject(code: ErrorCode) -> Any:
                response = error_response(api, request, context, code)
                if response is None:
                    raise BrokerError(code)
                return response

            delayed = _DelayedResponse(
                self, Reply(ReplyKind.DELAYED, receiver, reject), receiver, delay
            )
            context.receiver = delayed
            outcome = handle(request, context)
            if outcome is None:
                return None
            if asyncio.iscoroutine(outcome):
                context.receiver = receiver
                return self._await_delayed(outcome, delay)
            delayed.wait_for(outcome)
            return delayed.reply

        return handle_delayed

    def _guard_produce(self, handle: DispatchedHandler) -> DispatchedHandler:
        def handle_or_fail(request: Any, context: Context) -> Any:
            if self._failures:
                return reject_all(request, self._failures.pop(0), "a fault that a test requested")
            outcome = handle(request, context)
            if outcome is None or not self._dropped_responses:
                return outcome
            self._dropped_responses -= 1
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

    async def _await_delayed(self, outcome: Coroutine[Any, Any, Any], delay: _Delay) -> Any:
        response = await outcome
        waiter = asyncio.get_running_loop().create_future()
        cancel = self.after(delay.seconds, lambda: waiter.set_result(None))
        try:
            await waiter
        finally:
            cancel()
        return response

    def after(self, seconds: float, action: Callable[[], None]) -> Callable[[], None]:
        """Call `action` then, or when the faults are cleared; return its cancel function."""
        key = object()

        def act() -> None:
            del self._delayed[key]
            action()

        def cancel() -> None:
            timer.cancel()
            self._delayed.pop(key, None)

        timer = asyncio.get_running_loop().call_later(seconds, act)
        self._delayed[key] = (act, timer)
        return cancel


class _DelayedResponse:
    """Delays one response. The request is handled without delay, because its buffer is reused as
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
