"""The broker's settings in force, and the layers that they come from.

Names and defaults are Kafka's where Kafka has the setting. The settings are declared in `section/`,
one section for each part of the broker. `config_source` reads them from files, the environment and
the command line; this module stacks the layers. A wrong value, an unknown name or contradictory
values raise `ConfigError`, whose message names the place, the value and what is allowed.

Defaults of topics (`log.segment.bytes` for `segment.bytes`, ...) are not fields: the definitions of
the topic settings name these broker settings, and `topic_defaults` collects their values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import Any, Final, NamedTuple

from millstream.broker.config import listener_address as listener
from millstream.broker.config.config_source import (
    ConfigError,
    Given,
    from_environment,
    from_file,
    from_flags,
)
from millstream.broker.config.listener_setting import listener_setting, parse_listener_setting
from millstream.broker.config.sasl_check import check_sasl
from millstream.broker.config.section.audit import AuditSection
from millstream.broker.config.section.authorization import AuthorizationSection
from millstream.broker.config.section.cluster import ClusterSection
from millstream.broker.config.section.controller import ControllerSection
from millstream.broker.config.section.fetch import FetchSection
from millstream.broker.config.section.group import GroupSection
from millstream.broker.config.section.log import LogSection
from millstream.broker.config.section.metrics import MetricsSection
from millstream.broker.config.section.network import NetworkSection
from millstream.broker.config.section.quota import QuotaSection
from millstream.broker.config.section.replication import ReplicationSection
from millstream.broker.config.section.sasl import SaslSection
from millstream.broker.config.section.tls import TlsSection
from millstream.broker.config.section.topic import TopicSection
from millstream.broker.config.section.transaction import TransactionSection
from millstream.broker.config.topic_default import (
    gather_topic_defaults,
    synonym_definitions,
    synonym_names,
)
from millstream.env.disk import Disk
from millstream.model.config import TopicConfig
from millstream.model.definition import (
    ConfigScope,
    ConfigSource,
    ConfigType,
    Definition,
    definitions_of,
    setting,
)
from millstream.security.tls_material import ClientAuth

__all__ = ["BrokerConfig", "ConfigError", "SettingValue", "definitions"]


class SettingValue(NamedTuple):
    """The value of a setting in one layer, as DescribeConfigs shows it."""

    name: str
    text: str | None
    source: ConfigSource


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings in force, by section. `BrokerConfig.load()` returns the defaults."""

    node_id: int = setting(ConfigType.INT, 1, "Id of the broker in the cluster.", minimum=0)

    cluster: ClusterSection = dataclasses.field(default_factory=ClusterSection)
    network: NetworkSection = dataclasses.field(default_factory=NetworkSection)
    tls: TlsSection = dataclasses.field(default_factory=TlsSection)
    log: LogSection = dataclasses.field(default_factory=LogSection)
    topics: TopicSection = dataclasses.field(default_factory=TopicSection)
    fetch: FetchSection = dataclasses.field(default_factory=FetchSection)
    replication: ReplicationSection = dataclasses.field(default_factory=ReplicationSection)
    controller: ControllerSection = dataclasses.field(default_factory=ControllerSection)
    groups: GroupSection = dataclasses.field(default_factory=GroupSection)
    transactions: TransactionSection = dataclasses.field(default_factory=TransactionSection)
    metrics: MetricsSection = dataclasses.field(default_factory=MetricsSection)
    sasl: SaslSection = dataclasses.field(default_factory=SaslSection)
    quota: QuotaSection = dataclasses.field(default_factory=QuotaSection)
    audit: AuditSection = dataclasses.field(default_factory=AuditSection)
    authorization: AuthorizationSection = dataclasses.field(default_factory=AuthorizationSection)

    #: The values that were set, by source, highest precedence first, without the defaults.
    layers: tuple[tuple[ConfigSource, Mapping[str, Given]], ...] = dataclasses.field(
        default=(), repr=False
    )

    @classmethod
    def load(
        cls,
        *,
        file: Path | None = None,
        disk: Disk | None = None,
        environment: Mapping[str, str] | None = None,
        flags: Mapping[str, str] | None = None,
        hostname: str = "localhost",
    ) -> BrokerConfig:
        """Read all sources. Flags take precedence over the environment, the environment over the
        file."""
        given: dict[str, Given] = {}
        if file is not None:
            assert disk is not None
            given |= from_file(file, disk, definitions)
        given |= from_environment(environment or {}, definitions)
        given |= from_flags(flags or {}, definitions)
        return _build(((ConfigSource.STATIC_BROKER, given),), hostname)

    def with_dynamic(self, defaults: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
        """Return the static settings with run-time changes on top: `defaults` for all brokers,
        `own` for this one."""
        static = [layer for layer in self.layers if layer[0] is ConfigSource.STATIC_BROKER]
        layers = (
            (ConfigSource.DYNAMIC_BROKER, _dynamic(own, "run-time config of the broker")),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, _dynamic(defaults, "run-time default config")),
            *static,
        )
        return _build(layers, self.network.hostname)

    def value(self, name: str) -> Any:
        """Return the typed value in force of any setting, topic defaults included."""
        definition = definitions[name]
        section = _SECTION_OF.get(name)
        if section is not None:
            owner = self if section == _TOP else getattr(self, section)
            return getattr(owner, definition.attribute)
        found = self.given(name)
        return definition.default if found is None else definition.parse(found.text)

    def listener_value(self, listener_name: str, name: str) -> Any:
        """Return the typed value of a setting for one listener."""
        found = self.given(listener_setting(listener_name, name))
        return self.value(name) if found is None else definitions[name].parse(found.text)

    def mechanism_value(self, listener_name: str, mechanism: str, name: str) -> Any:
        """Return the typed value of a setting for one SASL mechanism of a listener."""
        found = self.given(listener_setting(listener_name, name, mechanism))
        if found is None:
            return self.listener_value(listener_name, name)
        return definitions[name].parse(found.text)

    def text(self, name: str) -> str | None:
        """Return the value in force as text; None if it is not set."""
        return definitions[name].format(self.value(name))

    def client_auth(self, listener_name: str) -> ClientAuth:
        """Return whether clients of a listener present a certificate.

        On a listener with SASL only the listener's own value counts, as in Kafka (KIP-684)."""
        name = "ssl.client.auth"
        has_sasl = self.network.security_protocols[listener_name].has_sasl
        if has_sasl and self.given(listener_setting(listener_name, name)) is None:
            return ClientAuth.NONE
        return ClientAuth(self.listener_value(listener_name, name))

    def source(self, name: str) -> ConfigSource:
        """Return the source of the value in force."""
        for source, given in self.layers:
            if name in given:
                return source
        return ConfigSource.DEFAULT

    def values(self, name: str) -> list[SettingValue]:
        """Return the value of a setting in every layer, the one in force first, the default last.

        The list includes synonyms of the setting behind its own value. As in Kafka it is empty
        while only synonyms are set."""
        names = _SYNONYMS.get(name, (name,))
        found = [
            SettingValue(each, given[each].text, source)
            for source, given in self.layers
            for each in names
            if each in given
        ]
        for each in names:
            default = definitions[each].format(definitions[each].default)
            if default is not None and not definitions[each].is_shown_if_set:
                found.append(SettingValue(each, default, ConfigSource.DEFAULT))
        return list(dropwhile(lambda value: value.name != name, found))

    def topic_defaults(self) -> TopicConfig:
        """Return the config of a topic without overrides."""
        return gather_topic_defaults(self.value)

    def given(self, name: str) -> Given | None:
        """Return the text in force and its origin; None for a default."""
        for _, given in self.layers:
            if name in given:
                return given[name]
        return None


