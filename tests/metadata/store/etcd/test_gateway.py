"""Calls to fake members whose responses are malformed, late, incomplete or missing.

`test_etcd_store` has the tests with real members.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from harness.process.broker_process import HOST, free_port
from millstream.env.clock import SystemClock
from millstream.metadata.store.etcd import gateway_message as message
from millstream.metadata.store.etcd.address import EtcdOptions, parse_etcd_address
from millstream.metadata.store.etcd.gateway import EtcdError, EtcdGateway, check_version
from millstream.metadata.store.port import MetadataStoreError, UnavailableError, UncertainError

HEADER = {"cluster_id": "1", "revision": "7"}


class Member:
    """A fake etcd member: responds with a given status and body, or disconnects."""

    def __init__(self) -> None:
        self.port = free_port()
        self.version = "3.5.9"
        self.status = 200
        self.response: object = {"header": HEADER}
        self.hangs_up = False
        self.calls = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_get("/version", self._tell_version)
        application.router.add_post("/{path:.*}", self._call)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, HOST, self.port).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def _tell_version(self, request: web.Request) -> web.Response:
        return web.json_response({"etcdserver": self.version})

    async def _call(self, request: web.Request) -> web.Response:
        await request.read()
        self.calls += 1
        if self.hangs_up:
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=self.status, text=json.dumps(self.response))


def refuse(text: str, code: int = 14) -> dict[str, object]:
    return {"error": text, "message": text, "code": code}


def run(scenario: Callable[[EtcdGateway, Member, Member], Awaitable[None]]) -> None:
    """Run a scenario with two members. The first member gets the first call."""

    async def main() -> None:
        first, second = Member(), Member()
        text = f"etcd://{HOST}:{first.port},{HOST}:{second.port}"
        options = EtcdOptions(
            address=parse_etcd_address(text), attempt_ms_max=2000, call_ms_max=1000
        )
        async with asyncio.timeout(90), first.running(), second.running():
            gateway = EtcdGateway(options, SystemClock(), random.Random(1))
            gateway._current = 0
            try:
                await scenario(gateway, first, second)
            finally:
                await gateway.close()

    asyncio.run(main())


async def call(gateway: EtcdGateway, *, repeatable: bool = True) -> message.RangeResponse:
    return await gateway.call("/v3/kv/range", b"{}", message.RangeResponse, repeatable=repeatable)


def test_a_call_that_was_not_accepted_goes_to_the_next_member() -> None:
    async def scenario(gateway: EtcdGateway, first: Member, second: Member) -> None:
        first.status, first.response = 503, refuse("etcdserver: no leader")
        response = await call(gateway, repeatable=False)
        assert response.header.revision == 7
        assert (first.calls, second.calls) == (1, 1)
        # The next call goes directly to the second member.
        await call(gateway, repeatable=False)
        assert (first.calls, second.calls) == (1, 2)

    run(scenario)


@pytest.mark.parametrize("text", ["etcdserver: request timed out", "etcdserver: leader changed"])
def test_a_lost_call_is_retried_only_if_it_is_repeatable(text: str) -> None:
    async def scenario(gateway: EtcdGateway, first: Member, second: Member) -> None:
        first.status, first.response = 503, refuse(text)
        with pytest.raises(UncertainError, match=text):
            await call(gateway, repeatable=False)
        assert (first.calls, second.calls) == (1, 0)
        await call(gateway)
        assert (first.calls, second.calls) == (2, 1)

    run(scenario)


def test_a_member_that_disconnects_leaves_a_transaction_uncertain() -> None:
    async def scenario(gateway: EtcdGateway, first: Member, second: Member) -> None:
        first.hangs_up = True
        with pytest.raises(UncertainError):
            await call(gateway, repeatable=False)
        assert second.calls == 0

    run(scenario)


def test_a_malformed_response_leaves_a_transaction_uncertain() -> None:
    async def scenario(gateway: EtcdGateway, first: Member, second: Member) -> None:
        for first.status, first.response in (
            (502, "no gateway"),
            (200, {"header": "?"}),
            (200, []),
        ):
            gateway._current = 0
            with pytest.raises(UncertainError, match="malformed"):
                await call(gateway, repeatable=False)
        gateway._current = 0
        assert (await call(gateway)).header.revision == 7

    run(scenario)


def test_an_etcd_without_gateway_is_reported() -> None:
    async def scenario(gateway: EtcdGateway, first: Member, second: Member) -> None:
        first.status, first.response = 404, "404 page not found"
        with pytest.raises(MetadataStoreError, match="--enable-grpc-gateway"):
            await call(gateway)

    run(scenario)


def test_an_error_of_etcd_is_final() -> None:
    async def scenario(gateway: EtcdGateway, first: Member, second: Member) -> None:
        first.status, first.response = 429, refuse("etcdserver: mvcc: database space exceeded", 8)
        with pytest.raises(EtcdError, match="compact and defragment") as raised:
            await call(gateway)
        assert raised.value.code == message.RESOURCE_EXHAUSTED
        assert (first.calls, second.calls) == (1, 0)

    run(scenario)


def test_a_call_that_no_member_accepts_fails_in_time_with_the_reason() -> None:
    async def scenario(gateway: EtcdGateway, first: Member, second: Member) -> None:
        for member in (first, second):
            member.status, member.response = 503, refuse("etcdserver: no leader")
        with pytest.raises(UnavailableError, match="no leader"):
            await call(gateway, repeatable=False)
        assert first.calls >= 2
        assert second.calls >= 2

    run(scenario)


@pytest.mark.parametrize("version", ["3.5.0", "3.5.2", "3.5.5", "3.4.21", "3.3.27", "2.3.8", "?"])
def test_unsafe_versions_are_rejected_before_any_call(version: str) -> None:
    async def scenario(gateway: EtcdGateway, first: Member, second: Member) -> None:
        first.version = version
        with pytest.raises(MetadataStoreError, match=r"may lose data|malformed version"):
            await call(gateway)
        assert (first.calls, second.calls) == (0, 0)

    run(scenario)


@pytest.mark.parametrize("version", ["3.4.22", "3.4.37", "3.5.6", "3.5.21", "3.6.0", "4.0.0"])
def test_safe_versions_are_used(version: str) -> None:
    check_version(version, "h")


@pytest.mark.parametrize(
    "line",
    [
        b'{"error":{"grpc_code":14,"http_code":503,"message":"m","http_status":"x"}}',
        b'{"error":{"code":14,"message":"m","details":[]}}',
        b'{"error":"m","message":"m","code":14}',
        b'{"code":14,"message":"m","details":[]}',
    ],
)
def test_errors_of_every_gateway_version_are_decoded(line: bytes) -> None:
    assert message.decode_error(line) == message.ErrorResponse("m", 14)


@pytest.mark.parametrize("line", [b"", b"[]", b'"x"', b'{"message":1,"code":2}', b"<html>"])
def test_other_content_is_not_decoded_as_an_error(line: bytes) -> None:
    assert message.decode_error(line) is None
