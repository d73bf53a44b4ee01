"""The settings for replicas whose defaults depend on the number of brokers.

    default.replication.factor                  replicas of topics
    min.insync.replicas                         replicas of a topic that must be in sync
    offsets.topic.replication.factor            replicas of the offsets topic
    transaction.state.log.replication.factor    replicas of the transactions topic
    transaction.state.log.min.isr               replicas of it that must be in sync

A value that is set takes precedence. The defaults follow the rules of `model/durability`, with the
present number of brokers. Kafka's defaults do not depend on that number: 1 and 1 for topics, with
which the loss of a broker loses data, and 3 and 2 for internal topics.

Here `min.insync.replicas` is the value for a topic with the default number of replicas. A topic
with another number of replicas derives its own value (`metadata/min_isr`).
"""

from __future__ import annotations

from typing import Final

from millstream.broker.config.broker_config import BrokerConfig, SettingValue
from millstream.model.definition import ConfigSource
from millstream.model.durability import default_min_isr, default_replicas

FACTOR: Final = "default.replication.factor"
MIN_ISR: Final = "min.insync.replicas"
OFFSETS_FACTOR: Final = "offsets.topic.replication.factor"
TRANSACTIONS_FACTOR: Final = "transaction.state.log.replication.factor"
TRANSACTIONS_MIN_ISR: Final = "transaction.state.log.min.isr"

#: By setting, the replication factor that its default depends on.
_MINIMUM_OF: Final = {MIN_ISR: FACTOR, TRANSACTIONS_MIN_ISR: TRANSACTIONS_FACTOR}
SETTINGS: Final = (FACTOR, MIN_ISR, OFFSETS_FACTOR, TRANSACTIONS_FACTOR, TRANSACTIONS_MIN_ISR)


def is_derived(config: BrokerConfig, name: str) -> bool:
    """Return whether a setting is one of these and is not set."""
    return name in SETTINGS and config.given(name) is None


def value(config: BrokerConfig, name: str, brokers: int) -> int:
    """Return the value in force of one of these settings in a cluster of `brokers`."""
    given = config.value(name)
    return derived(config, name, brokers) if given is None else int(given)


def derived(config: BrokerConfig, name: str, brokers: int) -> int:
    """Return the default of one of these settings in a cluster of `brokers`."""
    factor_name = _MINIMUM_OF.get(name)
    if factor_name is None:
        return default_replicas(brokers)
    return default_min_isr(value(config, factor_name, brokers))


def all_values(config: BrokerConfig, brokers: int) -> list[int]:
    """Return the values in force of all of these settings, in the order of SETTINGS."""
    return [value(config, name, brokers) for name in SETTINGS]


def values(config: BrokerConfig, name: str, brokers: int) -> list[SettingValue]:
    """Return the value of any broker setting in every layer, the one in force first."""
    found = config.values(name)
    if name in SETTINGS:
        text = str(derived(config, name, brokers))
        found.append(SettingValue(name, text, ConfigSource.DEFAULT))
    return found


def describe(config: BrokerConfig, brokers: int) -> str:
    """Return a log line with the values in force and their origins."""
    origins: dict[str, list[str]] = {}
    for name in SETTINGS:
        given = config.given(name)
        origin = f"(number of brokers: {brokers})" if given is None else f"({given.origin})"
        origins.setdefault(origin, []).append(f"{name}={value(config, name, brokers)}")
    parts = [f"{', '.join(found)} {origin}" for origin, found in origins.items()]
    return f"defaults for new topics: {'; '.join(parts)}"
