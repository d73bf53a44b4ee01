from __future__ import annotations

import pytest

from millstream.protocol.client_property import ClientProperties
from millstream.protocol.connection_setting import (
    Address,
    ConnectionSettings,
    Login,
    connection_settings,
)
from millstream.protocol.error import SettingError


def _parse(**properties: str) -> ConnectionSettings:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return connection_settings(ClientProperties({"bootstrap.servers": "one", **named}))


def test_an_address_may_lack_a_port_and_may_be_ipv6() -> None:
    settings = _parse(bootstrap_servers="one, [::1]:9093,PLAINTEXT://two:9094")
    assert settings.bootstrap == (Address("one", 9092), Address("::1", 9093), Address("two", 9094))


@pytest.mark.parametrize("text", ["", " ", ":9092", "one:x", "one:0", "one:65536"])
def test_a_malformed_address_is_rejected(text: str) -> None:
    with pytest.raises(SettingError, match=r"bootstrap\.servers"):
        _parse(bootstrap_servers=text)


def test_librdkafka_and_java_names_mean_the_same() -> None:
    names = {"security_protocol": "sasl_ssl", "sasl_username": "ann", "sasl_password": "secret"}
    java = _parse(
        sasl_mechanism="PLAIN", ssl_truststore_location="a", ssl_truststore_type="PEM", **names
    )
    librdkafka = _parse(sasl_mechanisms="PLAIN", ssl_ca_location="a", **names)
    assert java == librdkafka
    assert java.login == Login("PLAIN", "ann", "secret")
    assert java.tls is not None
    assert java.tls.ca_path == "a"


def test_tls_files_are_ignored_without_a_protocol_that_encrypts() -> None:
    assert _parse(ssl_ca_location="a").tls is None


@pytest.mark.parametrize(
    "options",
    [
        'username="ann" password="it\'s \\"s3cret\\"";',
        "username='ann' password='it\\'s \"s3cret\"';",
        "password='it\\'s \"s3cret\"' username=ann",
    ],
)
def test_jaas_has_the_quotes_and_the_escapes_of_java(options: str) -> None:
    parsed = _parse(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_jaas_config=f"a.b.PlainLoginModule required {options}",
    )
    assert parsed.login == Login("PLAIN", "ann", 'it\'s "s3cret"')


def test_malformed_jaas_is_rejected_without_its_password() -> None:
    text = "a.b.PlainLoginModule username='ann' password='s3cret';"
    with pytest.raises(SettingError, match=r"sasl\.jaas\.config must be a login module") as caught:
        _parse(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_jaas_config=text)
    assert "s3cret" not in str(caught.value)
    # A connection without a login ignores it, like the other properties of a login.
    assert _parse(sasl_jaas_config=text).login is None
