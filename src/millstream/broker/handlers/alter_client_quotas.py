"""AlterClientQuotas: versions 0 and 1.

Sets and removes quotas of users, client ids and addresses. Each entity is changed as a whole or not
at all. A host name instead of an address is rejected; Kafka would resolve it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import failure_message
from millstream.metadata.security_record import (
    QuotaEntity,
    decode_quotas,
    encode_quotas,
    quota_key,
)
from millstream.metadata.store.port import MetadataStoreError
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.security.quota.quota_type import check_quota, make_entity
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)

_Entry = AlterClientQuotasRequest.Entry
_Row = AlterClientQuotasResponse.Entry


async def handle(request: AlterClientQuotasRequest, context: Context) -> AlterClientQuotasResponse:
    context.require_cluster(Operation.ALTER_CONFIGS)
    rows: list[_Row] = []
    seen: set[QuotaEntity] = set()
    for entry in request.entries:
        row = _row(entry)
        rows.append(row)
        try:
            entity, changes = _parse(entry)
            if entity in seen:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "the entity is named more than once")
            seen.add(entity)
            if not request.validate_only:
                await _alter(entity, changes, context)
        except BrokerError as error:
            row.error_code, row.error_message = error.code, error.message
    return AlterClientQuotasResponse(entries=rows)


def _error_response(
    request: AlterClientQuotasRequest, context: Context, code: ErrorCode
) -> AlterClientQuotasResponse:
    rows = [_row(entry) for entry in request.entries]
    for row in rows:
        row.error_code, row.error_message = code, failure_message(code)
    return AlterClientQuotasResponse(entries=rows)


API: Final = ApiEntry(
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    versions=(0, 1),
    handle=handle,
    audit=change.quotas_altered,
    error_response=_error_response,
    access=(Right(Operation.ALTER_CONFIGS, ResourceType.CLUSTER),),
)


def _row(entry: _Entry) -> _Row:
    return _Row(
        entity=[
            _Row.Entity(entity_type=each.entity_type, entity_name=each.entity_name)
            for each in entry.entity
        ]
    )


def _parse(entry: _Entry) -> tuple[QuotaEntity, dict[str, float | None]]:
    """Return the entity and its changes; None removes a quota. Raises INVALID_REQUEST."""
    changes: dict[str, float | None] = {}
    try:
        entity = make_entity((each.entity_type, each.entity_name) for each in entry.entity)
        for op in entry.ops:
            if op.key in changes:
                raise ValueError(f"quota {op.key[:50]} is named more than once")
            changes[op.key] = None if op.remove else op.value
            check_quota(entity, op.key, changes[op.key])
    except ValueError as error:
        raise BrokerError(ErrorCode.INVALID_REQUEST, str(error)) from error
    return entity, changes


async def _alter(
    entity: QuotaEntity, changes: Mapping[str, float | None], context: Context
) -> None:
    def edit(value: bytes | None) -> bytes | None:
        quotas = {} if value is None else dict(decode_quotas(value))
        for key, number in changes.items():
            if number is None:
                quotas.pop(key, None)
            else:
                quotas[key] = number
        return encode_quotas(quotas) if quotas else None

    try:
        await context.services.catalog.alter_key(quota_key(entity), edit)
    except MetadataStoreError as error:
        raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
