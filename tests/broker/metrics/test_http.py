from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from millstream.broker.metrics import http
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.broker.metrics.http import HttpServer


@contextlib.asynccontextmanager
async def serving(metrics: Metrics | None = None) -> AsyncIterator[tuple[HttpServer, str]]:
    server = HttpServer(metrics or Metrics())
    await server.start("127.0.0.1", 0)
    try:
        yield server, f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(90):
            await body()

    asyncio.run(main())


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


def test_readiness_says_why_not() -> None:
    async def body() -> None:
        async with serving() as (server, url):
            assert await get(f"{url}/readyz") == (503, "not ready: starting\n")
            server.not_ready("recovering logs")
            assert await get(f"{url}/readyz") == (503, "not ready: recovering logs\n")
            assert (await get(f"{url}/healthz"))[0] == 200
            server.ready()
            assert await get(f"{url}/readyz") == (200, "ready\n")

    run(body)


def test_in_sync_says_why_not() -> None:
    problems: list[str | None] = ["2 of 3 replicas are not in sync", None]

    async def next_problem() -> str | None:
        return problems.pop(0)

    async def body() -> None:
        async with serving() as (server, url):
            server.sync_problem = next_problem
            in_sync = f"{url}/readyz/in-sync"
            assert await get(in_sync) == (503, "not in sync: starting\n")
            server.ready()
            assert await get(in_sync) == (503, "not in sync: 2 of 3 replicas are not in sync\n")
            assert await get(in_sync) == (200, "in sync\n")

    run(body)


def test_metrics_are_prometheus_text() -> None:
    async def body() -> None:
        metrics = Metrics()
        metrics.topic("orders").bytes_in += 42
        async with (
            serving(metrics) as (_, url),
            aiohttp.ClientSession() as session,
            session.get(f"{url}/metrics") as response,
        ):
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = await response.text()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        (sample,) = families["millstream_topic_received_bytes"].samples
        assert (sample.labels, sample.value) == ({"topic": "orders"}, 42)

    run(body)


def test_scrapes_at_once_share_one_rendering() -> None:
    class CountingMetrics(Metrics):
        renderings = 0

        async def render(self) -> bytes:
            CountingMetrics.renderings += 1
            await asyncio.sleep(0.05)
            return b""

    async def body() -> None:
        async with serving(CountingMetrics()) as (_, url):
            await asyncio.gather(*[get(f"{url}/metrics") for _ in range(5)])

    run(body)
    assert CountingMetrics.renderings < 5


def test_other_paths_and_methods_are_rejected() -> None:
    async def body() -> None:
        async with serving() as (_, url):
            assert (await get(f"{url}/nothing"))[0] == 404
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{url}/metrics") as response,
            ):
                assert response.status == 405

    run(body)


def test_a_taken_port_is_an_os_error() -> None:
    async def body() -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as taken,
            pytest.raises(OSError, match="address already in use"),
        ):
            await HttpServer(Metrics()).start("127.0.0.1", taken.getsockname()[1])

    run(body)


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)

    async def body() -> None:
        async with serving() as (server, url):
            held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
            # The oldest ones end: they send nothing.
            for reader, _ in held[:2]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            for _ in range(5):
                assert (await get(f"{url}/healthz"))[0] == 200
            for _, writer in held:
                writer.close()

    run(body)


def test_a_request_is_not_ended_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)
    all_asked, may_end = asyncio.Event(), asyncio.Event()
    asked = 0

    async def render(_: HttpServer) -> bytes:
        nonlocal asked
        asked += 1
        if asked == 3:
            all_asked.set()
        await may_end.wait()
        return b""

    monkeypatch.setattr(HttpServer, "_render", render)

    async def body() -> None:
        async with serving() as (server, url):
            answers = [asyncio.create_task(get(f"{url}/metrics")) for _ in range(3)]
            await all_asked.wait()
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            may_end.set()
            assert [status for status, _ in await asyncio.gather(*answers)] == [200] * 3

    run(body)


def test_stop_is_repeatable_and_closes_the_port() -> None:
    async def body() -> None:
        async with serving() as (server, url):
            await server.stop()
            with pytest.raises(aiohttp.ClientConnectionError):
                await get(f"{url}/healthz")

    run(body)
