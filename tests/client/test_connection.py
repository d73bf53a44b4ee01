"""The keywords for connections and security, and librdkafka's properties for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.client import Admin, Consumer, Producer, UsageError, Worker
from millstream.client.connection import RECOVERY, ConnectionSettings
from millstream.client.setting import ConsumerSettings, ProducerSettings
from millstream.client.worker.policy.policy import WorkerSettings

SASL = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "alice",
    "sasl_password": "secret",
}


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    path = tmp_path / "some.pem"
    path.touch()
    return path


def test_keywords_become_properties(pem: Path) -> None:
    files = {"ssl_cafile": pem, "ssl_certfile": str(pem), "ssl_keyfile": pem}
    settings = ConnectionSettings.of(
        {**SASL, **files, "ssl_password": "p", "ssl_check_hostname": False, "client_id": "till-4"}
    )
    assert settings.connection_properties(["a:1", "b:2"]) == {
        "bootstrap.servers": "a:1,b:2",
        **RECOVERY,
        "client.id": "till-4",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "secret",
        "ssl.ca.location": str(pem),
        "ssl.certificate.location": str(pem),
        "ssl.key.location": str(pem),
        "ssl.key.password": "p",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert ConnectionSettings().connection_properties("a:1") == {
        "bootstrap.servers": "a:1",
        **RECOVERY,
    }


@pytest.mark.parametrize("settings", [ProducerSettings, ConsumerSettings])
def test_clients_stay_with_the_brokers_that_they_know(settings: Any) -> None:
    group = () if settings is ProducerSettings else ("billing",)
    name = "metadata.recovery.strategy"
    assert settings().properties("a:1", *group)[name] == "none"
    own = settings(config={name: "rebootstrap"})
    assert own.properties("a:1", *group)[name] == "rebootstrap"


def test_all_clients_have_them() -> None:
    for kind in (ProducerSettings, ConsumerSettings):
        found = kind.of(SASL)
        properties = (
            found.properties("a:1") if kind is ProducerSettings else found.properties("a:1", None)
        )  # type: ignore[call-arg, attr-defined]
        assert properties["sasl.username"] == "alice"
    worker = WorkerSettings.of({**SASL, "config": {"a": 1}, "consumer": {"config": {"b": 2}}})
    assert worker.producer_options == {**SASL, "config": {"a": 1}}
    assert worker.consumer_options["config"] == {"a": 1, "b": 2}
    assert worker.admin_options == {**SASL, "config": {"a": 1, "b": 2}}


def test_the_text_of_settings_has_no_secret() -> None:
    secret = {"config": {"ssl.key.password": "hidden-key"}}
    worker = {**secret, "consumer": secret, "producer": {**SASL, **secret}}
    for settings in (
        ProducerSettings.of({**SASL, "ssl_password": "hidden", **secret}),
        ConsumerSettings.of({**SASL, **secret}),
        WorkerSettings.of({**SASL, **worker}),
    ):
        assert "alice" in repr(settings)
        assert "secret" not in repr(settings)
        assert "hidden" not in repr(settings)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"security_protocol": "TLS"}, "security_protocol='TLS' is unknown: use one of PLAINTEXT"),
        ({**SASL, "sasl_mechanism": "SCRAM"}, "sasl_mechanism='SCRAM' is unknown"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism=..."),
        ({**SASL, "sasl_password": None}, "needs sasl_password=...: add it"),
        ({"sasl_username": "alice"}, "no effect without security_protocol='SASL_SSL'"),
        ({"ssl_cafile": __file__}, "no effect without security_protocol='SSL'"),
        ({"security_protocol": "SSL", "ssl_cafile": "/no/such.pem"}, "does not exist"),
        ({"security_protocol": "SSL", "ssl_certfile": __file__}, "needs both"),
        ({"config": ["a"]}, "pass a dict of librdkafka's properties"),
        ({"security": "SSL"}, "did you mean 'security_protocol'"),
    ],
)
def test_what_does_not_fit_together_is_explained(options: dict[str, Any], sentence: str) -> None:
    for make in (
        Admin,
        Producer,
        lambda servers, **options: Consumer(servers, topics=["t"], **options),
        lambda servers, **options: Worker(servers, topics=["t"], group_id="g", **options),
    ):
        with pytest.raises(UsageError, match=sentence):
            make("127.0.0.1:1", **options)


def test_servers_may_be_a_list(bootstrap: str) -> None:
    with Admin([bootstrap, bootstrap]) as admin:
        assert isinstance(admin.list_topics(), list)
    with pytest.raises(UsageError, match="with commas between several, or a list"):
        Admin({"host": 1})  # type: ignore[arg-type]
