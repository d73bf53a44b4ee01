"""Certificates that a broker accepts and rejects, and their replacement while it runs."""

from __future__ import annotations

import socket
import ssl
import threading
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from harness.process.broker_process import HOST, wait_until
from harness.process.tls_process import HOSTS, TlsBroker, TlsHome, exchange
from harness.raw.raw_client import Closed, RawClient
from millstream.security.local_authority import LocalAuthority

LISTENER = "listener.name.ssl."


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    folder = tmp_path_factory.mktemp("broker")
    tls = TlsHome(folder / "tls")
    revoked = tls.authority.issue("revoked", days=2)
    trust = (folder / "tls/ca.pem").read_text()
    trust += tls.authority.revoke(revoked.serial_number).read_text()
    (folder / "trust.pem").write_text(trust)
    settings = {"ssl.truststore.location": folder / "trust.pem"}
    with TlsBroker(folder, settings, tls, ssl_client_auth="required") as broker:
        yield broker
        assert "Traceback" not in broker.log_text(), broker.log_tail()


def metrics(broker: TlsBroker) -> str:
    with urllib.request.urlopen(f"{broker.http_url}/metrics") as response:
        return str(response.read().decode())


def test_a_valid_certificate(broker: TlsBroker) -> None:
    assert exchange(broker.tls_port, broker.tls.context("alice")) == "ok"


def test_no_certificate(broker: TlsBroker) -> None:
    assert exchange(broker.tls_port, broker.tls.context()) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"


@pytest.mark.parametrize(
    ("client", "alert"),
    [
        ("expired", "SSLV3_ALERT_CERTIFICATE_EXPIRED"),
        ("early", "SSLV3_ALERT_BAD_CERTIFICATE"),
        ("revoked", "SSLV3_ALERT_CERTIFICATE_REVOKED"),
    ],
)
def test_certificates_that_are_not_valid(broker: TlsBroker, client: str, alert: str) -> None:
    now = datetime.now(UTC)
    if client == "expired":
        broker.tls.authority.issue(client, days=1, not_before=now - timedelta(days=3))
    elif client == "early":
        broker.tls.authority.issue(client, days=1, not_before=now + timedelta(days=1))
    assert exchange(broker.tls_port, broker.tls.context(client)) == alert


def test_a_certificate_of_another_authority(broker: TlsBroker, tmp_path: Path) -> None:
    other = LocalAuthority.open_or_create(tmp_path)
    other.issue("stranger", days=1)
    context = broker.tls.context()
    context.load_cert_chain(tmp_path / "stranger.pem")
    assert exchange(broker.tls_port, context) == "TLSV1_ALERT_UNKNOWN_CA"


def test_a_wrong_host_name(broker: TlsBroker) -> None:
    context = broker.tls.context("alice")
    found = exchange(broker.tls_port, context, host="broker.example")
    assert found == "CERTIFICATE_VERIFY_FAILED"


def test_old_versions_are_rejected(broker: TlsBroker) -> None:
    context = broker.tls.context("alice")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    assert exchange(broker.tls_port, context) == "TLSV1_ALERT_PROTOCOL_VERSION"


def test_the_wrong_port_is_named_in_the_log(broker: TlsBroker) -> None:
    assert exchange(broker.port, broker.tls.context("alice")) in (
        "closed",
        "reset",
        "UNEXPECTED_EOF_WHILE_READING",
    )
    wait_until(lambda: "speaks TLS, but this listener is plaintext" in broker.log_text(), "a line")

    def is_logged() -> bool:
        # Only some rejections of each kind are logged in ten seconds.
        with RawClient(HOST, broker.tls_port) as client, suppress(Closed, OSError):
            client.create_topic("t", 1, None, 1)
        return "the client does not speak TLS" in broker.log_text()

    wait_until(is_logged, "a line")


def _expiry(broker: TlsBroker) -> datetime:
    context = broker.tls.context("alice")
    with (
        socket.create_connection((HOST, broker.tls_port)) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        found = secured.getpeercert()
        assert found is not None
        return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(found["notAfter"])), UTC)


