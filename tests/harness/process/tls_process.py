"""Brokers with a TLS listener beside a plaintext one, and their certificates.

    with TlsBroker(tmp_path) as broker:
        producer = Producer({"bootstrap.servers": broker.tls_bootstrap, **broker.tls.properties()})

Topics are created through the plaintext listener.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from harness.process.broker_process import HOST, BrokerProcess, free_port
from harness.raw.raw_client import encode_frame
from millstream.security.local_authority import LocalAuthority
from millstream.wire.messages.api_versions import ApiVersionsRequest

HOSTS = ("localhost", HOST)


class TlsHome:
    """An authority, the certificate `broker`, and those of clients, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = LocalAuthority.open_or_create(folder)
        self.authority.issue("broker", hosts=HOSTS, days=2)

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    def client(self, name: str) -> None:
        """Make the certificate of a client, unless it exists."""
        if not (self.folder / f"{name}.pem").exists():
            self.authority.issue(name, days=2)

    def settings(self, **more: object) -> dict[str, object]:
        """Return the settings of a broker; `more` are `ssl.` settings by their attribute names."""
        return {
            "ssl.keystore.location": self.folder / "broker.pem",
            "ssl.truststore.location": self.ca,
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def properties(self, client: str | None = None) -> dict[str, str]:
        """Return the properties of a librdkafka client, with the certificate of `client`."""
        found = {"security.protocol": "SSL", "ssl.ca.location": self.ca}
        if client is not None:
            self.client(client)
            found["ssl.certificate.location"] = str(self.folder / f"{client}.crt")
            found["ssl.key.location"] = str(self.folder / f"{client}.key")
        return found

    def java_properties(self, client: str | None = None) -> str:
        """Return the properties of a Java client."""
        lines = ["security.protocol=SSL", "ssl.truststore.type=PEM"]
        lines.append(f"ssl.truststore.location={self.ca}")
        if client is not None:
            self.client(client)
            lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={self.folder}/{client}.pem"]
        return "\n".join(lines) + "\n"

    def context(self, client: str | None = None) -> ssl.SSLContext:
        """Return the context of a Python client."""
        context = ssl.create_default_context(cafile=self.ca)
        if client is not None:
            self.client(client)
            context.load_cert_chain(self.folder / f"{client}.pem")
        return context


def exchange(port: int, context: ssl.SSLContext, host: str = HOST) -> str:
    """Connect, and send a request. Return "ok" for a response, else the reason of the failure."""
    try:
        with (
            socket.create_connection((HOST, port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            # With TLS 1.3 a client learns only from its first read that it was rejected.
            secured.sendall(encode_frame(ApiVersionsRequest(), 0))
            return "ok" if secured.recv(4) else "closed"
    except ssl.SSLError as error:
        return error.reason or str(error)
    except ConnectionResetError:
        return "reset"


def with_tls_listener(broker: BrokerProcess) -> int:
    """Add a listener SSL to a broker that has not started, and return its port."""
    port = free_port()
    command = broker.command

    def more() -> Sequence[str]:
        return [*command(), "--listen", f"SSL://{HOST}:{port}"]

    broker.command = more  # type: ignore[method-assign]
    return port


class TlsBroker(BrokerProcess):
    """A broker with a listener PLAINTEXT and a listener SSL."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        tls: TlsHome | None = None,
        **ssl_settings: object,
    ) -> None:
        self.tls = tls or TlsHome(folder / "tls")
        super().__init__(folder, {**self.tls.settings(**ssl_settings), **(settings or {})})

    @cached_property
    def tls_port(self) -> int:
        return free_port()

    @property
    def tls_bootstrap(self) -> str:
        return f"{HOST}:{self.tls_port}"

    def command(self) -> Sequence[str]:
        return [*super().command(), "--listen", f"SSL://{self.tls_bootstrap}"]
