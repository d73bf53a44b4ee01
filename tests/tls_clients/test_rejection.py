"""Real clients and certificates that are wrong, of the broker and of the client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.process.tls_process import HOSTS, TlsBroker, TlsHome
from harness.tool.java import CACHE, require_java
from tls_clients.rejection import CLIENTS, RejectedError

each_client = pytest.mark.parametrize("client", CLIENTS)
NOW = datetime.now(UTC)


def require(client: str) -> None:
    if client == "java":
        require_java("jars")
    states = json.loads((CACHE / "tools.json").read_text())
    if client in states and not states[client]["available"]:
        pytest.skip(f"{client} is not available: {states[client]['reason']}")


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    """A broker with a valid certificate, which demands one of its clients."""
    folder = tmp_path_factory.mktemp("strict")
    tls = TlsHome(folder / "tls")
    revoked = tls.authority.issue("revoked", days=2)
    tls.authority.issue("expired", days=1, not_before=NOW - timedelta(days=3))
    tls.authority.issue("early", days=1, not_before=NOW + timedelta(days=1))
    trust = folder / "trust.pem"
    trust.write_text(
        Path(tls.ca).read_text() + tls.authority.revoke(revoked.serial_number).read_text()
    )
    settings = {"ssl.truststore.location": trust}
    with TlsBroker(folder, settings, tls, ssl_client_auth="required") as broker:
        yield broker


@each_client
def test_a_client_with_a_valid_certificate_is_served(strict: TlsBroker, client: str) -> None:
    require(client)
    CLIENTS[client](strict.tls_bootstrap, strict.tls, "alice")


@pytest.mark.parametrize(
    "certificate",
    ["revoked", *(pytest.param(name, marks=pytest.mark.soak) for name in ("expired", "early"))],
)
@each_client
def test_a_client_whose_certificate_is_not_valid_gets_nothing(
    strict: TlsBroker, client: str, certificate: str
) -> None:
    require(client)
    with pytest.raises(RejectedError):
        CLIENTS[client](strict.tls_bootstrap, strict.tls, certificate)


@pytest.fixture(
    scope="module",
    params=[
        "another host",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("expired", "early", "stranger")),
    ],
)
def impostor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TlsBroker, TlsHome]]:
    """A broker that no client may trust, and the certificates of clients."""
    folder = tmp_path_factory.mktemp("impostor")
    tls = served = TlsHome(folder / "tls")
    match request.param:
        case "another host":
            tls.authority.issue("broker", hosts=["elsewhere.example"], days=2)
        case "expired":
            tls.authority.issue("broker", hosts=HOSTS, days=1, not_before=NOW - timedelta(days=3))
        case "early":
            tls.authority.issue("broker", hosts=HOSTS, days=1, not_before=NOW + timedelta(days=1))
        case "stranger":
            served = TlsHome(folder / "other")
    with TlsBroker(folder, None, served) as broker:
        yield broker, tls


@each_client
def test_clients_do_not_trust_a_broker_whose_certificate_is_wrong(
    impostor: tuple[TlsBroker, TlsHome], client: str
) -> None:
    require(client)
    broker, tls = impostor
    with pytest.raises(RejectedError):
        CLIENTS[client](broker.tls_bootstrap, tls, "alice")
