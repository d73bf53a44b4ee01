"""Config resources: what DescribeConfigs, AlterConfigs and IncrementalAlterConfigs speak of.

A resource is a topic (type 2), a broker (type 4; the empty name is the default for all brokers), a
subscription to client metrics (type 16, in `client_metrics_resource`) or a group (type 32; it need
not exist). A broker's loggers (type 8) are in `logger_resource`: their levels are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from millstream.broker import client_metrics_resource, group_override
from millstream.broker.client_metrics_resource import CLIENT_METRICS
from millstream.broker.config import BrokerConfig, ConfigError, SettingValue
from millstream.broker.config import definitions as broker_definitions
from millstream.broker.context import Context
from millstream.controller import decommission
from millstream.metadata.record import NO_CONFIGS, Configs, TopicRecord
from millstream.metadata.store import StoreError
from millstream.metadata.topic_change import Edit, find_topic
from millstream.model.config import definitions as topic_definitions
from millstream.model.definition import ConfigSource, Definition
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.group_config import definitions as group_definitions

TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32

_DEFINITIONS: Final = {
    TOPIC: topic_definitions,
    BROKER: broker_definitions,
    # None: like Kafka, APPEND and SUBTRACT are rejected for lists of a subscription.
    CLIENT_METRICS: {},
    GROUP: group_definitions,
}


def definitions_of(resource_type: int) -> Mapping[str, Definition]:
    """The settings that resources of a type have."""
    found = _DEFINITIONS.get(resource_type)
    if found is None:
        raise unknown_type(resource_type)
    return found


def broker_id(name: str, context: Context) -> int | None:
    """The broker that a resource name means; None is the default for all of them."""
    if not name:
        return None
    if name != str(context.services.config.node_id):
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {context.services.config.node_id}; ask broker {name!r} itself",
        )
    return context.services.config.node_id


def unknown_type(resource_type: int) -> BrokerError:
    return BrokerError(
        ErrorCode.INVALID_REQUEST,
        f"resources of type {resource_type} have no configs here: "
        f"expected {TOPIC} (topic), {BROKER} (broker), {CLIENT_METRICS} (client metrics) or"
        f" {GROUP} (group)",
    )


def group_overrides(name: str, context: Context) -> Configs:
    """What a group sets for itself; INVALID_REQUEST for the empty name, as groups share nothing."""
    if not name:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a group's name can't be empty")
    return context.services.catalog.image.group_configs.get(name, NO_CONFIGS)


def topic_values(topic: TopicRecord, name: str, config: BrokerConfig) -> list[SettingValue]:
    """Every layer's value of a topic setting, the one in force first."""
    found: list[SettingValue] = []
    definition = topic_definitions[name]
    override = topic.configs.get(name)
    if override is not None:
        found.append(SettingValue(name, override, ConfigSource.DYNAMIC_TOPIC))
    for synonym in definition.synonyms:
        values = config.values(synonym.name)
        found.extend(value for value in values if value.source != ConfigSource.DEFAULT)
    default = definition.format(definition.default)
    default_name = definition.synonyms[-1].name if definition.synonyms else name
    found.append(SettingValue(default_name, default, ConfigSource.DEFAULT))
    return found


async def alter(
    resource_type: int, name: str, edit: Edit, context: Context, *, validate_only: bool
) -> None:
    """Change the overrides of one resource; raises BrokerError."""
    try:
        if resource_type == TOPIC:
            await _alter_topic(name, edit, context, validate_only=validate_only)
        elif resource_type == BROKER:
            await _alter_broker(broker_id(name, context), edit, context, validate_only)
        elif resource_type == GROUP:
            await _alter_group(name, edit, context, validate_only)
        elif resource_type == CLIENT_METRICS:
            await client_metrics_resource.alter(name, edit, context, validate_only=validate_only)
        else:
            raise unknown_type(resource_type)
    except StoreError as error:
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


async def _alter_topic(name: str, edit: Edit, context: Context, *, validate_only: bool) -> None:
    catalog = context.services.catalog
    find_topic(catalog.image, name)
    (result,) = await catalog.alter_topic_configs([(name, edit)], validate_only=validate_only)
    if isinstance(result, BrokerError):
        raise result


async def _alter_broker(
    node_id: int | None, edit: Edit, context: Context, validate_only: bool
) -> None:
    catalog = context.services.catalog
    checked = _validated(node_id, edit, context)
    if validate_only:
        image = catalog.image
        present = image.default_broker_configs
        if node_id is not None:
            present = image.broker_configs.get(node_id, present.__class__())
        checked(present)
        return
    await catalog.alter_broker_configs(node_id, checked)


async def _alter_group(name: str, edit: Edit, context: Context, validate_only: bool) -> None:
    def checked(present: Configs) -> Configs:
        changed = edit(present)
        group_override.check(changed, context.services.config)
        return changed

    present = group_overrides(name, context)
    if validate_only:
        checked(present)
    else:
        await context.services.catalog.alter_group_configs(name, checked)


def _validated(node_id: int | None, edit: Edit, context: Context) -> Callable[[Configs], Configs]:
    """`edit`, refusing a result that a broker could not run with."""

    def checked(present: Configs) -> Configs:
        changed = edit(present)
        image = context.services.catalog.image
        try:
            if node_id is None:
                context.services.config.with_dynamic(changed, {})
                _check_decommissioned(present, changed, context)
            elif decommission.SETTING in changed:
                raise BrokerError(
                    ErrorCode.INVALID_CONFIG,
                    f"{decommission.SETTING} is set for all brokers, not for one",
                )
            else:
                context.services.config.with_dynamic(image.default_broker_configs, changed)
        except ConfigError as error:
            raise BrokerError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return changed

    return checked


def _check_decommissioned(present: Configs, changed: Configs, context: Context) -> None:
    wanted = decommission.named(changed)
    if not wanted <= decommission.named(present):
        decommission.check(context.services.catalog.image, wanted)
