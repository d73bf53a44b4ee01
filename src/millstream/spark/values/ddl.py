"""Parses the fields of a schema in Spark's DDL: `id STRING NOT NULL, tags ARRAY<STRING>`. Pure.

Spark parses DDL itself wherever a schema is used. This module finds only the names of fields and
which are required, without Spark: functions of a declarative pipeline must not call Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_FIELD: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`]+))\s*(?:\s|:)\s*(.*?)\s*", re.DOTALL)
_COMMENT: Final = re.compile(r"\s+COMMENT\s+('.*'|\".*\")$", re.IGNORECASE | re.DOTALL)
_NOT_NULL: Final = re.compile(r"\s+NOT\s+NULL$", re.IGNORECASE)
_QUOTES: Final = "`'\""


class Field(NamedTuple):
    """One field of a DDL schema."""

    name: str
    #: The DDL type, without NOT NULL and without the comment.
    type: str
    is_required: bool


def fields(ddl: str) -> list[Field]:
    """Parse the fields. Raises ValueError if a part is not a field."""
    return [_field(part) for part in _parts(ddl)]


def _field(text: str) -> Field:
    match = _FIELD.fullmatch(text)
    if match is None or not match[3]:
        raise ValueError(f"{text.strip()!r} is not a field of a schema: write NAME TYPE, ...")
    name = match[1].replace("``", "`") if match[1] else match[2]
    kind = _COMMENT.sub("", match[3])
    return Field(name, _NOT_NULL.sub("", kind), _NOT_NULL.search(kind) is not None)


def _parts(ddl: str) -> Iterator[str]:
    """Split at commas that are neither quoted nor inside a type."""
    depth, quote, start = 0, "", 0
    for at, character in enumerate(ddl):
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and not depth:
            yield ddl[start:at]
            start = at + 1
    yield ddl[start:]
