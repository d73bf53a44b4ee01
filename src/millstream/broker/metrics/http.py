"""The HTTP server: `/metrics`, `/healthz`, `/readyz`.

`/healthz` returns 200 as long as the event loop runs. `/readyz` returns 503 with the reason until
`ready` is called, and after `not_ready`. `/metrics` is Prometheus text.

Bounded: at most `CONNECTIONS_MAX` connections (further ones are closed at once), short request
lines and headers, no request bodies, and one rendering at a time, shared by all waiting scrapes.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from millstream.broker.metrics.broker_metrics import Metrics
from millstream.broker.metrics.exposition import CONTENT_TYPE

CONNECTIONS_MAX: Final = 64
REQUEST_LINE_BYTES_MAX: Final = 4096
KEEPALIVE_SECONDS: Final = 75.0
STOP_SECONDS_MAX: Final = 2.0


class HttpServer:
    """Serves the metrics and the readiness of a broker on one address."""

    __slots__ = ("_metrics", "_reason", "_rendering", "_runner", "port")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        #: Why the broker is not ready; None once it is.
        self._reason: str | None = "starting"
        self._rendering: asyncio.Task[bytes] | None = None
        self._runner: web.ServerRunner | None = None
        #: The bound port while running.
        self.port = 0

    def ready(self) -> None:
        self._reason = None

    def not_ready(self, reason: str) -> None:
        self._reason = reason

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError if the address cannot be bound."""
        server = _BoundedServer(
            self._handle,
            access_log=None,
            keepalive_timeout=KEEPALIVE_SECONDS,
            max_line_size=REQUEST_LINE_BYTES_MAX,
            max_field_size=REQUEST_LINE_BYTES_MAX,
        )
        runner = web.ServerRunner(server, shutdown_timeout=STOP_SECONDS_MAX)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the listener and every connection; a scrape in progress gets a moment to finish."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        if self._rendering is not None:
            self._rendering.cancel()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"}, text="GET only\n")
        if request.path == "/metrics":
            return web.Response(body=await self._render(), headers={"Content-Type": CONTENT_TYPE})
        if request.path == "/healthz":
            return web.Response(text="ok\n")
        if request.path == "/readyz":
            if self._reason is None:
                return web.Response(text="ready\n")
            return web.Response(status=503, text=f"not ready: {self._reason}\n")
        return web.Response(status=404, text="try /metrics, /healthz or /readyz\n")

    async def _render(self) -> bytes:
        if self._rendering is None or self._rendering.done():
            self._rendering = asyncio.create_task(self._metrics.render())
        # Shielded: a scraper that disconnects must not cancel the rendering of the others.
        return await asyncio.shield(self._rendering)


class _BoundedServer(web.Server):
    """aiohttp's low-level server, with a limit of connections."""

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
