"""Deletes expired delegation tokens from the metadata, at intervals.

An expired token is rejected wherever it is used. This task only removes its record. The controller
does it for the cluster.
"""

from __future__ import annotations

import asyncio

from millstream.env.clock import Clock
from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.metadata.catalog import Catalog
from millstream.metadata.security_record import decode_token, token_key


class TokenExpiry:
    """Deletes expired tokens while this broker is the controller."""

    __slots__ = ("_catalog", "_clock", "_interval_s", "_node_id", "_task")

    def __init__(self, catalog: Catalog, clock: Clock, node_id: int, interval_ms: int) -> None:
        self._catalog = catalog
        self._clock = clock
        self._node_id = node_id
        self._interval_s = interval_ms / 1000
        self._task: SupervisedTask | None = None

    def start(self, supervisor: Supervisor) -> None:
        self._task = supervisor.start("token-expiry", self._run)

    async def stop(self) -> None:
        if self._task is not None:
            await self._task.stop()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if self._catalog.image.controller == self._node_id:
                await self.delete_expired()

    async def delete_expired(self) -> None:
        """Delete the tokens that have expired."""
        now_ms = self._clock.wall_ms()

        def edit(value: bytes | None) -> bytes | None:
            # The token may have been renewed meanwhile.
            return None if value is None or decode_token(value).expiry_ms <= now_ms else value

        for token in list(self._catalog.image.tokens.values()):
            if token.expiry_ms <= now_ms:
                await self._catalog.alter_key(token_key(token.token_id), edit)
