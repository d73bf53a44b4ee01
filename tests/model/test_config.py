"""Topic settings: Kafka's names and defaults, overrides, rejected values."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.config import TopicConfig, definitions, parse_override
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import INT64_MAX

KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": str(INT64_MAX),
    "flush.ms": str(INT64_MAX),
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "max.compaction.lag.ms": str(INT64_MAX),
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": str(INT64_MAX),
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    # Kafka's default is 1. Here each partition derives the minimum from its replicas.
    "min.insync.replicas": None,
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_names_and_defaults_are_kafkas() -> None:
    config = TopicConfig()
    assert {name: config.text(name) for name in definitions} == KAFKA_DEFAULTS


def test_every_definition_is_complete() -> None:
    for name, definition in definitions.items():
        assert definition.name == name
        assert definition.doc.endswith(".")
        text = definition.format(definition.default)
        if name == "min.insync.replicas":
            assert text is None
            continue
        assert text is not None
        assert (
            definition.parse(text)
            == definition.default
            == getattr(TopicConfig(), definition.attribute)
        )


def test_overrides_replace_the_given_defaults() -> None:
    defaults = TopicConfig(segment_bytes=500, retention_ms=7)
    config = TopicConfig.from_strings(
        {"retention.ms": "-1", "cleanup.policy": "compact,delete"}, defaults
    )
    assert config == dataclasses.replace(
        defaults, retention_ms=-1, cleanup_policy=frozenset({"compact", "delete"})
    )


def test_equal_configs_are_one_object() -> None:
    defaults = TopicConfig()
    assert TopicConfig.from_strings({}, defaults) is defaults
    overrides = {"segment.bytes": "1000", "segment.ms": "5"}
    reordered = dict(reversed(overrides.items()))
    first = TopicConfig.from_strings(overrides, defaults)
    assert TopicConfig.from_strings(reordered, TopicConfig()) is first


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("segment.bytes", "13", "from 14 to"),
        ("segment.bytes", "x", "a whole number"),
        ("cleanup.policy", "remove", "compact, delete"),
        ("compression.type", "brotli", "zstd"),
        ("compression.gzip.level", "0", "from 1 to 9, or -1"),
        ("compression.lz4.level", "18", "from 1 to 17"),
        ("message.timestamp.type", "createtime", "CreateTime, LogAppendTime"),
        ("min.cleanable.dirty.ratio", "1.01", "from 0 to 1"),
        ("remote.storage.enable", "false", "unknown topic config"),
        ("leader.replication.throttled.replicas", "1:2,x", "partition:broker"),
        ("retention.ms", "-2", "from -1"),
        ("segment.byte", "1", "did you mean segment.bytes"),
        ("message.format.version", "3.0", "unknown topic config"),
    ],
)
def test_rejections_have_a_code_and_the_allowed_values(name: str, text: str, reason: str) -> None:
    with pytest.raises(BrokerError, match=reason) as raised:
        TopicConfig.from_strings({name: text}, TopicConfig())
    assert raised.value.code is ErrorCode.INVALID_CONFIG


def test_compaction_lags_must_agree() -> None:
    overrides = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}
    with pytest.raises(BrokerError, match=r"at most max.compaction.lag.ms, which is 9"):
        TopicConfig.from_strings(overrides, TopicConfig())


def test_throttled_replicas_may_be_a_wildcard() -> None:
    assert parse_override("leader.replication.throttled.replicas", "*") == ("*",)
    assert parse_override("leader.replication.throttled.replicas", "0:1,1:2") == ("0:1", "1:2")


@given(st.sampled_from(sorted(definitions)), st.text(max_size=30))
def test_any_override_is_rejected_or_survives_the_round_trip(name: str, text: str) -> None:
    try:
        config = TopicConfig.from_strings({name: text}, TopicConfig())
    except BrokerError:
        return
    assert parse_override(name, config.text(name) or "") == getattr(config, name.replace(".", "_"))
