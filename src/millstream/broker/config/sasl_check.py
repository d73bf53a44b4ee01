"""Checks of the SASL settings that involve more than one setting. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.config.config_source import ConfigError
from millstream.broker.config.listener_address import EMBEDDED_STORE
from millstream.broker.config.listener_setting import listener_setting
from millstream.model.jaas import parse_jaas
from millstream.security.sasl.exchange import Mechanism

if TYPE_CHECKING:
    from millstream.broker.config.broker_config import BrokerConfig

#: The settings that OAUTHBEARER requires. A broker that checks neither issuer nor audience would
#: accept every token with a valid signature.
_OAUTH_SETTINGS = (
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.expected.audience",
)


def check_sasl(config: BrokerConfig) -> None:
    """Raise ConfigError if settings are missing or contradict each other."""
    protocols = config.network.listener_protocols
    for listener, protocol in protocols.items():
        enabled = config.listener_value(listener, "sasl.enabled.mechanisms")
        if protocol.has_sasl and Mechanism.OAUTHBEARER in enabled:
            for name in _OAUTH_SETTINGS:
                if not config.value(name):
                    raise ConfigError(f"OAUTHBEARER on listener {listener} needs {name}")
    between_brokers = config.network.inter_broker_listener
    if protocols[between_brokers].has_sasl and config.cluster.metadata_store != EMBEDDED_STORE:
        _check_between_brokers(config, between_brokers)


def _check_between_brokers(config: BrokerConfig, listener: str) -> None:
    mechanism = config.sasl.sasl_mechanism_inter_broker_protocol
    if mechanism not in config.listener_value(listener, "sasl.enabled.mechanisms"):
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol = {mechanism!r} is not allowed: expected one of"
            f" the mechanisms of listener {listener} (sasl.enabled.mechanisms)"
        )
    user, password = peer_credentials(config)
    if not user or not password:
        name = listener_setting(listener, "sasl.jaas.config", mechanism)
        raise ConfigError(
            f"{name} needs a username and a password, with which this broker logs in to other"
            " brokers"
        )


def peer_credentials(config: BrokerConfig) -> tuple[str, str]:
    """Return the user name and the password of this broker at other brokers; empty if not set."""
    listener = config.network.inter_broker_listener
    mechanism = config.sasl.sasl_mechanism_inter_broker_protocol
    text = config.mechanism_value(listener, mechanism, "sasl.jaas.config")
    options = parse_jaas(text) if text else {}
    return options.get("username", ""), options.get("password", "")
