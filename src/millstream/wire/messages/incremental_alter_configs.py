"""IncrementalAlterConfigs: changes single settings of resources and leaves the others.

`config_operation`: 0 set, 1 delete, 2 append to a list, 3 subtract from a list.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, boolean, int8, int16, int32, nullable_string, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1))
class IncrementalAlterConfigsRequest(Message):
    @struct
    class Resource:
        @struct
        class Config:
            name: str = string()
            config_operation: int = int8()
            value: str | None = nullable_string()

        resource_type: int = int8()
        resource_name: str = string()
        configs: list[Config] = array(Config)

    resources: list[Resource] = array(Resource)
    validate_only: bool = boolean()


@message(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1))
class IncrementalAlterConfigsResponse(Message):
    @struct
    class Resource:
        error_code: int = int16()
        error_message: str | None = nullable_string()
        resource_type: int = int8()
        resource_name: str = string()

    throttle_time_ms: int = int32()
    responses: list[Resource] = array(Resource)
