"""Who may use the HTTP server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import uvloop

from harness.process.tls_process import HOSTS, TlsHome
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.broker.metrics.http import HttpServer
from millstream.broker.metrics.http_guard import HttpGuard
from millstream.env.disk import SystemDisk
from millstream.security.tls_material import ClientAuth, TlsOptions
from millstream.security.tls_source import TlsSource

PATHS = ("/healthz", "/readyz", "/readyz/in-sync", "/metrics", "/other")


@asynccontextmanager
async def serving(
    guard: HttpGuard, report: Callable[[str], None] = lambda _: None
) -> AsyncIterator[HttpServer]:
    server = HttpServer(Metrics(), guard, report)
    await server.start("127.0.0.1", 0)
    server.ready()
    try:
        yield server
    finally:
        await server.stop()


async def get(
    server: HttpServer,
    path: str,
    authorization: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> int:
    headers = {} if authorization is None else {"Authorization": authorization}
    url = f"{'https' if tls else 'http'}://127.0.0.1:{server.port}{path}"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls or True)) as session,
        session.get(url, headers=headers) as response,
    ):
        return response.status


def run(body: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body())  # type: ignore[arg-type]


def test_without_a_token_everything_is_served() -> None:
    async def body() -> None:
        async with serving(HttpGuard()) as server:
            assert [await get(server, path) for path in PATHS] == [200, 200, 200, 200, 404]

    run(body)


def test_a_closed_server_serves_only_health() -> None:
    async def body() -> None:
        async with serving(HttpGuard(is_closed=True)) as server:
            assert [await get(server, path) for path in PATHS] == [200, 401, 401, 401, 401]
            assert await get(server, "/metrics", "Bearer ") == 401

    run(body)


def test_with_a_token_only_health_is_served_to_everyone() -> None:
    async def body() -> None:
        async with serving(HttpGuard(lambda: "s3cret")) as server:
            assert [await get(server, path) for path in PATHS] == [200, 401, 401, 401, 401]
            good = [await get(server, path, "Bearer s3cret") for path in PATHS]
            assert good == [200, 200, 200, 200, 404]
            assert await get(server, "/metrics", "bearer  s3cret ") == 200
            for wrong in ("Bearer s3cre", "Bearer", "s3cret", "Basic s3cret", "Bearer é", ""):
                assert await get(server, "/metrics", wrong) == 401

    run(body)


def test_clients_that_are_not_admitted_are_reported() -> None:
    reported: list[str] = []

    async def body() -> None:
        async with serving(HttpGuard(lambda: "s3cret"), reported.append) as server:
            assert await get(server, "/metrics", "Bearer s3cret") == 200
            assert await get(server, "/healthz", "Bearer wrong") == 200
            assert reported == []
            assert await get(server, "/metrics", "Bearer wrong") == 401
            assert await get(server, "/metrics") == 401

    run(body)
    assert reported == ["127.0.0.1"] * 2


def test_a_token_that_cannot_be_read_admits_nobody() -> None:
    async def body() -> None:
        async with serving(HttpGuard(lambda: "")) as server:
            assert await get(server, "/metrics", "Bearer ") == 401
            assert await get(server, "/metrics") == 401

    run(body)


def source(home: TlsHome, auth: ClientAuth) -> TlsSource:
    options = TlsOptions(
        prefix="http.ssl.",
        keystore_location=str(home.folder / "broker.pem"),
        truststore_location=home.ca,
        client_auth=auth,
    )
    return TlsSource("the HTTP server", options, SystemDisk())


def test_certificates_of_clients(tmp_path: Path) -> None:
    home = TlsHome(tmp_path)

    async def body() -> None:
        guard = HttpGuard(
            lambda: "s3cret", source(home, ClientAuth.REQUESTED), requires_client=True
        )
        async with serving(guard) as server:
            alice, nobody = home.context("alice"), home.context()
            assert await get(server, "/metrics", tls=alice) == 200
            assert await get(server, "/metrics", tls=nobody) == 401
            assert await get(server, "/metrics", "Bearer s3cret", nobody) == 200
            assert await get(server, "/healthz", tls=nobody) == 200

    run(body)


def test_replaced_files_apply_to_new_connections(tmp_path: Path) -> None:
    """The certificate of the server and the authorities of clients."""
    home = TlsHome(tmp_path / "a")
    tls = source(home, ClientAuth.REQUIRED)

    async def body() -> None:
        async with serving(HttpGuard(tls=tls, requires_client=True)) as server:
            alice = home.context("alice")
            assert await get(server, "/metrics", tls=alice) == 200
            other = TlsHome(tmp_path / "b")
            other.authority.issue("broker", hosts=HOSTS, days=2)
            for name in ("broker.pem", "ca.pem"):
                (home.folder / name).write_bytes((other.folder / name).read_bytes())
            tls.refresh()
            assert tls.reloads == 1
            assert await get(server, "/metrics", tls=other.context("bob")) == 200
            with pytest.raises(aiohttp.ClientError):
                await get(server, "/metrics", tls=alice)
            # The authority of alice is no longer trusted.
            stale = other.context()
            stale.load_cert_chain(home.folder / "alice.pem")
            with pytest.raises(aiohttp.ClientError):
                await get(server, "/metrics", tls=stale)

    run(body)
