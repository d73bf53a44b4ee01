"""Broker settings: names, layers, contradictions, and error messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.config.broker_config import BrokerConfig, ConfigError, definitions
from millstream.env.disk import SystemDisk
from millstream.metadata.cluster_record import Endpoint
from millstream.model.config import TopicConfig
from millstream.model.config import definitions as topic_definitions
from millstream.model.definition import ConfigScope, ConfigSource
from millstream.model.sentinel import INT64_MAX

HOUR_MS = 3_600_000


def load(**flags: str) -> BrokerConfig:
    return BrokerConfig.load(flags={name.replace("_", "."): text for name, text in flags.items()})


def test_without_sources_all_settings_have_their_defaults() -> None:
    config = BrokerConfig.load()
    assert config == BrokerConfig(layers=config.layers)
    assert config.topic_defaults() == TopicConfig()
    assert config.network.listen_endpoints == (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)
    assert config.network.advertised_endpoints({}) == config.network.listen_endpoints
    assert config.network.http_address == ("127.0.0.1", 9644)
    assert config.log.data_dir == Path("millstream-data")
    assert all(config.source(name) is ConfigSource.DEFAULT for name in definitions)


def test_every_definition_is_complete() -> None:
    for name, definition in definitions.items():
        assert definition.name == name
        assert definition.doc.endswith("."), name
        text = definition.format(definition.default)
        if text is not None:
            assert definition.parse(text) == definition.default, name


def test_every_synonym_of_a_topic_setting_is_a_broker_setting() -> None:
    for topic_definition in topic_definitions.values():
        for synonym in topic_definition.synonyms:
            assert synonym.name in definitions


def test_flags_override_the_environment_and_the_environment_overrides_the_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "millstream.toml"
    file.write_text("num.partitions = 2\nnode.id = 2\nmessage.max.bytes = 2\n")
    config = BrokerConfig.load(
        file=file,
        disk=SystemDisk(),
        environment={"MILLSTREAM_NUM_PARTITIONS": "3", "MILLSTREAM_NODE_ID": "3", "HOME": "/"},
        flags={"num.partitions": "4"},
    )
    assert (config.topics.num_partitions, config.node_id) == (4, 3)
    assert config.topic_defaults().max_message_bytes == 2
    origins = [config.given(n) for n in ("num.partitions", "node.id", "message.max.bytes")]
    assert [given.origin for given in origins if given] == [
        "command line: num.partitions",
        "environment variable MILLSTREAM_NODE_ID",
        f"{file}: message.max.bytes",
    ]
    assert config.source("node.id") is ConfigSource.STATIC_BROKER


@pytest.mark.parametrize(
    ("flags", "attribute", "value"),
    [
        ({}, "retention_ms", 168 * HOUR_MS),
        ({"log.retention.hours": "2"}, "retention_ms", 2 * HOUR_MS),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, "retention_ms", 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, "retention_ms", 4),
        ({"log.retention.hours": "-1"}, "retention_ms", -1),
        ({"log.roll.hours": "1"}, "segment_ms", HOUR_MS),
        ({"log.roll.ms": "1", "log.roll.hours": "1"}, "segment_ms", 1),
        ({"log.roll.jitter.hours": "1"}, "segment_jitter_ms", HOUR_MS),
        ({}, "flush_ms", INT64_MAX),
        ({"log.flush.scheduler.interval.ms": "5"}, "flush_ms", 5),
        ({"log.flush.scheduler.interval.ms": "5", "log.flush.interval.ms": "6"}, "flush_ms", 6),
        ({"log.cleanup.policy": "compact"}, "cleanup_policy", frozenset({"compact"})),
        ({"min.insync.replicas": "2"}, "min_insync_replicas", 2),
        ({"log.cleaner.min.cleanable.ratio": "0.1"}, "min_cleanable_dirty_ratio", 0.1),
    ],
)
def test_a_topic_default_has_the_value_of_the_synonym_with_the_highest_precedence(
    flags: dict[str, str], attribute: str, value: object
) -> None:
    assert getattr(BrokerConfig.load(flags=flags).topic_defaults(), attribute) == value


def test_a_listener_is_advertised_as_configured_or_as_bound() -> None:
    config = BrokerConfig.load(
        flags={
            "listeners": "PLAINTEXT://0.0.0.0:9092,inside://[::1]:0,OUTSIDE://10.0.0.1:0",
            "advertised.listeners": "OUTSIDE://broker.example.com:19092",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,outside:plaintext",
        },
        hostname="machine",
    )
    assert config.network.listen_endpoints[1] == Endpoint("INSIDE", "::1", 0)
    assert config.network.advertised_endpoints(
        {"PLAINTEXT": 9092, "INSIDE": 40000, "OUTSIDE": 40001}
    ) == (
        Endpoint("PLAINTEXT", "machine", 9092),
        Endpoint("INSIDE", "::1", 40000),
        Endpoint("OUTSIDE", "broker.example.com", 19092),
    )


def test_derived_values() -> None:
    config = BrokerConfig.load(
        flags={
            "log.dir": "/a",
            "log.dirs": "/b",
            "http.listen": "",
            "max.connections.per.ip.overrides": "10.0.0.1:5,::1:7",
        }
    )
    assert config.log.data_dir == Path("/b")
    assert config.network.http_address is None
    assert config.network.connections_per_ip_overrides == {"10.0.0.1": 5, "::1": 7}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("node.id", "-1", "a whole number from 0 to 2147483647"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("log.segment.bytes", "13", "a whole number from 14 to 2147483647"),
        ("log.cleanup.policy", "x", "compact, delete"),
        ("listeners", "127.0.0.1:9092", "NAME://host:port"),
        ("listeners", "", "at least one"),
        ("listeners", "A://h:1,A://h:2", "different names"),
        ("listeners", "PLAINTEXT://h:1,B://h:1", "different addresses"),
        ("listeners", "PLAINTEXT://h:65536", "port from 0 to 65535"),
        ("listeners", "MINE://h:1", "add MINE:PLAINTEXT"),
        (
            "listener.security.protocol.map",
            "A:TLS",
            "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        ("listeners", "SSL://h:1", "a key for the TLS listener SSL: set ssl.keystore.location"),
        ("ssl.keystore.type", "JKS", "openssl pkcs12 -in"),
        ("ssl.truststore.type", "PKCS12", "openssl pkcs12 -in"),
        ("ssl.client.auth", "maybe", "one of none, requested, required"),
        ("ssl.enabled.protocols", "TLSv1.1", "list of TLSv1.2, TLSv1.3"),
        ("ssl.principal.mapping.rules", "RULE:x", "DEFAULT, or rules such as"),
        ("http.ssl.client.auth", "required", "unless http.ssl.keystore.location"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:1", "clients can connect to"),
        ("advertised.listeners", "OTHER://h:1", "only names that listeners has"),
        ("http.listen", "9644", "host:port"),
        ("metadata.store", "zookeeper://h:2181", "sqlite, or etcd://host:port"),
        ("metadata.store", "etcd://h:0", "etcd members as host:port"),
        ("max.connections.per.ip.overrides", "10.0.0.1", "address:count"),
        ("max.connections.per.ip.overrides", "10.0.0.1:x", "address:count"),
        ("log.dirs", "/a,/b", "one directory"),
        ("queued.max.request.bytes", "1000", "socket.request.max.bytes, which is 104857600"),
        ("log.cleaner.max.compaction.lag.ms", "0", "from 1 to"),
    ],
)
def test_an_error_names_origin_value_and_allowed_values(
    name: str, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.load(flags={name: text})
    message = str(raised.value)
    assert message.startswith(f"command line: {name} = {text!r} is not allowed: expected ")
    assert expected in message


def test_contradictory_topic_defaults_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"lag\.ms = '10' is not allowed: expected at most"):
        BrokerConfig.load(
            flags={
                "log.cleaner.min.compaction.lag.ms": "10",
                "log.cleaner.max.compaction.lag.ms": "9",
            }
        )


def test_run_time_settings_override_static_ones_until_they_are_removed() -> None:
    static = load(log_segment_bytes="100", max_connections="5")
    config = static.with_dynamic(
        {"log.segment.bytes": "200", "max.connections": "6"}, {"log.segment.bytes": "300"}
    )
    assert config.topic_defaults().segment_bytes == 300
    assert config.network.max_connections == 6
    assert config.values("log.segment.bytes") == [
        ("log.segment.bytes", "300", ConfigSource.DYNAMIC_BROKER),
        ("log.segment.bytes", "200", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.segment.bytes", "100", ConfigSource.STATIC_BROKER),
        ("log.segment.bytes", "1073741824", ConfigSource.DEFAULT),
    ]
    assert config.source("max.connections") is ConfigSource.DYNAMIC_DEFAULT_BROKER
    assert config.text("log.segment.bytes") == "300"
    back = config.with_dynamic({}, {})
    assert back.topic_defaults().segment_bytes == 100
    assert back.network.max_connections == 5


def test_settings_in_other_units_are_shown_with_each_other() -> None:
    hours = ("log.retention.hours", "168", ConfigSource.DEFAULT)
    config = BrokerConfig.load()
    assert config.values("log.retention.ms") == []
    assert config.values("log.retention.hours") == [hours]
    # As in Kafka, values of synonyms are shown only after a value of the setting itself.
    config = load(log_retention_hours="24")
    assert config.values("log.retention.ms") == []
    config = config.with_dynamic({"log.retention.ms": "7"}, {})
    assert config.values("log.retention.ms") == [
        ("log.retention.ms", "7", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.hours", "24", ConfigSource.STATIC_BROKER),
        hours,
    ]


def test_a_setting_that_falls_back_to_another_is_shown_with_it() -> None:
    scheduler = ("log.flush.scheduler.interval.ms", str(2**63 - 1), ConfigSource.DEFAULT)
    config = load(log_flush_interval_ms="5")
    assert config.values("log.flush.interval.ms") == [
        ("log.flush.interval.ms", "5", ConfigSource.STATIC_BROKER),
        scheduler,
    ]
    assert config.values("log.flush.scheduler.interval.ms") == [scheduler]


def test_invalid_run_time_settings_are_rejected() -> None:
    config = BrokerConfig.load()
    for overrides, expected in [
        ({"node.id": "5"}, "cannot be changed while the broker runs"),
        ({"log.retention.hours": "5"}, "cannot be changed while the broker runs"),
        ({"nonsense": "5"}, "no such setting"),
        ({"log.retention.ms": "x"}, "a whole number"),
    ]:
        with pytest.raises(ConfigError, match=expected):
            config.with_dynamic({}, overrides)


def test_optional_settings_without_a_value_have_no_text() -> None:
    config = BrokerConfig.load()
    assert config.text("broker.rack") is None
    assert config.values("broker.rack") == []
    assert config.text("log.retention.ms") is None
    assert config.text("log.retention.hours") == "168"


def test_scopes_tell_which_settings_may_change_at_run_time() -> None:
    assert definitions["listeners"].scope is ConfigScope.READ_ONLY
    assert definitions["log.retention.ms"].scope is ConfigScope.CLUSTER_WIDE
