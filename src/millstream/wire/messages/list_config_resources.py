"""ListConfigResources: the resources that have configs.

Version 0 lists client metrics only. From version 1 a client may name resource types; none means all
(KIP-1142).
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int8, int8_array, int16, int32, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1))
class ListConfigResourcesRequest(Message):
    resource_types: list[int] = int8_array(since=1)


@message(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1))
class ListConfigResourcesResponse(Message):
    @struct
    class ConfigResource:
        resource_name: str = string()
        resource_type: int = int8(since=1, ignorable=True, default=16)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)