#: Stands for `BrokerConfig` itself among the sections.
_TOP: Final = ""
_SECTIONS: Final[Mapping[str, Any]] = {
    _TOP: BrokerConfig,
    **{
        field.name: field.default_factory
        for field in dataclasses.fields(BrokerConfig)
        if isinstance(field.default_factory, type)
    },
}
_DECLARED: Final = {section: definitions_of(cls) for section, cls in _SECTIONS.items()}
#: By setting name, the section that declares it.
_SECTION_OF: Final = {name: section for section, found in _DECLARED.items() for name in found}
#: Every broker setting by name, in alphabetical order.
definitions: Final[Mapping[str, Definition]] = dict(
    sorted(
        {
            **synonym_definitions(),
            **{name: found[name] for found in _DECLARED.values() for name in found},
        }.items()
    )
)


_SYNONYMS: Final = synonym_names()


def definition_of(name: str) -> Definition | None:
    """Return the definition of a setting, or of a listener's; None if there is no such setting."""
    of_listener = parse_listener_setting(name)
    if of_listener is None:
        return definitions.get(name)
    found = definitions.get(of_listener.name)
    if found is None or (of_listener.mechanism is not None and not found.is_per_mechanism):
        return None
    return found if found.is_per_listener else None


def _dynamic(overrides: Mapping[str, str], origin: str) -> dict[str, Given]:
    for name in overrides:
        definition = definition_of(name)
        if definition is None:
            raise ConfigError(f"{origin}: {name}: there is no such setting")
        if definition.scope is ConfigScope.READ_ONLY:
            raise ConfigError(f"{origin}: {name}: cannot be changed while the broker runs")
    return {name: Given(text, f"{origin}: {name}") for name, text in overrides.items()}


