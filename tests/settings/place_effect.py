"""Effects of the broker settings for identity, addresses and the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

from aiohttp import web

from harness.process.broker_process import free_port
from millstream.broker import process
from millstream.broker.config.broker_config import BrokerConfig, ConfigError
from millstream.broker.server import NotJoinedError
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from settings.effect import broker_effect
from settings.world import RealWorld, World


async def _described(world: World) -> Any:
    response = await world.call(DescribeClusterRequest())
    (broker,) = response.brokers
    return broker


@broker_effect("node.id", 1, 2)
async def _its_number(world: World) -> object:
    await world.broker()
    return (await _described(world)).broker_id


@broker_effect("broker.rack", "a", "b")
async def _its_rack(world: World) -> object:
    await world.broker()
    return (await _described(world)).rack


@broker_effect("advertised.listeners", "PLAINTEXT://broker-1:9092", "PLAINTEXT://other:99")
async def _its_address(world: World) -> object:
    await world.broker()
    found = await _described(world)
    return found.host, found.port


@broker_effect("listeners", "PLAINTEXT://broker-1:9092", "PLAINTEXT://broker-1:9093")
async def _where_it_listens(world: World) -> object:
    await world.broker()
    return list(world.wire.listeners)


@broker_effect("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT", "MINE:PLAINTEXT")
async def _names_of_listeners(world: World) -> object:
    try:
        await world.broker(listeners="MINE://broker-1:9092")
    except ConfigError:
        return "refused"
    return "started"


@broker_effect("inter.broker.listener.name", "A", "B")
async def _listener_of_brokers(world: World) -> object:
    for node_id in (1, 2):
        host = f"broker-{node_id}"
        await world.start(
            node_id,
            listeners=f"A://{host}:9092,B://{host}:9093",
            listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT",
        )
    await asyncio.sleep(1)
    await world.topic(replicas=[1, 2])
    await asyncio.sleep(2)
    return [port for port, _ in world.wire.sent["broker-2", "broker-1"]]


@broker_effect("log.dir", "/data", "/elsewhere")
async def _where_its_data_are(world: World) -> object:
    await world.broker()
    return str(world.services().directory.path)


broker_effect("log.dirs", "/data", "/elsewhere")(_where_its_data_are)


@broker_effect("http.listen", f"127.0.0.1:{free_port()}", "", real=True)
async def _metrics_are_served(world: RealWorld) -> object:
    server = await world.broker()
    if not server.http_port:
        return None
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    text = await reader.read()
    writer.close()
    return b"millstream_build_info" in text


@broker_effect("initial.broker.registration.timeout.ms", 0, 10**6, real=True)
async def _a_broker_tries_to_join(world: RealWorld) -> object:
    """Return how often a broker tries to join before it fails or is stopped."""
    attempts = []
    stopping = asyncio.Event()

    class NeverJoins:
        def __init__(self, *_: object) -> None:
            pass

        async def start(self) -> None:
            attempts.append(1)
            if len(attempts) == 2:
                stopping.set()
            raise NotJoinedError("not yet")

    config = BrokerConfig.load(flags=world.flags(1, {}))
    with mock.patch.object(process, "Server", NeverJoins), mock.patch.object(process, "RETRY_S", 0):
        try:
            await process._start(config, stopping)
        except NotJoinedError:
            return "gave up", len(attempts)
    return "told to stop", len(attempts)


# The metadata store


@asynccontextmanager
async def forbidding_etcd(version: str, port: int = 0) -> AsyncIterator[tuple[int, list[str]]]:
    """Run an etcd of that version that rejects all logins; return its port and the requests."""
    asked: list[str] = []

    async def respond(request: web.Request) -> web.Response:
        if request.path == "/version":
            return web.json_response({"etcdserver": version, "etcdcluster": version})
        asked.append(f"{request.path} {await request.text()}")
        return web.json_response({"error": "permission denied", "code": 7}, status=403)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", respond)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        yield runner.addresses[0][1], asked
    finally:
        await runner.cleanup()


async def why_not_started(world: RealWorld, **settings: str) -> str:
    try:
        await world.broker(**settings)
    except (OSError, ConfigError) as error:
        return str(error)
    return "started"


_etcd_port = free_port()


@broker_effect("metadata.store", "sqlite", f"etcd://127.0.0.1:{_etcd_port}/x", real=True)
async def _where_metadata_are(world: RealWorld) -> object:
    async with forbidding_etcd("3.5.3", _etcd_port):
        why = await why_not_started(world)
    return "etcd 3.5.3" in why


#: Belongs to no server; only its format matters.
_CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBdDCCARugAwIBAgIUD9gsF/JTr+T9Zo2bSpnZHLNQ234wCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMTYxNDMxNTZaGA8yMTI2MTAyMzE0MzE1
NlowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABE+e
ZZTnMXJLXv/Rna8dDQMovBg8MfG602ODI4Lr05WOf/Bqt1INCWUGrj9mZCD93r58
S7cB0YQ7k6D46aow1WWjUzBRMB0GA1UdDgQWBBQrvLzRufAbLd5wF5NSZB3Bu3lu
kDAfBgNVHSMEGDAWgBQrvLzRufAbLd5wF5NSZB3Bu3lukDAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0cAMEQCICbaDB9+0yBWNPaJ4KF4wy+EJjN3GPFj9Fjk
WGJSTr3tAiBzCg7S8FFRLoK32aS744RwKTuaRgFm1u4IQ3VSmF6F4A==
-----END CERTIFICATE-----
"""


def write_files(world: RealWorld) -> None:
    """Write the files that settings name into the folder of the world."""
    for name in ("a", "b"):
        (world.folder / name).write_text(f"secret {name}")
    (world.folder / "certificate").write_text(_CERTIFICATE)


async def login(world: RealWorld, **settings: str) -> str:
    """Return the login request that a broker sends to etcd."""
    write_files(world)
    async with forbidding_etcd("3.4.30") as (port, asked):
        await why_not_started(world, metadata_store=f"etcd://127.0.0.1:{port}/x", **settings)
    return asked[0]


@broker_effect("metadata.etcd.username", "anna", "bert", real=True)
async def _user_of_etcd(world: RealWorld) -> object:
    return await login(world, metadata_etcd_password_file="{folder}/a")


@broker_effect("metadata.etcd.password.file", "{folder}/a", "{folder}/b", real=True)
async def _password_of_etcd(world: RealWorld) -> object:
    return await login(world, metadata_etcd_username="anna")


def _file(name: str, **others: str) -> None:
    """Register a setting for a TLS file: an invalid file gives another error than a missing one."""

    @broker_effect(name, "{folder}/a", "{folder}/missing", real=True)
    async def why(world: RealWorld) -> object:
        write_files(world)
        found = await why_not_started(world, metadata_store="etcds://127.0.0.1:9/x", **others)
        return found.replace(str(world.folder), "")


_file("metadata.etcd.ca.file")
_file("metadata.etcd.certificate.file")
_file("metadata.etcd.key.file", metadata_etcd_certificate_file="{folder}/certificate")
