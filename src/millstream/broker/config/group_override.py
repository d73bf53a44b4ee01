"""Overrides of groups: described, checked, and turned into the settings of the groups.

A group may override the settings in `model/group_config`, within limits that the broker's settings
give. If the limits have become narrower since, the nearest allowed value is in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from millstream.broker.config.broker_config import BrokerConfig, SettingValue
from millstream.groups.consumer.consumer_settings import ConsumerGroupSettings
from millstream.groups.group_settings import GroupSettings
from millstream.metadata.cluster_record import Configs
from millstream.model.definition import ConfigSource
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.group_config import definitions


def layers(overrides: Configs, name: str, config: BrokerConfig) -> list[SettingValue]:
    """Return the value of a group setting in every layer, the one in force first."""
    found: list[SettingValue] = []
    override = overrides.get(name)
    if override is not None:
        found.append(SettingValue(name, override, ConfigSource.DYNAMIC_GROUP))
    for synonym in definitions[name].synonyms:
        found += config.values(synonym.name)
    return found


def check(overrides: Configs, config: BrokerConfig) -> None:
    """Raise INVALID_CONFIG unless a group may have these overrides."""
    values: dict[str, int] = {}
    for name, text in overrides.items():
        definition = definitions.get(name)
        if definition is None:
            raise _invalid(f"groups have no setting {name[:249]!r}: {', '.join(definitions)}")
        try:
            values[name] = definition.parse(text)
        except ValueError as error:
            raise _invalid(f"{name} = {text!r} is not allowed: expected {error}") from error
        low, high = _bounds(name, config)
        if not low <= values[name] <= high:
            raise _invalid(f"{name} = {text} is not allowed: this broker takes {low} to {high}")
    in_force = settings(overrides, config, ConsumerGroupSettings())
    if in_force.session_timeout_ms <= in_force.heartbeat_interval_ms:
        raise _invalid(
            f"consumer.session.timeout.ms, {in_force.session_timeout_ms}, must be greater than"
            f" consumer.heartbeat.interval.ms, {in_force.heartbeat_interval_ms}"
        )


def settings(
    overrides: Configs, config: BrokerConfig, default: ConsumerGroupSettings
) -> ConsumerGroupSettings:
    """Return the settings of a group: `default`, changed by these overrides."""
    interval: dict[str, Any] = {}
    if "consumer.assignment.interval.ms" in overrides:
        # By default only large groups wait. A group with an interval of its own always does.
        interval["large_group_size"] = 0
    return replace(
        default,
        session_timeout_ms=_in_force("consumer.session.timeout.ms", overrides, config),
        heartbeat_interval_ms=_in_force("consumer.heartbeat.interval.ms", overrides, config),
        assignment_interval_ms=_in_force("consumer.assignment.interval.ms", overrides, config),
        **interval,
    )


def changes(
    configs: Mapping[str, Configs],
    group_ids: Iterable[str],
    config: BrokerConfig,
    groups: GroupSettings,
) -> dict[str, ConsumerGroupSettings | None]:
    """Return the settings of each of these groups; None if the group has no overrides."""
    found: dict[str, ConsumerGroupSettings | None] = {}
    for group_id in group_ids:
        own = configs.get(group_id)
        found[group_id] = None if own is None else settings(own, config, groups.consumer)
    return found


def _in_force(name: str, overrides: Configs, config: BrokerConfig) -> int:
    text = overrides.get(name)
    if text is None:
        return int(config.value(f"group.{name}"))
    low, high = _bounds(name, config)
    return int(min(max(definitions[name].parse(text), low), high))


def _bounds(name: str, config: BrokerConfig) -> tuple[int, int]:
    protocol, setting = name.split(".", 1)
    return (
        config.value(f"group.{protocol}.min.{setting}"),
        config.value(f"group.{protocol}.max.{setting}"),
    )


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_CONFIG, message)
