"""The broker's settings: names, types, defaults and limits, and the values in force.

Names and defaults are Kafka's where Kafka has the setting; those of our own follow its spirit.
Owns what the settings are and how layers of them add up; finding them in files and variables is
`config_source`'s. A wrong value, an unknown name or values that contradict each other raise
`ConfigError`, whose message names the place, the value and what is allowed.

Defaults for topics (`log.segment.bytes` for `segment.bytes`, ...) are not fields: the topic's own
definitions say which broker settings stand for them, and `topic_defaults` gathers them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
from millstream.broker.config.replication_settings import ReplicationConfig
from millstream.broker.config.topic_default import (
    gather_topic_defaults,
    synonym_definitions,
    synonym_names,
)
from millstream.env.disk import Disk
from millstream.metadata.cluster_record import Endpoint
from millstream.model.config import TopicConfig
from millstream.model.definition import (
    ConfigSource,
    ConfigType,
    Definition,
    Scope,
    definitions_of,
    setting,
)
from millstream.model.sentinel import INT32_MAX, INT64_MAX

__all__ = ["BrokerConfig", "ConfigError", "SettingValue", "definitions"]

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_MIB: Final = 1024 * 1024


class SettingValue(NamedTuple):
    """One layer's value of a setting, as DescribeConfigs shows it."""

    name: str
    text: str | None
    source: ConfigSource


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(ReplicationConfig):
    """The values in force. `BrokerConfig.load()` without arguments gives the defaults."""

    # Who it is, and where it keeps things.
    node_id: int = setting(_INT, 1, "The broker's number in the cluster.", minimum=0)
    broker_rack: str | None = setting(
        _STRING, None, "Where the broker stands; replicas are spread over racks."
    )
    broker_session_timeout_ms: int = setting(
        _INT, 3000, "Silence after which the cluster takes the broker for dead.", minimum=100
    )
    initial_broker_registration_timeout_ms: int = setting(
        _INT,
        60_000,
        "Time that a broker whose data folder is of a cluster tries to join it at a start, while"
        " the metadata store can't be reached or its number is taken.",
        minimum=0,
    )
    log_dir: str = setting(_STRING, "./millstream-data", "Directory of all data.", shown_kind=_LIST)
    log_dirs: tuple[str, ...] | None = setting(
        _LIST, None, "The same under its other name, which wins; only one directory is allowed."
    )
    metadata_store: str = setting(
        _STRING,
        listener.EMBEDDED_STORE,
        "Where the cluster's metadata lives: sqlite, which is in the data folder and for one broker"
        " alone, or etcd://host:port,host:port/prefix, with etcds:// for TLS.",
        check=listener.check_store,
    )
    metadata_etcd_username: str | None = setting(_STRING, None, "The user to log in to etcd as.")
    metadata_etcd_password_file: str | None = setting(
        _STRING, None, "File that holds this user's password."
    )
    metadata_etcd_ca_file: str | None = setting(
        _STRING, None, "Certificates that etcd's are checked with, in place of the system's."
    )
    metadata_etcd_certificate_file: str | None = setting(
        _STRING, None, "Certificate to show to etcd, where it asks for one."
    )
    metadata_etcd_key_file: str | None = setting(
        _STRING, None, "The key of this certificate, where it is not in the same file."
    )

    # Listening.
    listeners: tuple[str, ...] = setting(
        _LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses for clients, as NAME://host:port; an empty host is every address.",
        check=listener.check_listeners,
    )
    advertised_listeners: tuple[str, ...] | None = setting(
        _LIST,
        None,
        "Addresses that clients are told, where they differ from the listeners.",
        check=listener.check_advertised,
    )
    listener_security_protocol_map: tuple[str, ...] = setting(
        _LIST,
        ("PLAINTEXT:PLAINTEXT",),
        "Security protocol of each listener name, as NAME:PROTOCOL.",
        check=listener.check_protocols,
        shown_kind=_STRING,
    )
    http_listen: str = setting(
        _STRING,
        "127.0.0.1:9644",
        "Address of metrics and health checks, as host:port; empty for none.",
        check=listener.check_http,
    )

    # Connections and memory for requests.
    socket_request_max_bytes: int = setting(
        _INT, 100 * _MIB, "Largest request accepted; a larger one ends its connection.", minimum=1
    )
    socket_listen_backlog_size: int = setting(
        _INT, 1024, "Connections that may wait to be accepted.", minimum=1
    )
    socket_send_buffer_bytes: int = setting(
        _INT, -1, "The sockets' send buffer; -1 leaves it to the system.", minimum=-1
    )
    socket_receive_buffer_bytes: int = setting(
        _INT, -1, "The sockets' receive buffer; -1 leaves it to the system.", minimum=-1
    )
    max_connections: int = setting(
        _INT,
        10_000,
        "Connections at any time, over all listeners.",
        minimum=0,
        scope=Scope.CLUSTER_WIDE,
    )
    max_connections_per_ip: int = setting(
        _INT,
        INT32_MAX,
        "Connections at any time from one address.",
        minimum=0,
        scope=Scope.CLUSTER_WIDE,
    )
    max_connections_per_ip_overrides: tuple[str, ...] = setting(
        _LIST,
        (),
        "The same for particular addresses, as address:count.",
        check=listener.check_overrides,
        shown_kind=_STRING,
        scope=Scope.CLUSTER_WIDE,
    )
    connections_max_idle_ms: int = setting(
        _LONG, 600_000, "Idle time after which a connection is closed; -1 is never.", minimum=-1
    )
    connection_partial_request_timeout_ms: int = setting(
        _LONG, 30_000, "Time that a request may take to arrive in full.", minimum=1
    )
    connection_write_timeout_ms: int = setting(
        _LONG, 60_000, "Time that a client may leave its responses unread.", minimum=1
    )
    connection_max_inflight_requests: int = setting(
        _INT, 1000, "Requests of one connection at work; then it is not read from.", minimum=1
    )
    connection_max_inflight_bytes: int = setting(_LONG, 128 * _MIB, "Bytes of the same.", minimum=1)
    queued_max_request_bytes: int = setting(
        _LONG,
        256 * _MIB,
        "Memory for requests of all connections; while it is used up none is read from.",
        minimum=1,
    )
    shutdown_drain_timeout_ms: int = setting(
        _LONG, 30_000, "Time that a stop waits for requests at work.", minimum=0
    )

    # Fetching.
    fetch_max_bytes: int = setting(
        _INT, 55 * _MIB, "Largest amount of records in one answer to Fetch.", minimum=1024
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        _INT, 1000, "Fetch sessions kept at a time; 0 is none.", minimum=0
    )

    # Topics.
    num_partitions: int = setting(
        _INT, 1, "Partitions of a topic created without a number.", minimum=1
    )
    default_replication_factor: int | None = setting(
        _INT,
        None,
        "Replicas of a topic created without a number. By default 3, or as many as there are"
        " brokers.",
        minimum=1,
        scope=Scope.CLUSTER_WIDE,
    )
    max_partitions_per_topic: int = setting(
        _INT, 10_000, "Partitions that one topic may have.", minimum=1, maximum=10_000
    )
    auto_create_topics_enable: bool = setting(
        _BOOLEAN, True, "Create a topic when a client first asks for it."
    )
    delete_topic_enable: bool = setting(_BOOLEAN, True, "Let clients delete topics.")

    # The log's upkeep.
    log_flush_before_ack: bool = setting(
        _BOOLEAN, False, "Force records to stable storage before they are acknowledged."
    )
    log_flush_scheduler_interval_ms: int = setting(
        _LONG, INT64_MAX, "Time between looks for logs whose flush.ms is over.", minimum=1
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        _INT, 60_000, "Time between writes of the recovery points.", minimum=1
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        _INT, 60_000, "Time between writes of the log start offsets.", minimum=1
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        _LONG, 5000, "Time between writes of the high watermarks.", minimum=1
    )
    log_retention_check_interval_ms: int = setting(
        _LONG, 300_000, "Time between looks for segments that are past retention.", minimum=1
    )
    log_initial_task_delay_ms: int = setting(
        _LONG, 30_000, "Time from the start to the first of these looks.", minimum=0
    )
    log_open_files_max: int = setting(
        _INT, 4096, "Files of logs open at a time; others are opened when needed.", minimum=16
    )
    num_recovery_threads_per_data_dir: int = setting(
        _INT,
        2,
        "Threads that recover logs after an unclean stop, and flush them at a stop.",
        minimum=1,
        scope=Scope.CLUSTER_WIDE,
    )

    # Compaction.
    log_cleaner_enable: bool = setting(_BOOLEAN, True, "Compact the topics that ask for it.")
    log_cleaner_threads: int = setting(
        _INT, 1, "Logs compacted at a time.", minimum=0, scope=Scope.CLUSTER_WIDE
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        _LONG,
        128 * _MIB,
        "Memory for the keys of the logs being compacted, over all threads.",
        minimum=_MIB,
        scope=Scope.CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_size: int = setting(
        _INT,
        512 * 1024,
        "Memory for reading and writing, over all threads.",
        minimum=1024,
        scope=Scope.CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        _DOUBLE,
        0.9,
        "How full the memory for keys may get.",
        minimum=0.1,
        maximum=1,
        scope=Scope.CLUSTER_WIDE,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        _DOUBLE,
        1.7976931348623157e308,
        "Reading and writing of the cleaner, together.",
        minimum=1,
        scope=Scope.CLUSTER_WIDE,
    )
    log_cleaner_backoff_ms: int = setting(
        _LONG,
        15_000,
        "Rest when there was nothing to compact.",
        minimum=0,
        scope=Scope.CLUSTER_WIDE,
    )

    # Idempotent producers.
    producer_id_expiration_ms: int = setting(
        _INT,
        86_400_000,
        "Silence after which a producer's sequence numbers are forgotten.",
        minimum=1,
        scope=Scope.CLUSTER_WIDE,
    )
    producer_id_expiration_check_interval_ms: int = setting(
        _INT, 600_000, "Time between looks for such producers.", minimum=1
    )

    # Metrics.
    metrics_topic_labels_max: int = setting(
        _INT, 1000, "Topics with metrics of their own; the rest are added up.", minimum=0
    )
    metrics_partition_labels_max: int = setting(
        _INT, 1000, "Partitions with metrics of their own; the rest are added up.", minimum=0
    )
    metrics_client_labels_max: int = setting(
        _INT, 10_000, "Series pushed by clients that are shown, over all clients.", minimum=0
    )
    telemetry_max_bytes: int = setting(
        _INT, _MIB, "Largest payload of metrics that a client may push.", minimum=1
    )

    #: What was given, by source, the strongest first; `ConfigSource.DEFAULT` is not among them.
    layers: tuple[tuple[ConfigSource, Mapping[str, Given]], ...] = ()
    #: The machine's name, told to clients where a listener takes every address.
    hostname: str = "localhost"

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
        """Read every source; flags win over the environment, and that over the file."""
        given: dict[str, Given] = {}
        if file is not None:
            assert disk is not None
            given |= from_file(file, disk, definitions)
        given |= from_environment(environment or {}, definitions)
        given |= from_flags(flags or {}, definitions)
        return _build(((ConfigSource.STATIC_BROKER, given),), hostname)

    def with_dynamic(self, defaults: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
        """These settings with those changed at run time on top, for all brokers and for this."""
        static = [layer for layer in self.layers if layer[0] is ConfigSource.STATIC_BROKER]
        layers = (
            (ConfigSource.DYNAMIC_BROKER, _dynamic(own, "run-time config of the broker")),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, _dynamic(defaults, "run-time default config")),
            *static,
        )
        return _build(layers, self.hostname)

    def value(self, name: str) -> Any:
        """The typed value in force of any setting, topic defaults included."""
        definition = definitions[name]
        if name in _OWN:
            return getattr(self, definition.attribute)
        found = self.given(name)
        return definition.default if found is None else definition.parse(found.text)

    def text(self, name: str) -> str | None:
        return definitions[name].format(self.value(name))

    def source(self, name: str) -> ConfigSource:
        for source, given in self.layers:
            if name in given:
                return source
        return ConfigSource.DEFAULT

    def values(self, name: str) -> list[SettingValue]:
        """Every layer's value of a setting, the one in force first and the default last.

        Settings that stand for the same are among them, but the first is `name`'s own: as in Kafka
        there is none as long as only the others have values."""
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
        """What topics are without overrides of their own."""
        return gather_topic_defaults(self.value)

    @property
    def data_dir(self) -> Path:
        return Path(self.log_dirs[0] if self.log_dirs else self.log_dir)

    @property
    def listen_endpoints(self) -> tuple[Endpoint, ...]:
        """Where to listen; port 0 is any free one."""
        return listener.parse_listeners(self.listeners)

    def advertised_endpoints(self, ports: Mapping[str, int]) -> tuple[Endpoint, ...]:
        """What clients are told, given the port that each listener got."""
        advertised = listener.parse_listeners(self.advertised_listeners or ())
        named = {endpoint.listener_name: endpoint for endpoint in advertised}
        told: list[Endpoint] = []
        for bound in self.listen_endpoints:
            endpoint = named.get(bound.listener_name, bound)
            host = self.hostname if endpoint.host in listener.WILDCARD_HOSTS else endpoint.host
            port = endpoint.port or ports[bound.listener_name]
            told.append(Endpoint(bound.listener_name, host, port))
        return tuple(told)

    @property
    def inter_broker_listener(self) -> str:
        return self.inter_broker_listener_name or self.listen_endpoints[0].listener_name

    @property
    def http_address(self) -> tuple[str, int] | None:
        return listener.parse_address(self.http_listen) if self.http_listen else None

    @property
    def connections_per_ip_overrides(self) -> dict[str, int]:
        pairs = listener.parse_pairs(self.max_connections_per_ip_overrides, "address:count")
        return {address: int(limit) for address, limit in pairs.items()}

    def given(self, name: str) -> Given | None:
        """The text in force and where it was found; None where it is the default."""
        for _, given in self.layers:
            if name in given:
                return given[name]
        return None


_OWN: Final = definitions_of(BrokerConfig)
#: Every broker setting by name, in alphabetical order.
definitions: Final[Mapping[str, Definition]] = dict(
    sorted({**synonym_definitions(), **_OWN}.items())
)


_SYNONYMS: Final = synonym_names()


def _dynamic(overrides: Mapping[str, str], origin: str) -> dict[str, Given]:
    for name in overrides:
        definition = definitions.get(name)
        if definition is None:
            raise ConfigError(f"{origin}: {name}: there is no such setting")
        if definition.scope is Scope.READ_ONLY:
            raise ConfigError(f"{origin}: {name}: cannot be changed while the broker runs")
    return {name: Given(text, f"{origin}: {name}") for name, text in overrides.items()}


def _build(
    layers: tuple[tuple[ConfigSource, Mapping[str, Given]], ...], hostname: str
) -> BrokerConfig:
    values: dict[str, Any] = {}
    for _, given in reversed(layers):
        for name, (text, origin) in given.items():
            definition = definitions[name]
            try:
                value = definition.parse(text)
            except ValueError as error:
                raise ConfigError(
                    f"{origin} = {text!r} is not allowed: expected {error}"
                ) from error
            if name in _OWN:
                values[definition.attribute] = value
    config = BrokerConfig(**values, layers=layers, hostname=hostname)
    _check_together(config)
    return config


def _check_together(config: BrokerConfig) -> None:
    """What no setting can be blamed for alone."""

    def refuse(name: str, expected: str) -> ConfigError:
        given = config.given(name)
        place = given.origin if given else f"default of {name}"
        return ConfigError(f"{place} = {config.text(name)!r} is not allowed: expected {expected}")

    names = {endpoint.listener_name for endpoint in config.listen_endpoints}
    protocols = listener.parse_pairs(config.listener_security_protocol_map, "NAME:PROTOCOL")
    for name in sorted(names - {listener.PLAINTEXT, *map(str.upper, protocols)}):
        if name in listener.UNSUPPORTED_PROTOCOLS:
            raise refuse("listeners", f"no {name} listener, as TLS and SASL are not supported yet")
        raise refuse(
            "listeners", f"names that listener.security.protocol.map has: add {name}:PLAINTEXT"
        )
    advertised = listener.parse_listeners(config.advertised_listeners or ())
    if not {endpoint.listener_name for endpoint in advertised} <= names:
        raise refuse("advertised.listeners", "only names that listeners has")
    if config.inter_broker_listener not in names:
        raise refuse("inter.broker.listener.name", f"one of {', '.join(sorted(names))}")
    if config.source("decommissioned.brokers") is ConfigSource.STATIC_BROKER:
        raise refuse("decommissioned.brokers", "to be set at run time, for all brokers")
    if config.log_dirs is not None and len(config.log_dirs) != 1:
        raise refuse("log.dirs", "one directory")
    if config.queued_max_request_bytes < config.socket_request_max_bytes:
        raise refuse(
            "queued.max.request.bytes",
            f"at least socket.request.max.bytes, which is {config.socket_request_max_bytes}",
        )
    if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
        raise refuse(
            "group.min.session.timeout.ms",
            f"at most group.max.session.timeout.ms, {config.group_max_session_timeout_ms}",
        )
    topic = config.topic_defaults()
    if topic.min_compaction_lag_ms > topic.max_compaction_lag_ms:
        raise refuse(
            "log.cleaner.min.compaction.lag.ms",
            f"at most log.cleaner.max.compaction.lag.ms, which is {topic.max_compaction_lag_ms}",
        )
