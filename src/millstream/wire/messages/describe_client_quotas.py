"""DescribeClientQuotas: the quotas of the entities that match a filter (KIP-546).

`match_type`: 0 the name in `match`, 1 the default of the type, 2 any name and the default.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    nullable_array,
    nullable_string,
    string,
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1))
class DescribeClientQuotasRequest(Message):
    @struct
    class Component:
        entity_type: str = string()
        match_type: int = int8()
        match: str | None = nullable_string()

    components: list[Component] = array(Component)
    strict: bool = boolean()


@message(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1))
class DescribeClientQuotasResponse(Message):
    @struct
    class Entry:
        @struct
        class Entity:
            entity_type: str = string()
            entity_name: str | None = nullable_string()

        @struct
        class Value:
            key: str = string()
            value: float = float64()

        entity: list[Entity] = array(Entity)
        values: list[Value] = array(Value)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    entries: list[Entry] | None = nullable_array(Entry)
