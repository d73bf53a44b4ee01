"""Config resources, which DescribeConfigs, AlterConfigs and IncrementalAlterConfigs operate on.

A resource is a topic (type 2), a broker (type 4; the empty name is the default for all brokers), a
client metrics subscription (type 16, in `client_metrics_resource`) or a group (type 32, which need
not exist). The loggers of a broker (type 8) are in `logger_resource`: their levels are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from millstream.broker.config import client_metrics_resource, group_override, replication_default
from millstream.broker.config.broker_config import ConfigError, SettingValue
from millstream.broker.config.broker_config import definitions as broker_definitions
from millstream.broker.config.client_metrics_resource import CLIENT_METRICS
from millstream.broker.config.listener_address import format_endpoint
from millstream.broker.config.logger_resource import BROKER_LOGGER
from millstream.broker.context import Context
from millstream.controller import decommission
from millstream.metadata.cluster_record import NO_CONFIGS, Configs, TopicRecord
from millstream.metadata.min_isr import default_min_isr
from millstream.metadata.store.port import MetadataStoreError
from millstream.metadata.topic_change import Edit, find_topic
from millstream.model.acl import Operation, ResourceType
from millstream.model.config import definitions as topic_definitions
from millstream.model.definition import ConfigSource, Definition
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.group_config import definitions as group_definitions

TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32
#: Resources whose configs belong to the cluster.
_OF_CLUSTER: Final = (BROKER, BROKER_LOGGER, CLIENT_METRICS)

_DEFINITIONS: Final = {
    TOPIC: topic_definitions,
    BROKER: broker_definitions,
    # Empty: like Kafka, APPEND and SUBTRACT are rejected for lists of a subscription.
    CLIENT_METRICS: {},
    GROUP: group_definitions,
}


def check_access(resource_type: int, name: str, operation: Operation, context: Context) -> None:
    """Raise the error of the resource type if the client may not do this to the configs of a
    resource. Brokers, their loggers and client metrics belong to the cluster. Raises
    INVALID_REQUEST for other types of resources, and for configs of another broker."""
    if resource_type == TOPIC:
        context.require(operation, ResourceType.TOPIC, name)
    elif resource_type == GROUP:
        context.require(operation, ResourceType.GROUP, name)
    elif resource_type in _OF_CLUSTER:
        if resource_type == BROKER and operation is Operation.ALTER_CONFIGS:
            broker_id(name, context)
        context.require_cluster(operation)
    else:
        raise unknown_type(resource_type)


def definitions_of(resource_type: int) -> Mapping[str, Definition]:
    """Return the settings of a resource type."""
    found = _DEFINITIONS.get(resource_type)
    if found is None:
        raise unknown_type(resource_type)
    return found


def broker_id(name: str, context: Context) -> int | None:
    """Return the broker id of a resource name; None is the default for all brokers."""
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
    """Return the overrides of a group. Raises INVALID_REQUEST for the empty name: groups have no
    common default."""
    if not name:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a group's name can't be empty")
    return context.services.catalog.image.group_configs.get(name, NO_CONFIGS)


class Description(NamedTuple):
    """One setting of a resource, as DescribeConfigs shows it."""

    definition: Definition
    #: The value in force.
    text: str | None
    #: The value in each layer, highest precedence first; empty if only synonyms have values.
    layers: list[SettingValue]

    @property
    def source(self) -> ConfigSource:
        return self.layers[0].source if self.layers else ConfigSource.DEFAULT


def describe_topic(topic: TopicRecord, definition: Definition, context: Context) -> Description:
    """Describe a topic's setting. Its layers are the override, then the layers of the broker."""
    services, name = context.services, definition.name
    layers: list[SettingValue] = []
    if definition.synonyms:
        layers = services.config.values(definition.synonyms[0].name)
    default = services.catalog.topic_defaults.text(name)
    if name == replication_default.MIN_ISR:
        derived = str(default_min_isr(topic))
        layers.append(SettingValue(name, derived, ConfigSource.DEFAULT))
        default = layers[0].text
    override = topic.configs.get(name)
    if override is None:
        return Description(definition, default, layers)
    own = SettingValue(name, override, ConfigSource.DYNAMIC_TOPIC)
    return Description(definition, definition.normalize(override), [own, *layers])


def describe_group(overrides: Configs, definition: Definition, context: Context) -> Description:
    layers = group_override.layers(overrides, definition.name, context.services.config)
    return Description(definition, layers[0].text, layers)


def describe_broker(definition: Definition, context: Context) -> Description:
    """Describe a setting of this broker. `advertised.listeners` is described as clients see it,
    even if it is not set and derived from the listeners."""
    services, record = context.services, context.services.record
    layers = replication_default.values(
        services.config, definition.name, services.topics.size.count
    )
    text = None
    if layers and layers[0].text is not None:
        text = definition.normalize(layers[0].text)
    if definition.name == "advertised.listeners" and record is not None:
        text = ",".join(map(format_endpoint, record.endpoints))
    return Description(definition, text, layers)


async def alter(
    resource_type: int, name: str, edit: Edit, context: Context, *, validate_only: bool
) -> None:
    """Alter the overrides of one resource. Raises BrokerError."""
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
    except MetadataStoreError as error:
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
    """Return `edit` with a check that a broker can run with the result."""

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
            # Like Kafka, which has INVALID_CONFIG for topics and groups only.
            raise BrokerError(ErrorCode.INVALID_REQUEST, str(error)) from error
        return changed

    return checked


def _check_decommissioned(present: Configs, changed: Configs, context: Context) -> None:
    wanted = decommission.named(changed)
    if not wanted <= decommission.named(present):
        decommission.check(context.services.catalog.image, wanted)
