"""Effects of the settings for TLS, and for the access to the HTTP server."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from harness.process.tls_process import HOSTS, exchange
from millstream.broker.config.broker_config import ConfigError
from millstream.security.certificate import parse_certificate
from millstream.security.local_authority import LocalAuthority
from settings.effect import broker_effect
from settings.world import BROKER, RealWorld

HOST = "127.0.0.1"


@cache
def folder() -> Path:
    """Return a folder with an authority, the brokers `a` and `b`, and the client `alice`.

    `c.crt` is another certificate for the key of `a`, and `locked.pem` is `a` with a password."""
    found = Path(tempfile.mkdtemp(prefix="millstream-tls-"))
    authority = LocalAuthority.open_or_create(found)
    for name in ("a", "b"):
        authority.issue(name, hosts=HOSTS, days=2)
    authority.issue("elsewhere", hosts=["elsewhere.example"], days=2)
    authority.issue("alice", days=2)
    LocalAuthority.open_or_create(found / "other").issue("bob", days=2)
    key = load_pem_private_key((found / "a.key").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"first"))
    (found / "locked.pem").write_bytes(locked + (found / "a.crt").read_bytes())
    return found


def text(name: str) -> str:
    return (folder() / name).read_text()


async def start(world: RealWorld, **settings: str) -> int:
    """Start a broker with a plaintext and a TLS listener; return the port of the second one."""
    settings = {"ssl_keystore_location": f"{folder()}/a.pem", **settings}
    settings = {name: value for name, value in settings.items() if value}
    listeners = f"PLAINTEXT://{HOST}:0,SSL://{HOST}:0"
    server = await world.broker(listeners=listeners, **settings)
    return server.ports["SSL"]


def context(client: str = "") -> ssl.SSLContext:
    found = ssl.create_default_context(cafile=folder() / "ca.pem")
    if client:
        found.load_cert_chain(folder() / f"{client}.pem")
    return found


def _served(port: int) -> str:
    """Return the name in the certificate of the listener."""
    with (
        socket.create_connection((HOST, port), timeout=10) as plain,
        context().wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        der = secured.getpeercert(binary_form=True)
        assert der is not None
        return parse_certificate(der).subject


async def served(port: int) -> str:
    return await asyncio.to_thread(_served, port)


async def outcome(port: int, made: ssl.SSLContext) -> str:
    return await asyncio.to_thread(exchange, port, made)


@broker_effect("ssl.keystore.location", f"{folder()}/a.pem", f"{folder()}/b.pem", real=True)
async def _key_store(world: RealWorld) -> object:
    return await served(await start(world, ssl_keystore_location=""))


def _stores(kind: str) -> None:
    @broker_effect(f"ssl.{kind}.type", "PEM", "JKS", real=True)
    async def types(world: RealWorld) -> object:
        """A JKS file is rejected, at the start and at run time, with how to convert it."""
        try:
            await start(world)
        except ConfigError as error:
            return "openssl pkcs12" in str(error)
        changed = {**world.given.own_change}
        return await world.change(BROKER, "1", changed) != 0


_stores("keystore")
_stores("truststore")


@broker_effect(
    "ssl.keystore.certificate.chain", text("a.crt"), text("a.crt") + text("b.crt"), real=True
)
async def _chain(world: RealWorld) -> object:
    """Return how many certificates the listener sends."""
    port = await start(world, ssl_keystore_location="", ssl_keystore_key=text("a.key"))
    process = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-connect", f"{HOST}:{port}", "-showcerts"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    return output.count(b"BEGIN CERTIFICATE")


@broker_effect("ssl.keystore.key", text("a.key"), text("b.key"), real=True)
async def _key(world: RealWorld) -> object:
    """Key and chain belong together, so the chain follows at run time."""
    first = world.given.broker["ssl.keystore.key"]
    chains = {text(f"{name}.key").strip(): text(f"{name}.crt") for name in ("a", "b")}
    port = await start(
        world, ssl_keystore_location="", ssl_keystore_certificate_chain=chains[first.strip()]
    )
    key = world.services().config.tls.ssl_keystore_key
    assert key is not None
    await world.change(BROKER, "1", {"ssl.keystore.certificate.chain": chains[key.strip()]})
    return await served(port)


@broker_effect("ssl.key.password", "wrong", "first", real=True)
async def _password(world: RealWorld) -> object:
    """Return whether the broker can use a key that has a password."""
    await start(world)
    changed = f"{folder()}/locked.pem"
    await world.change(BROKER, "1", {"ssl.keystore.location": changed})
    return world.servers[1]._tls.sources["SSL"].options.keystore_location == changed


def _trust(name: str, first: str, second: str) -> None:
    @broker_effect(name, first, second, real=True)
    async def trusted(world: RealWorld) -> object:
        port = await start(world, ssl_client_auth="requested")
        return await outcome(port, context("alice"))


_trust("ssl.truststore.location", f"{folder()}/ca.pem", f"{folder()}/other/ca.pem")
_trust("ssl.truststore.certificates", text("ca.pem"), text("other/ca.pem"))


@broker_effect("ssl.client.auth", "none", "required", real=True)
async def _client_auth(world: RealWorld) -> object:
    port = await start(world, ssl_truststore_location=f"{folder()}/ca.pem")
    return await outcome(port, context())


async def _version(port: int, highest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> str:
    made = context()
    made.maximum_version = highest
    return await outcome(port, made)


@broker_effect("ssl.enabled.protocols", "TLSv1.2,TLSv1.3", "TLSv1.3", real=True)
async def _versions(world: RealWorld) -> object:
    return await _version(await start(world), ssl.TLSVersion.TLSv1_2)


@broker_effect("ssl.protocol", "TLSv1.3", "TLSv1.2", real=True)
async def _highest_version(world: RealWorld) -> object:
    port = await start(world)
    made = context()
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    return await outcome(port, made)


@broker_effect("ssl.cipher.suites", "", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", real=True)
async def _cipher_suites(world: RealWorld) -> object:
    made = context()
    made.maximum_version = ssl.TLSVersion.TLSv1_2
    made.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    return await outcome(await start(world), made)


@broker_effect("ssl.principal.mapping.rules", "DEFAULT", "RULE:^CN=([^,]*),.*$/$1/U", real=True)
async def _principal(world: RealWorld) -> object:
    port = await start(
        world, ssl_client_auth="required", ssl_truststore_location=f"{folder()}/ca.pem"
    )
    _, writer = await asyncio.open_connection(
        HOST, port, ssl=context("alice"), server_hostname=HOST
    )
    connections = world.servers[1]._acceptor._connections
    while not any(each.principal.name != "ANONYMOUS" for each in connections):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    found = sorted(str(each.principal) for each in connections)
    writer.close()
    return found


@broker_effect("ssl.endpoint.identification.algorithm", "https", "", real=True)
async def _host_name(world: RealWorld) -> object:
    """A broker connects to itself under a name that its certificate does not have."""
    port = await start(
        world,
        inter_broker_listener_name="SSL",
        ssl_keystore_location=f"{folder()}/elsewhere.pem",
        ssl_truststore_location=f"{folder()}/ca.pem",
    )
    network = world.services().peer_network
    try:
        transport = await network.connect(HOST, port, asyncio.BufferedProtocol)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    transport.abort()
    return "connected"


async def _half_open(world: RealWorld, count: int) -> int:
    """Return how many of some connections that send nothing are open after two seconds."""
    port = await start(world)
    sockets = []
    for _ in range(count):
        sockets.append(await asyncio.open_connection(HOST, port))
    await asyncio.sleep(2.5)
    found = world.servers[1]._gate.handshakes
    for _, writer in sockets:
        writer.close()
    return found


@broker_effect("ssl.handshake.timeout.ms", 500, 100_000, real=True)
async def _handshakes_end(world: RealWorld) -> object:
    return await _half_open(world, 2)


@broker_effect("ssl.handshakes.max", 2, 1000, real=True)
async def _handshakes_are_counted(world: RealWorld) -> object:
    return await _half_open(world, 5)


# The HTTP server


async def get(
    port: int, path: str = "/metrics", tls: ssl.SSLContext | None = None, token: str = ""
) -> str:
    """Return the first line of a response, or the reason of a failure."""
    try:
        reader, writer = await asyncio.open_connection(
            HOST, port, ssl=tls, server_hostname=HOST if tls else None
        )
    except OSError as error:
        return type(error).__name__
    header = f"Authorization: Bearer {token}\r\n" if token else ""
    writer.write(f"GET {path} HTTP/1.0\r\n{header}\r\n".encode())
    try:
        line = await reader.readline()
    except OSError as error:
        return type(error).__name__
    finally:
        writer.transport.abort()
    return line.decode().strip() or "closed"


async def http(world: RealWorld, **settings: str) -> int:
    return (await world.broker(http_listen=f"{HOST}:0", **settings)).http_port


@broker_effect("http.bearer.token", "one", "two", real=True)
async def _token(world: RealWorld) -> object:
    port = await http(world)
    return await get(port), await get(port, "/healthz"), await get(port, token="two")


@broker_effect("http.bearer.token.file", f"{folder()}/ca.pem", "{folder}/token", real=True)
async def _token_file(world: RealWorld) -> object:
    (world.folder / "token").write_text("two\n")
    port = await http(world)
    return await get(port, token="two")


@broker_effect("http.ssl.keystore.location", f"{folder()}/a.pem", f"{folder()}/b.pem", real=True)
async def _http_key_store(world: RealWorld) -> object:
    return await served(await http(world))


@broker_effect(
    "http.ssl.truststore.location", f"{folder()}/ca.pem", f"{folder()}/other/ca.pem", real=True
)
async def _http_trust_store(world: RealWorld) -> object:
    port = await http(
        world, http_ssl_client_auth="required", http_ssl_keystore_location=f"{folder()}/a.pem"
    )
    return await get(port, tls=context("alice"))


@broker_effect("http.ssl.client.auth", "none", "requested", real=True)
async def _http_client_auth(world: RealWorld) -> object:
    port = await http(
        world,
        http_ssl_keystore_location=f"{folder()}/a.pem",
        http_ssl_truststore_location=f"{folder()}/ca.pem",
    )
    return [
        await get(port, tls=context()),
        await get(port, "/healthz", tls=context()),
        await get(port, tls=context("alice")),
    ]
