"""IncrementalAlterConfigs: versions 0 and 1.

Sets or deletes single overrides of a topic, a broker, a group or a client metrics subscription, or
appends to and subtracts from lists. Other overrides stay. Also sets the levels of this broker's
loggers.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.audit import change
from millstream.broker.config import logger_resource, resource
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry
from millstream.broker.handlers.alter_configs import ACCESS, rejected_rows
from millstream.metadata.config_change import ConfigChange, ConfigOperation, incremental
from millstream.metadata.topic_change import Edit
from millstream.model.acl import Operation
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_Row = IncrementalAlterConfigsResponse.Resource


async def handle(
    request: IncrementalAlterConfigsRequest, context: Context
) -> IncrementalAlterConfigsResponse:
    rows = []
    for wanted in request.resources:
        row = _Row(resource_type=wanted.resource_type, resource_name=wanted.resource_name)
        rows.append(row)
        try:
            resource.check_access(
                wanted.resource_type, wanted.resource_name, Operation.ALTER_CONFIGS, context
            )
            if wanted.resource_type == logger_resource.BROKER_LOGGER:
                logger_resource.alter(
                    wanted.resource_name,
                    wanted.configs,
                    context,
                    validate_only=request.validate_only,
                )
                continue
            await resource.alter(
                wanted.resource_type,
                wanted.resource_name,
                _edit(wanted),
                context,
                validate_only=request.validate_only,
            )
        except BrokerError as error:
            row.error_code, row.error_message = error.code, error.message
    return IncrementalAlterConfigsResponse(responses=rows)


def _error_response(
    request: IncrementalAlterConfigsRequest, context: Context, code: ErrorCode
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(responses=rejected_rows(_Row, request.resources, code))


API: Final = ApiEntry(
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    versions=(0, 1),
    handle=handle,
    audit=change.configs_altered,
    error_response=_error_response,
    access=ACCESS,
)


def _edit(wanted: IncrementalAlterConfigsRequest.Resource) -> Edit:
    changes: list[ConfigChange] = []
    for config in wanted.configs:
        try:
            operation = ConfigOperation(config.config_operation)
        except ValueError as error:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, f"there is no operation {config.config_operation}"
            ) from error
        changes.append(ConfigChange(config.name, operation, config.value))
    return incremental(changes, resource.definitions_of(wanted.resource_type))
