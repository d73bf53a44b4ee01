"""Changes of config overrides."""

from __future__ import annotations

import pytest

from millstream.metadata.config_change import (
    ConfigChange,
    ConfigOperation,
    incremental,
    replace_all,
)
from millstream.model.config import definitions
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map

SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT


def edited(current: dict[str, str], *changes: ConfigChange) -> dict[str, str]:
    return dict(incremental(changes, definitions)(Map(current)))


def test_set_and_delete_keep_the_other_overrides() -> None:
    assert edited(
        {"a": "1", "b": "2", "c": "3"},
        ConfigChange("a", DELETE, None),
        ConfigChange("b", SET, "5"),
        ConfigChange("never-set", DELETE, None),
    ) == {"b": "5", "c": "3"}


@pytest.mark.parametrize(
    ("current", "operation", "value", "result"),
    [
        ({}, APPEND, "compact", "delete,compact"),
        ({}, APPEND, "delete", "delete"),
        ({"cleanup.policy": "compact"}, APPEND, " delete , compact", "compact,delete"),
        ({"cleanup.policy": "compact,delete"}, SUBTRACT, "delete", "compact"),
        ({}, SUBTRACT, "delete", ""),
        ({"cleanup.policy": "compact"}, SUBTRACT, "delete", "compact"),
    ],
)
def test_append_and_subtract_start_from_the_value_in_force(
    current: dict[str, str], operation: ConfigOperation, value: str, result: str
) -> None:
    change = ConfigChange("cleanup.policy", operation, value)
    assert edited(current, change) == {"cleanup.policy": result}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([ConfigChange("segment.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([ConfigChange("nonsense", SUBTRACT, "1")], ErrorCode.INVALID_CONFIG),
        ([ConfigChange("segment.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        (
            [ConfigChange("segment.ms", SET, "1"), ConfigChange("segment.ms", DELETE, None)],
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_invalid_changes_are_rejected(changes: list[ConfigChange], code: ErrorCode) -> None:
    with pytest.raises(BrokerError) as raised:
        edited({}, *changes)
    assert raised.value.code is code


def test_replace_all_removes_earlier_overrides() -> None:
    assert replace_all({"b": "2"})(Map({"a": "1"})) == Map({"b": "2"})