def test_replaced_certificates_apply_without_a_failed_request(tmp_path: Path) -> None:
    with TlsBroker(tmp_path, ssl_client_auth="required") as broker:
        with RawClient(broker.host, broker.port) as client:
            client.create_topic("t", 1, None, 1)
        properties = {"bootstrap.servers": broker.tls_bootstrap, **broker.tls.properties("alice")}
        stop = threading.Event()
        failed: list[object] = []
        sent = 0

        def load() -> None:
            """Produce on one connection, and on many new ones."""
            nonlocal sent
            kept = Producer({**properties, "error_cb": failed.append})
            while not stop.is_set():
                fresh = Producer({**properties, "error_cb": failed.append})
                for producer in (kept, fresh):
                    producer.produce(
                        "t", b"v", on_delivery=lambda error, _: error and failed.append(error)
                    )
                    if producer.flush(20):
                        failed.append("not delivered")
                    sent += 1

        thread = threading.Thread(target=load)
        thread.start()
        try:
            first = _expiry(broker)
            for days in (5, 8, 11):
                broker.tls.authority.issue("broker", hosts=HOSTS, days=days)
                wait_until(
                    lambda: (_expiry(broker) - first).days == days - 2,  # noqa: B023
                    "the new certificate",
                )
            # A file that cannot be used changes nothing.
            file = broker.tls.folder / "broker.pem"
            good = file.read_text()
            file.write_text(good[: len(good) // 2])
            wait_until(lambda: "keeps its present keys" in broker.log_text(), "an error")
            assert (_expiry(broker) - first).days == 9
            file.write_text(good)
        finally:
            stop.set()
            thread.join()
        assert not failed
        assert sent > 10
        found = metrics(broker)
        assert 'millstream_tls_reloads_total{listener="SSL"} 3' in found
        assert 'millstream_tls_reload_failures_total{listener="SSL"} 1' in found


def test_settings_change_keys_and_trusted_authorities_at_run_time(tmp_path: Path) -> None:
    with TlsBroker(tmp_path, ssl_client_auth="required") as broker:
        other = TlsHome(tmp_path / "other")
        old_client, new_client = broker.tls.context("alice"), other.context("alice")
        assert exchange(broker.tls_port, old_client) == "ok"
        assert exchange(broker.tls_port, new_client) == "CERTIFICATE_VERIFY_FAILED"
        change(
            broker,
            {
                f"{LISTENER}ssl.keystore.location": str(other.folder / "broker.pem"),
                f"{LISTENER}ssl.truststore.location": other.ca,
            },
        )
        wait_until(lambda: exchange(broker.tls_port, new_client) == "ok", "the new keys")
        assert exchange(broker.tls_port, old_client) == "CERTIFICATE_VERIFY_FAILED"
        # The same values again, with another content of the file.
        other.authority.issue("broker", hosts=HOSTS, days=30)
        change(broker, {f"{LISTENER}ssl.keystore.location": str(other.folder / "broker.pem")})
        home, broker.tls = broker.tls, other
        wait_until(lambda: _expiry(broker) > datetime.now(UTC) + timedelta(days=20), "new keys")
        broker.tls = home


def change(broker: TlsBroker, values: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in values.items()
    ]
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(20)


def test_a_revocation_list_that_is_added(tmp_path: Path) -> None:
    with TlsBroker(tmp_path, ssl_client_auth="required") as broker:
        certificate = broker.tls.authority.issue("bob", days=1)
        bob = broker.tls.context("bob")
        assert exchange(broker.tls_port, bob) == "ok"
        revoked = broker.tls.authority.revoke(certificate.serial_number).read_text()
        file = Path(broker.tls.ca)
        file.write_text(file.read_text() + revoked)
        wait_until(
            lambda: exchange(broker.tls_port, bob) == "SSLV3_ALERT_CERTIFICATE_REVOKED",
            "the revocation",
        )
        assert exchange(broker.tls_port, broker.tls.context("alice")) == "ok"


def test_half_open_handshakes_do_not_stop_a_broker(tmp_path: Path) -> None:
    settings = {"max.connections.per.ip": 300, "ssl.handshake.timeout.ms": 2000}
    with TlsBroker(tmp_path, settings) as broker:
        sockets = [socket.create_connection((HOST, broker.tls_port)) for _ in range(1000)]

        def value(line: str) -> float:
            (found,) = [each for each in metrics(broker).splitlines() if each.startswith(line)]
            return float(found.split()[-1])

        wait_until(
            lambda: value('millstream_tls_handshake_failures_total{reason="timeout"}') == 300,
            "the timeout of all handshakes",
        )
        assert value("millstream_tls_handshakes_in_progress") == 0
        assert exchange(broker.tls_port, broker.tls.context()) == "ok"
        for each in sockets:
            each.close()
