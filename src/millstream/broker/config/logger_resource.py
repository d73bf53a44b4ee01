"""The loggers of the broker as a config resource (type 8): levels described and set at run time.

The resource has the id of the broker as its name, and only that broker serves it. Each setting is a
logger and its value is a level, under Kafka's names; `root` is the root logger. The levels belong
to this process: they are not stored, and a restart resets them.

The loggers are Python's. A package with loggers below it is a logger too, so
`millstream.replication` sets the level of all its modules. A logger without a level has the level
of the nearest logger above it; DELETE restores that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from millstream.broker.context import Context
from millstream.metadata.config_change import ConfigOperation
from millstream.model.definition import ConfigSource
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest

BROKER_LOGGER: Final = 8
ROOT: Final = "root"

#: Python has no level below DEBUG; 5 is the usual number for TRACE.
LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}

_logger = logging.getLogger(__name__)
_Config = DescribeConfigsResponse.Result.Config
_Change = IncrementalAlterConfigsRequest.Resource.Config


def describe(
    wanted: DescribeConfigsRequest.Resource, request: DescribeConfigsRequest, context: Context
) -> Iterator[_Config]:
    """Return all loggers, or the requested ones, with their levels in force."""
    _check_broker(wanted.resource_name, context)
    keys = wanted.configuration_keys
    for name in _names():
        if not keys or name in keys:
            yield _Config(
                name=name,
                value=_level_name(_find_logger(name).getEffectiveLevel()),
                config_source=ConfigSource.DYNAMIC_BROKER_LOGGER,
                documentation="" if request.include_documentation else None,
            )


def alter(name: str, changes: Sequence[_Change], context: Context, *, validate_only: bool) -> None:
    """Set or delete levels, all or none. Raises BrokerError."""
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise _invalid_request("Error due to duplicate config keys")
    _check_broker(name, context)
    known = set(_names())
    for change in changes:
        _check(change, known)
    if validate_only:
        return
    for change in changes:
        level = logging.NOTSET
        if change.config_operation == ConfigOperation.SET:
            level = LEVELS[change.value or ""]
        _find_logger(change.name).setLevel(level)
        _logger.warning(
            "the level of logger %s is %s, as %s (client id %r) asked",
            change.name,
            _level_name(level) if level else "inherited",
            context.client_address,
            context.client_id,
        )


def _check_broker(name: str, context: Context) -> None:
    node_id = context.services.config.node_id
    if not name:
        raise _invalid_request("Broker id must not be empty")
    if name != str(node_id):
        raise _invalid_request(f"Unexpected broker id, expected {node_id} but received {name[:80]}")


def _check(change: _Change, known: set[str]) -> None:
    operation = change.config_operation
    if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        names = {each.value: each.name for each in ConfigOperation}
        raise _invalid_request(
            f"{names.get(operation, operation)} operation is not allowed for the BROKER_LOGGER"
            " resource"
        )
    if operation == ConfigOperation.SET and change.value is None:
        raise _invalid_request(f"Null value not supported for : {change.name[:249]}")
    if change.name not in known:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"Logger {change.name[:249]} does not exist!")
    if operation == ConfigOperation.DELETE:
        if change.name == ROOT:
            raise _invalid_request("Removing the log level of the root logger is not allowed")
    elif change.value not in LEVELS:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {change.name} to {(change.value or '')[:80]} as it is not"
            f" a supported log level. Valid log levels are {', '.join(sorted(LEVELS))}",
        )


def _names() -> list[str]:
    """Return the names of all loggers, and of packages that have loggers below them."""
    return [ROOT, *sorted(logging.root.manager.loggerDict)]


def _find_logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _level_name(level: int) -> str:
    """Return the name of the highest of Kafka's levels that is not above this one."""
    return next((name for name, floor in LEVELS.items() if level >= floor), "TRACE")


def _invalid_request(message: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REQUEST, message)
