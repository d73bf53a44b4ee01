"""AlterConfigs: versions 0 to 2.

Replaces all overrides of a topic, a broker, a group or a client metrics subscription. The access
and the rows of a rejected request are those of IncrementalAlterConfigs too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from millstream.broker.audit import change
from millstream.broker.config import resource
from millstream.broker.config.logger_resource import BROKER_LOGGER
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import error_rows, failure_message
from millstream.metadata.config_change import replace_all
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse

T = TypeVar("T")

#: The access of the two APIs that alter configs.
ACCESS: Final = (
    Right(Operation.ALTER_CONFIGS, ResourceType.TOPIC, "for a topic"),
    Right(Operation.ALTER_CONFIGS, ResourceType.GROUP, "for a group"),
    Right(Operation.ALTER_CONFIGS, ResourceType.CLUSTER, "for other resources"),
)

_Row = AlterConfigsResponse.Resource


async def handle(request: AlterConfigsRequest, context: Context) -> AlterConfigsResponse:
    rows = []
    for wanted in request.resources:
        row = _Row(resource_type=wanted.resource_type, resource_name=wanted.resource_name)
        rows.append(row)
        try:
            if wanted.resource_type == BROKER_LOGGER:
                raise resource.unknown_type(BROKER_LOGGER)
            resource.check_access(
                wanted.resource_type, wanted.resource_name, Operation.ALTER_CONFIGS, context
            )
            await resource.alter(
                wanted.resource_type,
                wanted.resource_name,
                replace_all(_overrides(wanted)),
                context,
                validate_only=request.validate_only,
            )
        except BrokerError as error:
            row.error_code, row.error_message = error.code, error.message
    return AlterConfigsResponse(responses=rows)


def _error_response(
    request: AlterConfigsRequest, context: Context, code: ErrorCode
) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=rejected_rows(_Row, request.resources, code))


API: Final = ApiEntry(
    AlterConfigsRequest,
    AlterConfigsResponse,
    versions=(0, 2),
    handle=handle,
    audit=change.configs_altered,
    error_response=_error_response,
    access=ACCESS,
)


def rejected_rows(row: Callable[..., T], resources: Iterable[object], code: ErrorCode) -> list[T]:
    """Return a row with the error for each resource of a request."""
    return error_rows(
        row,
        resources,
        ["resource_type", "resource_name"],
        error_code=code,
        error_message=failure_message(code),
    )


def _overrides(wanted: AlterConfigsRequest.Resource) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for config in wanted.configs:
        if config.value is None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{config.name} needs a value, not null")
        if config.name in overrides:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{config.name} is given twice")
        overrides[config.name] = config.value
    return overrides
