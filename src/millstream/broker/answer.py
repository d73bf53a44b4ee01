"""Answers that coordinators give through tickets, as outcomes of handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from millstream.broker.context import Context
from millstream.broker.deferred import Deferred
from millstream.coordination.ticket import Ticket
from millstream.groups.group import Caller
from millstream.model.error import BrokerError, ErrorCode

#: A response, or a Deferred that will have it.
Answer: TypeAlias = Any


def caller_of(context: Context) -> Caller:
    """Addresses are told as Kafka tells them, with a slash before them."""
    return Caller(context.client_id or "", f"/{context.client_address}", context.version)


def ask(
    begin: Callable[[Ticket], None],
    refuse: Callable[[ErrorCode], Any],
    respond: Callable[[Any], Any] = lambda reply: reply,
) -> Answer:
    """Begin something that answers a ticket; `respond` makes the response of what it says, and
    `refuse` of an error."""
    deferred = Deferred()
    begin(
        Ticket(
            lambda reply: deferred.complete(respond(reply)),
            lambda code: deferred.complete(refuse(code)),
        )
    )
    return deferred if deferred.response is None else deferred.response


async def wait_for(begin: Callable[[Ticket], None]) -> Any:
    """Begin something that answers a ticket; what it says, or BrokerError. For handlers that have
    to wait for something else as well."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def settle(reply: Any, error: BrokerError | None = None) -> None:
        if future.done():
            # Whoever waited was cancelled.
            return
        if error is None:
            future.set_result(reply)
        else:
            future.set_exception(error)

    begin(Ticket(settle, lambda code: settle(None, BrokerError(code))))
    return await future


class Gathering:
    """A response made of parts that are answered one by one, in any order."""

    __slots__ = ("_deferred", "_open_count", "_response")

    def __init__(self, response: Any) -> None:
        self._response = response
        #: One more than there are parts, so that nothing ends before all have begun.
        self._open_count = 1
        self._deferred = Deferred()

    def ticket(self, deliver: Callable[[Any], None], refuse: Callable[[ErrorCode], None]) -> Ticket:
        """For one more part; both callbacks write into the response."""
        self._open_count += 1

        def delivered(reply: Any) -> None:
            deliver(reply)
            self._close_one()

        def failed(code: ErrorCode) -> None:
            refuse(code)
            self._close_one()

        return Ticket(delivered, failed)

    def finish(self) -> Answer:
        """All parts have begun; what the handler returns."""
        self._close_one()
        return self._deferred if self._deferred.response is None else self._deferred.response

    def _close_one(self) -> None:
        self._open_count -= 1
        if not self._open_count:
            self._deferred.complete(self._response)
