"""Client metrics subscriptions as config resources (type 16): described and altered.

A subscription exists while it has overrides. As in Kafka, one that does not exist is described with
the defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millstream.broker.context import Context
from millstream.broker.telemetry.subscription import check_name, parse_list, parse_subscription
from millstream.metadata.cluster_record import NO_CONFIGS, Configs
from millstream.metadata.topic_change import Edit
from millstream.model.client_metrics_config import definitions
from millstream.model.definition import ConfigSource, ConfigType
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)

CLIENT_METRICS: Final = 16

_Config = DescribeConfigsResponse.Result.Config


def describe(
    wanted: DescribeConfigsRequest.Resource, request: DescribeConfigsRequest, context: Context
) -> Iterator[_Config]:
    """Return all settings of a subscription, or the requested ones."""
    if not wanted.resource_name:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty"
        )
    configs = _present(wanted.resource_name, context)
    keys = wanted.configuration_keys
    for definition in definitions.values():
        name = definition.name
        if keys and name not in keys:
            continue
        config = _Config(
            name=name,
            value=definition.format(definition.default),
            config_source=ConfigSource.DEFAULT,
            config_type=definition.kind,
            documentation=definition.doc if request.include_documentation else None,
        )
        if name in configs:
            config.value = _shown(name, configs)
            config.config_source = ConfigSource.DYNAMIC_CLIENT_METRICS
            if request.include_synonyms:
                config.synonyms = [
                    _Config.Synonym(name=name, value=config.value, source=config.config_source)
                ]
        yield config


async def alter(name: str, edit: Edit, context: Context, *, validate_only: bool) -> None:
    """Alter a subscription, for all brokers. Raises BrokerError or MetadataStoreError."""
    check_name(name)

    def checked(present: Configs) -> Configs:
        changed = edit(present)
        parse_subscription(name, changed)
        return changed

    if validate_only:
        checked(_present(name, context))
    else:
        await context.services.catalog.alter_client_metrics_configs(name, checked)


def _present(name: str, context: Context) -> Configs:
    return context.services.catalog.image.client_metrics.get(name, NO_CONFIGS)


def _shown(name: str, configs: Configs) -> str:
    if definitions[name].kind is ConfigType.LIST:
        return ",".join(parse_list(name, configs))
    return configs[name].strip()
