"""A transaction for asyncio. Its calls to the coordinator wait on a thread."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from millstream.client.error import DeliveryError, MillstreamError, UsageError
from millstream.client.old_name import rejects_old_names
from millstream.client.producer.delivery import AsyncDelivery
from millstream.client.producer.transaction import TIMEOUT_S, OffsetSource, State, TransactionDriver
from millstream.client.record import Partition
from millstream.client.schedule import Headers
from millstream.client.serializer import KeySent, ValueSent

_logger = logging.getLogger(__name__)


class AsyncTransaction(Generic[KeySent, ValueSent]):
    """Begins with its `async with` block and commits at its end. An exception aborts it."""

    def __init__(
        self,
        begin: Callable[[], TransactionDriver],
        send: Callable[..., Coroutine[Any, Any, AsyncDelivery]],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._begin = begin
        self._flush = flush
        self._driver: TransactionDriver | None = None
        self._ended: State | None = None
        #: The producer's own method: a method around it would cost time for each record.
        self.send = send  # type: ignore[method-assign]

    if TYPE_CHECKING:

        async def send(
            self,
            topic: str,
            value: ValueSent | None,
            *,
            key: KeySent | None = None,
            headers: Headers | None = None,
            partition: int | None = None,
            timestamp: int | None = None,
            delay: dt.timedelta | float | None = None,
            deliver_at: dt.datetime | int | None = None,
        ) -> AsyncDelivery: ...

    @property
    def state(self) -> State:
        """The state of this transaction."""
        if self._ended is not None:
            return self._ended
        return State.NONE if self._driver is None else self._driver.state

    async def send_offsets(
        self, source: OffsetSource | Any, offsets: Mapping[Partition, int] | None = None
    ) -> None:
        """Commit the offsets that `source`, a consumer, has processed with the transaction; or
        `offsets`.
        """
        driver = self._open()
        chosen = source.offsets() if offsets is None else offsets
        await asyncio.to_thread(driver.add_offsets, chosen, source.group_metadata())

    @rejects_old_names
    async def commit(
        self,
        timeout: float = TIMEOUT_S,  # noqa: ASYNC109 -- as the sync method
    ) -> None:
        """Commit. Raises OutcomeUnknown if the coordinator does not respond in time."""
        driver = self._open()
        try:
            await self._flush()
        except DeliveryError:
            # The coordinator's response to the commit says the same, and ends the transaction.
            if driver.state is not State.OPEN:
                raise
        await self._end(driver, lambda: driver.commit(timeout))

    async def abort(self) -> None:
        """Abort: read-committed consumers see nothing of the transaction."""
        driver = self._open()
        await self._end(driver, driver.abort)

    async def _end(self, driver: TransactionDriver, call: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(call)
        finally:
            if driver.state in (State.COMMITTED, State.ABORTED, State.BROKEN):
                self._ended = driver.state

    def _open(self) -> TransactionDriver:
        if self._driver is None:
            raise UsageError("The transaction has not begun: use `async with`.")
        if self._ended is not None:
            raise UsageError(f"The transaction is {self._ended}: begin another one.")
        return self._driver

    async def __aenter__(self) -> Self:
        begun = asyncio.get_running_loop().run_in_executor(None, self._begin)
        try:
            self._driver = await asyncio.shield(begun)
        except asyncio.CancelledError:
            begun.add_done_callback(_abort_later)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ended is not None:
            return
        if error is None:
            await self.commit()
        elif self.state is State.OPEN:
            try:
                await self.abort()
            except MillstreamError as failure:
                error.add_note(f"The transaction could not be aborted: {failure}")


def _abort_later(begun: asyncio.Future[TransactionDriver]) -> None:
    """Abort a transaction whose `async with` was cancelled, so that the next one can begin."""
    if not begun.cancelled() and begun.exception() is None:
        aborted = asyncio.get_running_loop().run_in_executor(None, begun.result().abort)
        aborted.add_done_callback(_log_failure)


def _log_failure(aborted: asyncio.Future[None]) -> None:
    error = None if aborted.cancelled() else aborted.exception()
    if error is not None:
        _logger.warning("A cancelled transaction was not aborted: %s", error)
