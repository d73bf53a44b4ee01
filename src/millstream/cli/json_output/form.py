"""The form of a command's JSON output, and the comparison of a real output with it.

Keys are paths: `partitions[].offset` is the key `offset` of each object in the list `partitions`,
and `configs{}.value` is the key `value` of each value in the map `configs`, whose keys are names
chosen by users. A path that ends with `?` may be absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

Keys: TypeAlias = Mapping[str, str]


class Form(StrEnum):
    """What a command prints."""

    OBJECT = "one object"
    LIST = "a list of objects"
    LINES = "one object per line"
    MAP = "a map from names to objects"


@dataclass(frozen=True, slots=True)
class JsonOutput:
    """The output of one command: its form, and the meaning of each key."""

    form: Form
    keys: Keys

    def problems(self, value: object) -> list[str]:
        """Return the paths in which a real output differs from this description."""
        rows = value if isinstance(value, list) else [value]
        if self.form is Form.MAP:
            rows = list(value.values()) if isinstance(value, dict) else rows
        is_list = isinstance(value, list)
        if is_list != (self.form in (Form.LIST, Form.LINES)):
            return [f"the output is not {self.form}"]
        known = {path.removesuffix("?"): path.endswith("?") for path in self.keys}
        return sorted({problem for row in rows for problem in _compare(row, "", known)})


def _compare(value: object, path: str, known: Mapping[str, bool]) -> list[str]:
    """Compare a value at a path. Values below a path without documented keys are free."""
    if isinstance(value, list):
        below = f"{path}[]"
        if not _has_keys(below, known):
            return []
        return [problem for each in value for problem in _compare(each, below, known)]
    if not isinstance(value, dict):
        return []
    if _has_keys(f"{path}{{}}", known):
        each_path = f"{path}{{}}"
        return [p for each in value.values() for p in _compare(each, each_path, known)]
    return _compare_object(value, path, known) if not path or _has_keys(path, known) else []


def _compare_object(value: dict[str, Any], path: str, known: Mapping[str, bool]) -> list[str]:
    prefix = f"{path}." if path else ""
    expected = {
        name: is_optional
        for name, is_optional in known.items()
        if name.startswith(prefix) and not set(name[len(prefix) :]) & set(".[{")
    }
    found = [f"{prefix}{name}" for name in value]
    problems = [f"{name} is not documented" for name in found if name not in expected]
    problems += [
        f"{name} is missing"
        for name, optional in expected.items()
        if not optional and name not in found
    ]
    for name, each in value.items():
        problems += _compare(each, f"{prefix}{name}", known)
    return problems


def _has_keys(path: str, known: Mapping[str, bool]) -> bool:
    return any(name.startswith(f"{path}.") for name in known)


def one(keys: Keys) -> JsonOutput:
    return JsonOutput(Form.OBJECT, keys)


def rows(keys: Keys) -> JsonOutput:
    return JsonOutput(Form.LIST, keys)


def lines(keys: Keys) -> JsonOutput:
    return JsonOutput(Form.LINES, keys)


def by_name(keys: Keys) -> JsonOutput:
    return JsonOutput(Form.MAP, keys)
