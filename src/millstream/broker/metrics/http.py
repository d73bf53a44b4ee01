"""The HTTP server: `/metrics`, `/healthz`, `/readyz`, `/readyz/in-sync`.

`/healthz` returns 200 as long as the event loop runs. `/readyz` returns 503 with the reason until
`ready` is called, and after `not_ready`. `/readyz/in-sync` also returns 503 while `sync_problem`
returns a reason. `/metrics` is Prometheus text.

With a token, or where clients present certificates, a client needs one of both for everything but
`/healthz`; others get 401, after `DENIAL_SECONDS`, and are reported. `HttpGuard` holds the rules.

Bounded: at most `CONNECTIONS_MAX` connections, short request lines and headers, no request bodies,
and one rendering at a time, shared by all waiting scrapes. Above the limit the oldest connection
without a request is closed, so that clients which send nothing keep no health check out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from aiohttp import web

from millstream.broker.metrics.broker_metrics import Metrics
from millstream.broker.metrics.exposition import CONTENT_TYPE
from millstream.broker.metrics.http_guard import HttpGuard

CONNECTIONS_MAX: Final = 64
REQUEST_LINE_BYTES_MAX: Final = 4096
KEEPALIVE_SECONDS: Final = 75.0
STOP_SECONDS_MAX: Final = 2.0
HANDSHAKE_SECONDS_MAX: Final = 10.0
#: The delay of the response to a client that is not admitted.
DENIAL_SECONDS: Final = 0.1

_Respond: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


async def _no_problem() -> str | None:
    return None


def _no_report(address: str, /) -> None:
    pass


class HttpServer:
    """Serves the metrics and the readiness of a broker on one address."""

    __slots__ = (
        "_guard",
        "_metrics",
        "_reason",
        "_rendering",
        "_report",
        "_runner",
        "port",
        "sync_problem",
    )

    def __init__(
        self,
        metrics: Metrics,
        guard: HttpGuard | None = None,
        report: Callable[[str], None] = _no_report,
    ) -> None:
        self._metrics = metrics
        self._guard = guard or HttpGuard()
        #: Counts and logs a client that is not admitted, by its address.
        self._report = report
        #: Why the broker is not ready; None once it is.
        self._reason: str | None = "starting"
        self._rendering: asyncio.Task[bytes] | None = None
        self._runner: web.ServerRunner | None = None
        #: The bound port while running.
        self.port = 0
        #: Returns why the broker's replicas do not count as in sync; None if they do.
        self.sync_problem: Callable[[], Awaitable[str | None]] = _no_problem

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
            context = self._guard.tls_context()
            await _Site(runner, host, port, ssl_context=context).start()
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
        if request.path == "/healthz":
            return web.Response(text="ok\n")
        if not self._guard.admits(request):
            self._report(request.remote or "local")
            return web.Response(
                status=401,
                headers={"WWW-Authenticate": "Bearer"},
                text="send `Authorization: Bearer TOKEN` with the broker's http.bearer.token\n",
            )
        if request.path == "/metrics":
            return web.Response(body=await self._render(), headers={"Content-Type": CONTENT_TYPE})
        if request.path == "/readyz":
            return _readiness("ready", self._reason)
        if request.path == "/readyz/in-sync":
            return _readiness("in sync", self._reason or await self.sync_problem())
        text = "try /metrics, /healthz, /readyz or /readyz/in-sync\n"
        return web.Response(status=404, text=text)

    async def _render(self) -> bytes:
        if self._rendering is None or self._rendering.done():
            self._rendering = asyncio.create_task(self._metrics.render())
        # Shielded: a scraper that disconnects must not cancel the rendering of the others.
        return await asyncio.shield(self._rendering)


def _readiness(state: str, problem: str | None) -> web.Response:
    if problem is None:
        return web.Response(text=f"{state}\n")
    return web.Response(status=503, text=f"not {state}: {problem}\n")


class _Site(web.TCPSite):
    """The listening socket, with a short limit for TLS handshakes."""

    async def start(self) -> None:
        if self._ssl_context is None:
            await super().start()
            return
        await web.BaseSite.start(self)
        server = self._runner.server
        assert server is not None
        self._server = await asyncio.get_running_loop().create_server(
            server,
            self._host,
            self._port,
            ssl=self._ssl_context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX,
            ssl_shutdown_timeout=STOP_SECONDS_MAX,
            backlog=self._backlog,
        )


class _BoundedServer(web.Server):
    """aiohttp's low-level server, with a limit of connections."""

    def __init__(self, respond: _Respond, **options: Any) -> None:
        super().__init__(self._serve, **options)
        self._respond = respond
        #: The connections whose requests are handled.
        self._busy: set[web.RequestHandler] = set()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        # A connection that was aborted stays in the list until the next iteration of the loop.
        live = [
            each
            for each in self.connections
            if each.transport is not None and not each.transport.is_closing()
        ]
        if len(live) > CONNECTIONS_MAX:
            idle = next((each for each in live if each not in self._busy), handler)
            (idle.transport or transport).abort()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self._busy.add(request.protocol)
        try:
            response = await self._respond(request)
        finally:
            self._busy.discard(request.protocol)
        if response.status == web.HTTPUnauthorized.status_code:
            # Meanwhile the connection may end in favor of another one.
            await asyncio.sleep(DENIAL_SECONDS)
        return response
