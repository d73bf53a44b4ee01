"""Detects that another broker's process is dead, before its lease expires.

A `Probe` keeps one idle connection to a broker. When the connection breaks, the probe connects
again. If the host refuses the connection, the process is dead, and `on_dead` is called. Anything
else (a timeout, an unreachable host, a broker that has not listened yet) proves nothing, and the
lease decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from millstream.env.network import Network
from millstream.env.supervisor import Supervisor
from millstream.metadata.cluster_record import BrokerRecord, Endpoint

_logger = logging.getLogger(__name__)

_CONNECT_S_MAX: Final = 2.0
_RETRY_S: Final = 0.25
#: A restarted process may listen again by then, and one refusal can also be a full accept queue.
_REFUSALS: Final = 2
_REFUSAL_PAUSE_S: Final = 0.05


class _Idle(asyncio.BufferedProtocol):
    """A connection without requests."""

    __slots__ = ("_buffer", "lost")

    def __init__(self) -> None:
        self._buffer = bytearray(64)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


class Probe:
    """Watches one registration of one broker until it is closed or the broker is dead."""

    __slots__ = ("_endpoint", "_network", "_on_dead", "_task", "broker")

    def __init__(
        self,
        broker: BrokerRecord,
        endpoint: Endpoint,
        network: Network,
        on_dead: Callable[[BrokerRecord], None],
        supervisor: Supervisor,
    ) -> None:
        self.broker = broker
        self._endpoint = endpoint
        self._network = network
        self._on_dead = on_dead
        self._task = supervisor.start("broker-probe", self._watch, about=f"broker {broker.node_id}")

    def close(self) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        refusals = 0
        has_listened = False
        while refusals < _REFUSALS:
            try:
                async with asyncio.timeout(_CONNECT_S_MAX):
                    connection = await self._connect()
            except ConnectionRefusedError:
                refusals += has_listened
                if refusals < _REFUSALS:
                    await asyncio.sleep(_REFUSAL_PAUSE_S)
            except (OSError, TimeoutError):
                refusals = 0
                await asyncio.sleep(_RETRY_S)
            else:
                refusals = 0
                has_listened = True
                await _until_lost(connection)
        _logger.info("broker %d refuses connections: its process is dead", self.broker.node_id)
        self._on_dead(self.broker)

    async def _connect(self) -> tuple[asyncio.Transport, _Idle]:
        idle = _Idle()
        transport = await self._network.connect(
            self._endpoint.host, self._endpoint.port, lambda: idle
        )
        return transport, idle


async def _until_lost(connection: tuple[asyncio.Transport, _Idle]) -> None:
    transport, idle = connection
    try:
        await idle.lost
    finally:
        transport.close()
