"""AlterClientQuotas: sets and removes quotas of entities (KIP-546)."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    boolean,
    float64,
    int16,
    int32,
    nullable_string,
    string,
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.ALTER_CLIENT_QUOTAS, versions=(0, 1))
class AlterClientQuotasRequest(Message):
    @struct
    class Entry:
        @struct
        class Entity:
            entity_type: str = string()
            entity_name: str | None = nullable_string()

        @struct
        class Op:
            key: str = string()
            value: float = float64()
            remove: bool = boolean()

        entity: list[Entity] = array(Entity)
        ops: list[Op] = array(Op)

    entries: list[Entry] = array(Entry)
    validate_only: bool = boolean()


@message(ApiKey.ALTER_CLIENT_QUOTAS, versions=(0, 1))
class AlterClientQuotasResponse(Message):
    @struct
    class Entry:
        @struct
        class Entity:
            entity_type: str = string()
            entity_name: str | None = nullable_string()

        error_code: int = int16()
        error_message: str | None = nullable_string()
        entity: list[Entity] = array(Entity)

    throttle_time_ms: int = int32()
    entries: list[Entry] = array(Entry)
