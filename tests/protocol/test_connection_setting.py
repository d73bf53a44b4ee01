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
