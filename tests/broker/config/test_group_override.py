from __future__ import annotations

import pytest

from millstream.broker.config import group_override
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.config.broker_config import definitions as broker_definitions
from millstream.groups.consumer.consumer_settings import ConsumerGroupSettings
from millstream.model.definition import ConfigSource
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.group_config import definitions
from millstream.model.map import Map

SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"


def broker(**flags: str) -> BrokerConfig:
    return BrokerConfig.load(flags={key.replace("_", "."): text for key, text in flags.items()})


def test_each_group_setting_has_a_default_and_limits_in_the_broker_settings() -> None:
    assert set(definitions) == {SESSION, HEARTBEAT, ASSIGNMENT}
    for name, definition in definitions.items():
        (synonym,) = definition.synonyms
        assert broker_definitions[synonym.name].default == definition.default
        protocol, rest = name.split(".", 1)
        assert {f"group.{protocol}.min.{rest}", f"group.{protocol}.max.{rest}"} <= set(
            broker_definitions
        )


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {SESSION: "50000"},
        {SESSION: "45000", HEARTBEAT: "5000"},
        {SESSION: "60000", HEARTBEAT: "15000"},
        {ASSIGNMENT: "0"},
        {ASSIGNMENT: "15000"},
    ],
)
def test_valid_overrides_are_accepted(overrides: dict[str, str]) -> None:
    group_override.check(Map(overrides), broker())


@pytest.mark.parametrize(
    "overrides",
    [
        {"consumer.colour": "red"},
        {"session.timeout.ms": "50000"},
        {SESSION: "soon"},
        {SESSION: ""},
        {SESSION: "-1"},
        {SESSION: "44999"},
        {SESSION: "60001"},
        {HEARTBEAT: "4999"},
        {HEARTBEAT: "15001"},
        {HEARTBEAT: str(2**40)},
        {ASSIGNMENT: "-1"},
        {ASSIGNMENT: "15001"},
    ],
)
def test_invalid_overrides_are_rejected(overrides: dict[str, str]) -> None:
    with pytest.raises(BrokerError) as raised:
        group_override.check(Map(overrides), broker())
    assert raised.value.code == ErrorCode.INVALID_CONFIG


def test_the_session_timeout_must_exceed_the_heartbeat_interval() -> None:
    config = broker(
        group_consumer_min_session_timeout_ms="1000", group_consumer_min_heartbeat_interval_ms="1"
    )
    group_override.check(Map({SESSION: "5001"}), config)
    for overrides in ({SESSION: "5000"}, {SESSION: "1000", HEARTBEAT: "1000"}):
        with pytest.raises(BrokerError, match="must be greater"):
            group_override.check(Map(overrides), config)


def test_a_group_has_its_overrides_and_otherwise_the_broker_settings() -> None:
    config = broker(group_consumer_heartbeat_interval_ms="7000")
    default = ConsumerGroupSettings(group_size_max=9)
    found = group_override.settings(Map({SESSION: "50000"}), config, default)
    assert (found.session_timeout_ms, found.heartbeat_interval_ms) == (50_000, 7000)
    assert (found.group_size_max, found.large_group_size) == (9, default.large_group_size)
    asked = group_override.settings(Map({ASSIGNMENT: "300"}), config, default)
    assert (asked.assignment_interval_ms, asked.large_group_size) == (300, 0)


def test_an_override_outside_of_new_limits_is_clamped() -> None:
    narrow = broker(group_consumer_max_session_timeout_ms="50000")
    stored = Map({SESSION: "60000"})
    found = group_override.settings(stored, narrow, ConsumerGroupSettings())
    assert found.session_timeout_ms == 50_000


def test_the_first_layer_is_the_value_in_force() -> None:
    config = broker(group_consumer_session_timeout_ms="46000")
    rows = group_override.layers(Map({SESSION: "50000"}), SESSION, config)
    assert [(row.text, row.source) for row in rows] == [
        ("50000", ConfigSource.DYNAMIC_GROUP),
        ("46000", ConfigSource.STATIC_BROKER),
        ("45000", ConfigSource.DEFAULT),
    ]
    assert [row.name for row in rows] == [SESSION, f"group.{SESSION}", f"group.{SESSION}"]
