"""Reads and changes quotas through a broker, and formats them. Its errors are sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from millstream.cli.support.failure import CommandError, ExitCode
from millstream.cli.support.quantity import ByteRate
from millstream.model.error import ErrorCode
from millstream.protocol.cluster_client import ClusterClient
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from millstream.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

#: Names by entity type; None is the default of the type.
Entity: TypeAlias = Mapping[str, str | None]

#: The quotas by the names of their options.
OPTIONS: Final = {
    "--produce": "producer_byte_rate",
    "--fetch": "consumer_byte_rate",
    "--request-percentage": "request_percentage",
    "--mutations": "controller_mutation_rate",
    "--connections": "connection_creation_rate",
}
_BYTE_RATES: Final = ("producer_byte_rate", "consumer_byte_rate")
_EXACT, _DEFAULT = 0, 1
_Component = DescribeClientQuotasRequest.Component
_Entry = AlterClientQuotasRequest.Entry


def find_quotas(cluster: ClusterClient, entity: Entity) -> list[tuple[Entity, dict[str, float]]]:
    """Return the quotas of the entities that have all parts of `entity`, in alphabetical order."""
    components = [
        _Component(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in entity.items()
    ]
    response = cluster.any_connection().call(
        DescribeClientQuotasRequest(components=components), DescribeClientQuotasResponse
    )
    if response.error_code:
        raise _failure(response.error_code, response.error_message)
    found: list[tuple[Entity, dict[str, float]]] = [
        (
            {each.entity_type: each.entity_name for each in row.entity},
            {each.key: each.value for each in row.values},
        )
        for row in response.entries or ()
    ]
    return sorted(found, key=lambda each: entity_text(each[0]))


def alter_quotas(
    cluster: ClusterClient,
    entity: Entity,
    changes: Mapping[str, float | None],
    *,
    is_dry: bool = False,
) -> None:
    """Set quotas of an entity; None removes a quota."""
    entry = _Entry(
        entity=[_Entry.Entity(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            _Entry.Op(key=key, value=value or 0.0, remove=value is None)
            for key, value in changes.items()
        ],
    )
    response = cluster.any_connection().call(
        AlterClientQuotasRequest(entries=[entry], validate_only=is_dry), AlterClientQuotasResponse
    )
    for row in response.entries:
        if row.error_code:
            raise _failure(row.error_code, row.error_message)


def entity_text(entity: Entity) -> str:
    """Return an entity as `user alice, client-id default`."""
    order = ("user", "client-id", "ip")
    kinds: Iterable[str] = sorted(entity, key=lambda kind: order.index(kind))
    return ", ".join(
        f"{kind} (default)" if entity[kind] is None else f"{kind} {entity[kind]}" for kind in kinds
    )


def quota_text(name: str, value: float) -> str:
    """Return the value of a quota with its unit."""
    if name in _BYTE_RATES:
        return str(ByteRate(value))
    return f"{value:g}%" if name == "request_percentage" else f"{value:g}/s"


def _failure(code: int, message: str | None) -> CommandError:
    reason = (message or ErrorCode(code).name).rstrip(".")
    return CommandError(ExitCode.FAILED, f"the broker rejected the request: {reason}.")
