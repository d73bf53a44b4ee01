"""DescribeClientQuotas: versions 0 and 1.

Returns the quotas of the entities that match every component of the filter. A strict filter matches
only entities with exactly its types. An address cannot be combined with other types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import failure_message
from millstream.metadata.security_record import QuotaEntity
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.security.quota.quota_type import ENTITY_TYPES, IP
from millstream.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_EXACT, _DEFAULT, _ANY = range(3)
_Entry = DescribeClientQuotasResponse.Entry
_Component = DescribeClientQuotasRequest.Component


def handle(request: DescribeClientQuotasRequest, context: Context) -> DescribeClientQuotasResponse:
    context.require_cluster(Operation.DESCRIBE_CONFIGS)
    try:
        filters = _filters(request)
    except BrokerError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message, entries=None
        )
    entries = [
        _Entry(
            entity=[_Entry.Entity(entity_type=kind, entity_name=name) for kind, name in entity],
            values=[_Entry.Value(key=key, value=value) for key, value in sorted(quotas.items())],
        )
        for entity, quotas in context.services.catalog.image.quotas.items()
        if _matches(entity, filters, is_strict=request.strict)
    ]
    return DescribeClientQuotasResponse(entries=entries)


def _error_response(
    request: DescribeClientQuotasRequest, context: Context, code: ErrorCode
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(
        error_code=code, error_message=failure_message(code), entries=None
    )


API: Final = ApiEntry(
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    versions=(0, 1),
    handle=handle,
    error_response=_error_response,
    access=(Right(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
)


def _filters(request: DescribeClientQuotasRequest) -> dict[str, _Component]:
    filters: dict[str, _Component] = {}
    for component in request.components:
        kind = component.entity_type
        if not kind:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in filters:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"Entity type {kind[:50]} cannot appear more than once in the filter.",
            )
        if kind not in ENTITY_TYPES:
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind[:50]}")
        if component.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}"
            )
        if (component.match is None) == (component.match_type == _EXACT):
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, "only an exact match has a name, and it needs one"
            )
        filters[kind] = component
    if IP in filters and len(filters) > 1:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, "an ip cannot be combined with a user or a client-id"
        )
    return filters


def _matches(entity: QuotaEntity, filters: Mapping[str, _Component], *, is_strict: bool) -> bool:
    names = dict(entity)
    if is_strict and names.keys() != filters.keys():
        return False
    for kind, component in filters.items():
        if kind not in names:
            return False
        if component.match_type != _ANY and names[kind] != component.match:
            return False
    return True
