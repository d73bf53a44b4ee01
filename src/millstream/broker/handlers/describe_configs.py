"""DescribeConfigs: versions 1 to 4.

Topics, groups, this broker and its loggers, and subscriptions to client metrics: each setting with
its value in force, where that comes from, the other values it stands before (synonyms) and, from
version 3, its type and a sentence about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from millstream.broker import client_metrics_resource, group_override, logger_resource, resource
from millstream.broker.config import SettingValue
from millstream.broker.context import Context
from millstream.metadata.record import Configs
from millstream.metadata.topic_change import find_topic
from millstream.model.definition import ConfigSource, Definition, Scope
from millstream.model.error import BrokerError
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)

_Result = DescribeConfigsResponse.Result

#: Resources that have no layers of values.
_PLAIN: Final = {
    client_metrics_resource.CLIENT_METRICS: client_metrics_resource.describe,
    logger_resource.BROKER_LOGGER: logger_resource.describe,
}


def handle(request: DescribeConfigsRequest, context: Context) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    # Once each: a small request must not be able to ask for an endless answer.
    resources = {(each.resource_type, each.resource_name): each for each in request.resources}
    for wanted in resources.values():
        result = _Result(resource_type=wanted.resource_type, resource_name=wanted.resource_name)
        response.results.append(result)
        try:
            if (describe := _PLAIN.get(wanted.resource_type)) is not None:
                result.configs = list(describe(wanted, request, context))
                continue
            settings = _settings(wanted, context)
            result.configs = [
                _describe(
                    definition, values, request, is_broker=wanted.resource_type == resource.BROKER
                )
                for definition, values in settings
            ]
        except BrokerError as error:
            result.error_code, result.error_message = error.code, error.message
            result.configs = []
    return response


def _settings(
    wanted: DescribeConfigsRequest.Resource, context: Context
) -> Iterator[tuple[Definition, list[SettingValue]]]:
    services = context.services
    chosen = _chosen(resource.definitions_of(wanted.resource_type), wanted)
    values: Callable[[str], list[SettingValue]]
    if wanted.resource_type == resource.TOPIC:
        topic = find_topic(services.catalog.image, wanted.resource_name)
        values = partial(resource.topic_values, topic, config=services.config)
    elif wanted.resource_type == resource.GROUP:
        overrides = resource.group_overrides(wanted.resource_name, context)
        values = partial(group_override.layers, overrides, config=services.config)
    elif resource.broker_id(wanted.resource_name, context) is not None:
        values = services.config.values
    else:
        return _default_settings(chosen, services.catalog.image.default_broker_configs)
    return ((definition, values(definition.name)) for definition in chosen)


def _default_settings(
    chosen: Iterator[Definition], defaults: Configs
) -> Iterator[tuple[Definition, list[SettingValue]]]:
    """Of the default for all brokers only what was set is shown."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    return (
        (definition, [SettingValue(definition.name, defaults[definition.name], source)])
        for definition in chosen
        if definition.name in defaults
    )


def _chosen(
    definitions: Mapping[str, Definition], wanted: DescribeConfigsRequest.Resource
) -> Iterator[Definition]:
    keys = wanted.configuration_keys
    names = definitions if not keys else [name for name in keys if name in definitions]
    return (definitions[name] for name in names)


def _describe(
    definition: Definition,
    values: list[SettingValue],
    request: DescribeConfigsRequest,
    *,
    is_broker: bool,
) -> _Result.Config:
    in_force = values[0] if values else SettingValue(definition.name, None, ConfigSource.DEFAULT)
    config = _Result.Config(
        name=definition.name,
        value=in_force.text,
        read_only=is_broker and definition.scope is Scope.READ_ONLY,
        config_source=in_force.source,
        config_type=definition.kind,
        documentation=definition.doc if request.include_documentation else None,
    )
    if request.include_synonyms:
        config.synonyms = [
            _Result.Config.Synonym(name=name, value=text, source=source)
            for name, text, source in values
        ]
    return config