def _build(
    layers: tuple[tuple[ConfigSource, Mapping[str, Given]], ...], hostname: str
) -> BrokerConfig:
    values: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    values["network"]["hostname"] = hostname
    for _, given in reversed(layers):
        for name, (text, origin) in given.items():
            definition = definition_of(name)
            if definition is None:
                raise ConfigError(f"{origin}: cannot be set for one listener")
            try:
                value = definition.parse(text)
            except ValueError as error:
                shown = "(hidden)" if definition.is_sensitive else repr(text)
                # The cause is left out: it may quote a secret.
                raise ConfigError(f"{origin} = {shown} is not allowed: expected {error}") from None
            section = _SECTION_OF.get(name)
            if section is not None:
                values[section][definition.attribute] = value
    sections = {
        section: cls(**values[section]) for section, cls in _SECTIONS.items() if section != _TOP
    }
    config = BrokerConfig(**values[_TOP], **sections, layers=layers)
    _check_together(config)
    return config


def _check_together(config: BrokerConfig) -> None:
    """Check what involves more than one setting. Raises ConfigError."""
    _check_listeners(config)
    _check_tls(config)
    check_sasl(config)
    network, groups = config.network, config.groups
    if config.source("decommissioned.brokers") is ConfigSource.STATIC_BROKER:
        raise _rejected(config, "decommissioned.brokers", "to be set at run time, for all brokers")
    if config.log.log_dirs is not None and len(config.log.log_dirs) != 1:
        raise _rejected(config, "log.dirs", "one directory")
    if network.queued_max_request_bytes < network.socket_request_max_bytes:
        raise _rejected(
            config,
            "queued.max.request.bytes",
            f"at least socket.request.max.bytes, which is {network.socket_request_max_bytes}",
        )
    if groups.group_min_session_timeout_ms > groups.group_max_session_timeout_ms:
        raise _rejected(
            config,
            "group.min.session.timeout.ms",
            f"at most group.max.session.timeout.ms, {groups.group_max_session_timeout_ms}",
        )
    topic = config.topic_defaults()
    if topic.min_compaction_lag_ms > topic.max_compaction_lag_ms:
        raise _rejected(
            config,
            "log.cleaner.min.compaction.lag.ms",
            f"at most log.cleaner.max.compaction.lag.ms, which is {topic.max_compaction_lag_ms}",
        )


def _check_listeners(config: BrokerConfig) -> None:
    network = config.network
    names = {endpoint.listener_name for endpoint in network.listen_endpoints}
    for name in sorted(names - network.security_protocols.keys()):
        raise _rejected(
            config,
            "listeners",
            f"names that listener.security.protocol.map has: add {name}:PLAINTEXT, {name}:SSL,"
            f" {name}:SASL_PLAINTEXT or {name}:SASL_SSL",
        )
    for _, given in config.layers:
        for name in given:
            of_listener = parse_listener_setting(name)
            if of_listener is not None and of_listener.listener.upper() not in names:
                raise ConfigError(f"{given[name].origin}: there is no such listener")
    advertised = listener.parse_listeners(network.advertised_listeners or ())
    if not {endpoint.listener_name for endpoint in advertised} <= names:
        raise _rejected(config, "advertised.listeners", "only names that listeners has")
    if network.inter_broker_listener not in names:
        raise _rejected(config, "inter.broker.listener.name", f"one of {', '.join(sorted(names))}")


def _check_tls(config: BrokerConfig) -> None:
    """Check that each TLS listener has a key, and the authorities of clients if it needs them."""
    network, protocols = config.network, config.network.security_protocols
    if network.http_ssl_client_auth != ClientAuth.NONE and (
        network.http_ssl_keystore_location is None or network.http_ssl_truststore_location is None
    ):
        raise _rejected(
            config,
            "http.ssl.client.auth",
            "none, unless http.ssl.keystore.location and http.ssl.truststore.location are set",
        )
    if network.http_bearer_token is not None and network.http_bearer_token_file is not None:
        raise ConfigError("set http.bearer.token or http.bearer.token.file, not both")
    for name in (endpoint.listener_name for endpoint in network.listen_endpoints):
        if not protocols[name].has_tls:
            continue
        value = partial(config.listener_value, name)
        if value("ssl.keystore.location") is None and value("ssl.keystore.key") is None:
            raise _rejected(
                config,
                "listeners",
                f"a key for the TLS listener {name}: set ssl.keystore.location, or"
                f" {listener_setting(name, 'ssl.keystore.location')}, to a PEM file with the"
                " private key and the certificate chain. `millstream tls init` makes one",
            )
        has_trust = any(map(value, ("ssl.truststore.location", "ssl.truststore.certificates")))
        client_auth = config.client_auth(name)
        if client_auth is not ClientAuth.NONE and not has_trust:
            raise ConfigError(
                f"the listener {name} has ssl.client.auth = {client_auth} but no"
                " authorities: set ssl.truststore.location to a PEM file with the authorities that"
                " sign certificates of clients"
            )


def _rejected(config: BrokerConfig, name: str, expected: str) -> ConfigError:
    given = config.given(name)
    place = given.origin if given else f"default of {name}"
    shown = "(hidden)" if definitions[name].is_sensitive else repr(config.text(name))
    return ConfigError(f"{place} = {shown} is not allowed: expected {expected}")
