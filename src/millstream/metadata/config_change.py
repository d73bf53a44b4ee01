"""Edits of configuration overrides, for AlterConfigs and IncrementalAlterConfigs. Pure.

An edit is a function from the present overrides to the new ones, so that it can be repeated on
newer ones. The caller validates the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from millstream.metadata.cluster_record import Configs
from millstream.model.definition import ConfigType, Definition
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map


class ConfigOperation(IntEnum):
    """The operation on one setting; the numbers are the protocol's."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One operation on one setting."""

    name: str
    operation: ConfigOperation
    #: Ignored by DELETE.
    value: str | None


def replace_all(configs: Mapping[str, str]) -> Callable[[Configs], Configs]:
    """Replace all overrides with these (AlterConfigs)."""
    return lambda _: Map(configs)


def incremental(
    changes: Sequence[ConfigChange], definitions: Mapping[str, Definition]
) -> Callable[[Configs], Configs]:
    """Change these overrides and keep the others (IncrementalAlterConfigs)."""
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a setting may be changed only once a request")

    def edit(current: Configs) -> Configs:
        mutation = current.mutate()
        for change in changes:
            if change.operation is ConfigOperation.DELETE:
                mutation.pop(change.name, None)
            else:
                mutation[change.name] = _value(change, current, definitions)
        return mutation.finish()

    return edit


def _value(change: ConfigChange, current: Configs, definitions: Mapping[str, Definition]) -> str:
    if change.value is None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{change.name} needs a value, not null")
    if change.operation is ConfigOperation.SET:
        return change.value
    definition = definitions.get(change.name)
    if definition is None or definition.kind is not ConfigType.LIST:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            f"{change.name} is not a list: {change.operation.name} is only for lists",
        )
    elements = _elements(current.get(change.name, definition.format(definition.default) or ""))
    given = _elements(change.value)
    if change.operation is ConfigOperation.APPEND:
        return ",".join([*elements, *(item for item in given if item not in elements)])
    return ",".join(item for item in elements if item not in given)


def _elements(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
