"""The fields of a schema in Spark's DDL: `id STRING NOT NULL, tags ARRAY<STRING>`. Pure.

Spark parses DDL itself wherever a schema is used. Here only the names are found, and which fields
must be there, without asking Spark: inside a declarative pipeline's functions it may not be asked.
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
    name: str
    #: In DDL, without what is said about nulls and without its comment.
    type: str
    is_required: bool


def fields(ddl: str) -> list[Field]:
    """Raises ValueError where there is no field to be seen."""
    return [_field(part) for part in _parts(ddl)]


def _field(text: str) -> Field:
    match = _FIELD.fullmatch(text)
    if match is None or not match[3]:
        raise ValueError(f"{text.strip()!r} is no field of a schema: write NAME TYPE, ...")
    name = match[1].replace("``", "`") if match[1] else match[2]
    kind = _COMMENT.sub("", match[3])
    return Field(name, _NOT_NULL.sub("", kind), _NOT_NULL.search(kind) is not None)


def _parts(ddl: str) -> Iterator[str]:
    """What stands between the commas that are neither quoted nor inside a type."""
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
