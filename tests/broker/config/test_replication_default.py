"""Settings for replicas: their defaults, and values that are set."""

from __future__ import annotations

import pytest

from millstream.broker.config import replication_default
from millstream.broker.config.broker_config import BrokerConfig, SettingValue
from millstream.model.definition import ConfigSource

NOTHING = BrokerConfig.load()


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [(1, [1, 1, 1, 1, 1]), (2, [2, 1, 2, 2, 1]), (3, [3, 2, 3, 3, 2]), (9, [3, 2, 3, 3, 2])],
)
def test_unset_settings_depend_on_the_number_of_brokers(brokers: int, expected: list[int]) -> None:
    assert replication_default.all_values(NOTHING, brokers) == expected
    assert all(
        replication_default.is_derived(NOTHING, name) for name in replication_default.SETTINGS
    )


def test_set_values_are_in_force_with_any_number_of_brokers() -> None:
    flags = {name: str(5 + at) for at, name in enumerate(replication_default.SETTINGS)}
    config = BrokerConfig.load(flags=flags)
    for brokers in (1, 2, 3, 4):
        assert replication_default.all_values(config, brokers) == [5, 6, 7, 8, 9]
    assert not any(
        replication_default.is_derived(config, name) for name in replication_default.SETTINGS
    )


@pytest.mark.parametrize(("factor", "min_isr"), [("1", 1), ("2", 1), ("3", 2), ("5", 2)])
def test_the_default_min_isr_depends_on_a_factor_that_is_set(factor: str, min_isr: int) -> None:
    config = BrokerConfig.load(
        flags={
            replication_default.FACTOR: factor,
            replication_default.TRANSACTIONS_FACTOR: factor,
        }
    )
    for name in (replication_default.MIN_ISR, replication_default.TRANSACTIONS_MIN_ISR):
        assert replication_default.value(config, name, 9) == min_isr


def test_a_run_time_value_overrides_the_derived_default() -> None:
    name = replication_default.FACTOR
    config = NOTHING.with_dynamic({name: "1"}, {})
    assert replication_default.values(config, name, 3) == [
        SettingValue(name, "1", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        SettingValue(name, "3", ConfigSource.DEFAULT),
    ]
    assert replication_default.values(config, "node.id", 3) == config.values("node.id")


def test_the_log_line_has_the_values_and_their_origins() -> None:
    config = BrokerConfig.load(flags={"min.insync.replicas": "1"})
    text = replication_default.describe(config, 3)
    assert text == (
        "defaults for new topics: default.replication.factor=3, offsets.topic.replication.factor=3,"
        " transaction.state.log.replication.factor=3, transaction.state.log.min.isr=2"
        " (number of brokers: 3); min.insync.replicas=1 (command line: min.insync.replicas)"
    )
