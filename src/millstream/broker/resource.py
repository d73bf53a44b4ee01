"""Config resources: what DescribeConfigs, AlterConfigs and IncrementalAlterConfigs speak of.

A resource is a topic (type 2) or a broker (type 4; the empty name is the default for all brokers).
Brokers' loggers, client metrics and groups have no configs here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.broker.config import BrokerConfig, ConfigError, SettingValue
from millstream.broker.context import Context
from millstream.metadata.record import Configs, TopicRecord
from millstream.metadata.store import StoreError
from millstream.metadata.topic_change import Edit, find_topic
from millstream.model.config import definitions as topic_definitions
from millstream.model.definition import ConfigSource
from millstream.model.error import BrokerError, ErrorCode

TOPIC: Final = 2
BROKER: Final = 4


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
        f"expected {TOPIC} (topic) or {BROKER} (broker)",
    )


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


def _validated(node_id: int | None, edit: Edit, context: Context) -> Callable[[Configs], Configs]:
    """`edit`, refusing a result that a broker could not run with."""

    def checked(present: Configs) -> Configs:
        changed = edit(present)
        image = context.services.catalog.image
        try:
            if node_id is None:
                context.services.config.with_dynamic(changed, {})
            else:
                context.services.config.with_dynamic(image.default_broker_configs, changed)
        except ConfigError as error:
            raise BrokerError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return changed

    return checked
