"""ListConfigResources: versions 0 and 1.

Lists topics, brokers (also as owners of loggers), client metrics subscriptions, and groups with
overrides, whether or not the group exists. Version 0 lists client metrics only. UNSUPPORTED_VERSION
for a resource type without configs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millstream.broker.config import resource
from millstream.broker.config.client_metrics_resource import CLIENT_METRICS
from millstream.broker.config.logger_resource import BROKER_LOGGER
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.metadata.image import ClusterImage
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_TYPES: Final = (resource.TOPIC, resource.BROKER, BROKER_LOGGER, CLIENT_METRICS, resource.GROUP)
_TYPES_SINCE: Final = 1


def handle(request: ListConfigResourcesRequest, context: Context) -> ListConfigResourcesResponse:
    context.require_cluster(Operation.DESCRIBE_CONFIGS)
    wanted: Iterable[int] = request.resource_types or _TYPES
    if context.version < _TYPES_SINCE:
        wanted = (CLIENT_METRICS,)
    # Each type once, however often the request names it.
    types = set(wanted)
    if not types <= set(_TYPES):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = context.services.catalog.image
    return ListConfigResourcesResponse(
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(types)
            for name in _names(kind, image)
        ]
    )


API: Final = ApiEntry(
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    versions=(0, 1),
    handle=handle,
    access=(Right(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
)


def _names(resource_type: int, image: ClusterImage) -> Iterable[str]:
    if resource_type == resource.TOPIC:
        return sorted(image.topics)
    if resource_type == resource.GROUP:
        return sorted(image.group_configs)
    if resource_type == CLIENT_METRICS:
        return sorted(image.client_metrics)
    return map(str, sorted(image.brokers))
