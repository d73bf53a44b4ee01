"""DescribeConfigs: the settings of resources, and the source of each value.

`configuration_keys` of None means all keys of the resource.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    boolean,
    int8,
    int16,
    int32,
    nullable_string,
    nullable_string_array,
    string,
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DESCRIBE_CONFIGS, versions=(1, 4))
class DescribeConfigsRequest(Message):
    @struct
    class Resource:
        resource_type: int = int8()
        resource_name: str = string()
        configuration_keys: list[str] | None = nullable_string_array()

    resources: list[Resource] = array(Resource)
    include_synonyms: bool = boolean()
    include_documentation: bool = boolean(since=3)


@message(ApiKey.DESCRIBE_CONFIGS, versions=(1, 4))
class DescribeConfigsResponse(Message):
    @struct
    class Result:
        @struct
        class Config:
            @struct
            class Synonym:
                name: str = string()
                value: str | None = nullable_string()
                source: int = int8()

            name: str = string()
            value: str | None = nullable_string()
            read_only: bool = boolean()
            config_source: int = int8(default=-1)
            is_sensitive: bool = boolean()
            synonyms: list[Synonym] = array(Synonym)
            config_type: int = int8(since=3, ignorable=True)
            documentation: str | None = nullable_string(since=3, ignorable=True)

        error_code: int = int16()
        error_message: str | None = nullable_string()
        resource_type: int = int8()
        resource_name: str = string()
        configs: list[Config] = array(Config)

    throttle_time_ms: int = int32()
    results: list[Result] = array(Result)
