"""AlterConfigs: replaces all settings of resources."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, boolean, int8, int16, int32, nullable_string, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.ALTER_CONFIGS, versions=(0, 2))
class AlterConfigsRequest(Message):
    @struct
    class Resource:
        @struct
        class Config:
            name: str = string()
            value: str | None = nullable_string()

        resource_type: int = int8()
        resource_name: str = string()
        configs: list[Config] = array(Config)

    resources: list[Resource] = array(Resource)
    validate_only: bool = boolean()


@message(ApiKey.ALTER_CONFIGS, versions=(0, 2))
class AlterConfigsResponse(Message):
    @struct
    class Resource:
        error_code: int = int16()
        error_message: str | None = nullable_string()
        resource_type: int = int8()
        resource_name: str = string()

    throttle_time_ms: int = int32()
    responses: list[Resource] = array(Resource)
