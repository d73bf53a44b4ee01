"""TLS of all listeners: which contexts they have, and who their clients are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness.process.tls_process import HOSTS, TlsHome
from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig, ConfigError
from millstream.broker.lifecycle import listener_tls
from millstream.broker.lifecycle.listener_tls import BrokerTls
from millstream.env.disk import SystemDisk
from millstream.env.supervisor import Supervisor
from millstream.model.principal import ANONYMOUS
from millstream.security.pem import der_of

LISTENERS = "PLAINTEXT://:1,SSL://:2,SASL_SSL://:3"


def config(home: TlsHome, **more: str) -> BrokerConfig:
    flags = {
        "listeners": LISTENERS,
        "ssl.keystore.location": str(home.folder / "broker.pem"),
        "ssl.truststore.location": home.ca,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return BrokerConfig.load(flags=flags)


def loaded(found: BrokerConfig) -> BrokerTls:
    tls = BrokerTls(SystemDisk())
    tls.load(found, found)
    return tls


@pytest.fixture
def home(tmp_path: Path) -> TlsHome:
    return TlsHome(tmp_path)


def test_each_tls_listener_has_contexts(home: TlsHome) -> None:
    tls = loaded(config(home))
    assert set(tls.endpoints) == set(tls.sources) == {"SSL", "SASL_SSL"}


def test_a_listener_with_sasl_asks_for_certificates_only_by_its_own_setting(home: TlsHome) -> None:
    both = config(home, **{"ssl.client.auth": "required"})
    found = {name: each.client_auth for name, each in options.tls_options(both).items()}
    assert found == {"SSL": "required", "SASL_SSL": "none"}
    own = config(home, **{"listener.name.sasl_ssl.ssl.client.auth": "required"})
    found = {name: each.client_auth for name, each in options.tls_options(own).items()}
    assert found == {"SSL": "none", "SASL_SSL": "required"}


def test_the_certificate_decides_only_without_sasl(home: TlsHome) -> None:
    home.client("alice")
    der = der_of((home.folder / "alice.crt").read_text())
    tls = loaded(
        config(
            home, **{"listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=([^,]*),.*$/$1/"}
        )
    )
    assert str(tls.endpoints["SSL"].identify(der)) == "User:alice"
    assert tls.endpoints["SSL"].identify(None) == ANONYMOUS
    assert tls.endpoints["SASL_SSL"].identify(der) == ANONYMOUS


def test_a_certificate_that_no_rule_matches(home: TlsHome) -> None:
    home.client("alice")
    der = der_of((home.folder / "alice.crt").read_text())
    tls = loaded(config(home, **{"ssl.principal.mapping.rules": "RULE:^OU=.*$/x/"}))
    with pytest.raises(ValueError, match="no rule of"):
        tls.endpoints["SSL"].identify(der)


@pytest.mark.parametrize("name", ["PLAINTEXT", "SSL"])
def test_brokers_use_the_protocol_of_their_listener(home: TlsHome, name: str) -> None:
    tls = loaded(config(home, **{"inter.broker.listener.name": name}))
    assert (tls.peer_context() is None) == (name == "PLAINTEXT")


def test_a_bad_file_prevents_the_start(home: TlsHome) -> None:
    (home.folder / "broker.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"the listener SSL: .* has no private key"):
        loaded(config(home))


def test_a_bad_file_of_the_http_server_prevents_the_start(home: TlsHome) -> None:
    with pytest.raises(ConfigError, match=r"the HTTP server: http\.ssl\.keystore\.location"):
        loaded(config(home, **{"http.ssl.keystore.location": "missing.pem"}))


def test_bad_settings_of_the_store_do_not_prevent_the_start(
    home: TlsHome, caplog: pytest.LogCaptureFixture
) -> None:
    static = config(home)
    changed = static.with_dynamic({}, {"ssl.keystore.location": "missing.pem"})
    tls = BrokerTls(SystemDisk())
    tls.load(changed, static)
    assert tls.sources["SSL"].options == options.tls_options(static)["SSL"]
    assert "settings changed at run time are not applied" in caplog.text


def test_changed_settings_apply(home: TlsHome, tmp_path: Path) -> None:
    other = TlsHome(tmp_path / "other")
    static = config(home)
    tls = loaded(static)
    before = tls.endpoints["SSL"].context()
    name = "listener.name.ssl.ssl.keystore.location"
    changed = static.with_dynamic({}, {name: str(other.folder / "broker.pem")})
    tls.configure(options.tls_options(changed))
    assert tls.endpoints["SSL"].context() is not before
    assert (tls.sources["SSL"].reloads, tls.sources["SASL_SSL"].reloads) == (1, 0)


def test_files_are_followed(home: TlsHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_tls, "REFRESH_S", 0.01)

    async def main() -> None:
        tls = loaded(config(home))
        tls.start(Supervisor())
        home.authority.issue("broker", hosts=HOSTS, days=9)
        async with asyncio.timeout(10):
            while not tls.sources["SSL"].reloads:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await tls.stop()

    asyncio.run(main())
