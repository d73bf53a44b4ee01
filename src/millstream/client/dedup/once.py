"""`once(store)`: a handler that processes each message once, by the message's id.

    seen = sqlite_store("processed.db")

    @once(seen)
    def handle(message): ...

    with once(seen).claim("order-17") as first:
        if first: ...

If a handler raises, its message counts as not processed. If its process is killed, so does the
message once its lease has expired, and the handler's work is done again. Where that must not
happen, write in one database transaction: `record_once` by id, or `StoredOffsets` by offset.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

from millstream.client.dedup.message import headers_of, position_of
from millstream.client.dedup.store import Claim, Store
from millstream.client.error import UsageError
from millstream.client.old_name import rejects_old_names
from millstream.model.error import MillstreamError

ID_HEADER: Final = "message-id"

_RETRY_S_MIN: Final = 0.01
_RETRY_S_MAX: Final = 0.5

Handler = TypeVar("Handler", bound=Callable[..., Any])


class InProgressError(MillstreamError):
    """Another process has had the message in progress for longer than `wait`."""


class ClaimLostError(MillstreamError):
    """The handler took longer than its lease, and another process got the message meanwhile."""


def message_id(message: Any) -> str:
    """Return the header `message-id` of a record, or else its topic, partition and offset."""
    for name, value in headers_of(message):
        if name == ID_HEADER and value is not None:
            return value.decode() if isinstance(value, bytes) else str(value)
    return "{}/{}/{}".format(*position_of(message))


class Once:
    """Lets each message through once. `once` documents the options."""

    @rejects_old_names
    def __init__(
        self,
        store: Store,
        *,
        scope: str = "",
        ttl: float = 7 * 86_400.0,
        lease: float = 60.0,
        wait: float = 120.0,
        id_of: Callable[[Any], str] = message_id,
    ) -> None:
        if min(ttl, lease) <= 0 or wait < 0:
            raise UsageError("ttl and lease must be above 0, and wait must not be below 0.")
        self._store = store
        self._scope = f"{scope}/" if scope else ""
        self._ttl_s = ttl
        self._lease_s = lease
        self._wait_s = wait
        self._id_of = id_of

    def __call__(self, handler: Handler) -> Handler:
        """Wrap a function, plain or async, whose first argument is a message.

        The wrapper returns its result, or None for a message that was processed before.
        """
        if not callable(handler):
            raise UsageError(f"a handler is a function, not {type(handler).__name__}.")
        if inspect.iscoroutinefunction(handler):
            return cast("Handler", self._wrap_async(handler))

        @functools.wraps(handler)
        def run(message: Any, *args: Any, **kwargs: Any) -> Any:
            with self.claim(self._id_of(message)) as first:
                return handler(message, *args, **kwargs) if first else None

        return cast("Handler", run)

    @contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Yield whether the block is the first to process the message with this id."""
        token = uuid.uuid4().hex
        if not self._begin(name, token):
            yield False
            return
        try:
            yield True
        except BaseException:
            self._store.release(self._scope + name, token)
            raise
        self._end(name, token)

    def _wrap_async(self, handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(handler)
        async def run(message: Any, *args: Any, **kwargs: Any) -> Any:
            name, token = self._id_of(message), uuid.uuid4().hex
            if not await asyncio.to_thread(self._begin, name, token):
                return None
            try:
                result = await handler(message, *args, **kwargs)
            except BaseException:
                await asyncio.to_thread(self._store.release, self._scope + name, token)
                raise
            await asyncio.to_thread(self._end, name, token)
            return result

        return run

    def _begin(self, name: str, token: str) -> bool:
        deadline = time.monotonic() + self._wait_s
        retry_s = _RETRY_S_MIN
        while True:
            claim = self._store.claim(self._scope + name, token, self._lease_s)
            if claim is not Claim.BUSY:
                return claim is Claim.TAKEN
            if time.monotonic() >= deadline:
                raise InProgressError(
                    f"message {name!r} is still being processed by another process."
                )
            time.sleep(retry_s)
            retry_s = min(retry_s * 2, _RETRY_S_MAX)

    def _end(self, name: str, token: str) -> None:
        if not self._store.complete(self._scope + name, token, self._ttl_s):
            raise ClaimLostError(
                f"message {name!r} took longer than its lease of {self._lease_s} s, and may have"
                " been processed twice: raise lease."
            )


def once(store: Store, **options: Any) -> Once:
    """Return a guard that lets each message through once.

    `scope`: who processes the messages, where several share a store. `ttl`: how long a processed
    message is remembered. `lease`: longer than any handler takes. `wait`: how long to wait for
    another process that has the message. `id_of`: returns a message's id, by default `message_id`.
    Times are in seconds.
    """
    return Once(store, **options)
