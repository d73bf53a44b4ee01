"""A login whose messages have no request headers: what follows version 0 of SaslHandshake.

Each frame from the client is a message of the mechanism, and each frame to the client the response
of the mechanism. A failed login has no response: the connection is closed. kafka-python before 2.1
logs in like this.

A `RawLogin` handles the frames of its connection in place of the session, from the handshake until
the client is authenticated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from millstream.broker.context import CloseConnectionError, Context
from millstream.model.failure import CallbackKind
from millstream.net.rejection import RejectedRequestError, Rejection
from millstream.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)

if TYPE_CHECKING:
    from millstream.broker.login.client_login import ClientLogin
    from millstream.net.connection import Connection

_LENGTH: Final = Struct(">i")


class RawLogin:
    """The frames of one login: a `FrameHandler`."""

    __slots__ = ("_connection", "_context", "_login", "_session", "_tasks")

    def __init__(
        self,
        login: ClientLogin,
        context: Context,
        connection: Connection,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        """Take the frames of the connection from its session. `context` is the handshake's."""
        self._login = login
        self._context = context
        self._connection = connection
        #: The request tasks of the whole server.
        self._tasks = tasks
        self._session = connection.hand_over(self)

    def receive(self, frame: memoryview) -> None:
        if not self._login.is_in_progress:
            # A request that arrived together with the last message of the login.
            self._session.receive(frame)
            return
        request = SaslAuthenticateRequest(auth_bytes=bytes(frame))
        try:
            outcome = self._login.authenticate(request, self._context)
        except CloseConnectionError as error:
            raise RejectedRequestError(
                Rejection.AUTHENTICATION, str(error), self._context.client_id, "a login"
            ) from error
        except Exception as error:  # noqa: BLE001  # logged, and ends the connection
            self._abandon(error)
            return
        if isinstance(outcome, SaslAuthenticateResponse):
            self._respond(outcome)
            return
        task = asyncio.get_running_loop().create_task(self._await(outcome))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await(self, coroutine: Coroutine[Any, Any, SaslAuthenticateResponse]) -> None:
        try:
            self._respond(await coroutine)
        except Exception as error:  # noqa: BLE001  # logged, and ends the connection
            self._abandon(error)

    def _abandon(self, error: Exception) -> None:
        about = f"a login from {self._connection.address}"
        self._context.services.failures.note(CallbackKind.HANDLER, error, about)
        self._connection.close("error")

    def _respond(self, response: SaslAuthenticateResponse) -> None:
        if response.error_code:
            # The login closes the connection.
            return
        if not self._login.is_in_progress:
            self._connection.hand_over(self._session)
        self._connection.send([_LENGTH.pack(len(response.auth_bytes)), response.auth_bytes])

    def is_idle(self) -> bool:
        return self._session.is_idle()

    def closed(self) -> None:
        self._session.closed()
