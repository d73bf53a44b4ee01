"""DescribeConfigs: versions 1 to 4.

Describes topics, groups, this broker and its loggers, and client metrics subscriptions: for each
setting the value in force, its source, the values of all layers (synonyms) and, from version 3, its
type and documentation. Names, values, types, synonyms and sources are those of Kafka 4.3;
`tests/conformance/config_difference.toml` lists the remaining differences and their reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from millstream.broker.config import client_metrics_resource, logger_resource, resource
from millstream.broker.config.broker_config import SettingValue
from millstream.broker.config.resource import Description
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.metadata.cluster_record import Configs
from millstream.metadata.topic_change import find_topic
from millstream.model.acl import Operation, ResourceType
from millstream.model.definition import ConfigScope, ConfigSource, Definition
from millstream.model.error import BrokerError
from millstream.model.topic import validate_topic_name
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)

_Result = DescribeConfigsResponse.Result

#: Resources whose settings have no layers.
_PLAIN: Final = {
    client_metrics_resource.CLIENT_METRICS: client_metrics_resource.describe,
    logger_resource.BROKER_LOGGER: logger_resource.describe,
}


def handle(request: DescribeConfigsRequest, context: Context) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    # Each resource once: a small request must not cause a huge response.
    resources = {(each.resource_type, each.resource_name): each for each in request.resources}
    for wanted in resources.values():
        result = _Result(resource_type=wanted.resource_type, resource_name=wanted.resource_name)
        response.results.append(result)
        is_broker = wanted.resource_type == resource.BROKER
        try:
            resource.check_access(
                wanted.resource_type, wanted.resource_name, Operation.DESCRIBE_CONFIGS, context
            )
            if (describe := _PLAIN.get(wanted.resource_type)) is not None:
                result.configs = list(describe(wanted, request, context))
            else:
                result.configs = [
                    _config(description, request, is_broker=is_broker)
                    for description in _descriptions(wanted, context)
                    if description.layers or not description.definition.is_shown_if_set
                ]
            result.error_message = ""
        except BrokerError as error:
            result.error_code, result.error_message = error.code, error.message
    return response


API: Final = ApiEntry(
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    versions=(1, 4),
    handle=handle,
    access=(
        Right(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "for a topic"),
        Right(Operation.DESCRIBE_CONFIGS, ResourceType.GROUP, "for a group"),
        Right(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, "for other resources"),
    ),
)


def _descriptions(
    wanted: DescribeConfigsRequest.Resource, context: Context
) -> Iterator[Description]:
    services = context.services
    chosen = _chosen(resource.definitions_of(wanted.resource_type), wanted)
    if wanted.resource_type == resource.TOPIC:
        validate_topic_name(wanted.resource_name)
        topic = find_topic(services.catalog.image, wanted.resource_name)
        return (resource.describe_topic(topic, definition, context) for definition in chosen)
    if wanted.resource_type == resource.GROUP:
        overrides = resource.group_overrides(wanted.resource_name, context)
        return (resource.describe_group(overrides, definition, context) for definition in chosen)
    if resource.broker_id(wanted.resource_name, context) is not None:
        return (resource.describe_broker(definition, context) for definition in chosen)
    return _defaults(chosen, services.catalog.image.default_broker_configs)


def _defaults(chosen: Iterator[Definition], defaults: Configs) -> Iterator[Description]:
    """Yield the settings that are set in the default for all brokers."""
    for definition in chosen:
        text = defaults.get(definition.name)
        if text is not None:
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER
            yield Description(definition, text, [SettingValue(definition.name, text, source)])


def _chosen(
    definitions: Mapping[str, Definition], wanted: DescribeConfigsRequest.Resource
) -> Iterator[Definition]:
    keys = wanted.configuration_keys
    names = definitions if not keys else [name for name in keys if name in definitions]
    return (definitions[name] for name in names)


def _config(
    description: Description, request: DescribeConfigsRequest, *, is_broker: bool
) -> _Result.Config:
    definition, text, layers = description
    is_sensitive = definition.is_sensitive
    config = _Result.Config(
        name=definition.name,
        value=None if is_sensitive else text,
        is_sensitive=is_sensitive,
        read_only=is_broker and definition.scope is ConfigScope.READ_ONLY,
        config_source=description.source,
        config_type=definition.shown_kind or definition.kind,
        documentation=definition.doc if request.include_documentation else None,
    )
    if request.include_synonyms:
        config.synonyms = [
            _Result.Config.Synonym(name=name, value=None if is_sensitive else text, source=source)
            for name, text, source in layers
        ]
    return config
