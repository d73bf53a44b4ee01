"""SASL settings that do not fit together, and settings of listeners and mechanisms."""

from __future__ import annotations

import pytest

from millstream.broker.config.broker_config import BrokerConfig, ConfigError

SECURE = {
    "listeners": "SASL_PLAINTEXT://h:1",
    "metadata.store": "etcd://h:2/p",
    "sasl.jaas.config": 'M required username="b" password="secret-1";',
}
OAUTH = {
    "sasl.oauthbearer.jwks.endpoint.url": "https://h/keys",
    "sasl.oauthbearer.expected.issuer": "i",
    "sasl.oauthbearer.expected.audience": "a",
}


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, r"GSSAPI \(Kerberos\) is not supported"),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-1"}, "PLAIN, SCRAM-SHA-256"),
        ({"sasl.enabled.mechanisms": ""}, "PLAIN, SCRAM-SHA-256"),
        ({"sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}, "brokers have no OAuth tokens"),
        ({"sasl.mechanism.inter.broker.protocol": "PLAIN"}, "one of the mechanisms of listener"),
        ({"sasl.jaas.config": "M required;"}, "needs a username and a password"),
        ({"sasl.jaas.config": 'password="secret-1"'}, "a login module"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "ftp://h"}, "https://, http:// or file://"),
        ({"listener.name.sasl_plaintext.plain.sasl.enabled.mechanisms": "PLAIN"}, "cannot be set"),
        ({"listener.name.other.sasl.jaas.config": "M required;"}, "no such listener"),
        *[
            (
                {"sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-512", **OAUTH, name: ""},
                f"OAUTHBEARER on listener SASL_PLAINTEXT needs {name}|starts with",
            )
            for name in OAUTH
        ],
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, str], part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        BrokerConfig.load(flags={**SECURE, **settings})
    assert "secret-1" not in str(caught.value)


def test_a_broker_alone_needs_no_credentials_of_its_own() -> None:
    BrokerConfig.load(flags={"listeners": "SASL_PLAINTEXT://h:1"})


def test_values_of_a_listener_and_of_a_mechanism() -> None:
    name = "connections.max.reauth.ms"
    config = BrokerConfig.load(
        flags={
            **SECURE,
            name: "1",
            f"listener.name.sasl_plaintext.{name}": "2",
            f"listener.name.sasl_plaintext.scram-sha-256.{name}": "3",
        }
    )
    assert config.listener_value("SASL_PLAINTEXT", name) == 2
    assert config.mechanism_value("SASL_PLAINTEXT", "PLAIN", name) == 2
    assert config.mechanism_value("SASL_PLAINTEXT", "SCRAM-SHA-256", name) == 3
    assert config.value(name) == 1


def test_a_mechanism_in_an_environment_variable() -> None:
    variable = "MILLSTREAM_LISTENER_NAME_SASL_PLAINTEXT_SCRAM_SHA_512_SASL_JAAS_CONFIG"
    config = BrokerConfig.load(
        flags={**SECURE, "sasl.jaas.config": "M required;"},
        environment={variable: 'M required username="u" password="p";'},
    )
    found = config.mechanism_value("SASL_PLAINTEXT", "SCRAM-SHA-512", "sasl.jaas.config")
    assert 'username="u"' in found
