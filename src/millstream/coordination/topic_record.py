"""What the records of all coordinators' topics have in common: the layout of keys, and the error.

A key is an int16, the kind of record, and the fields of that kind. The kind is the schema version
of the key's class.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, TypeVar

from millstream.wire.primitive import Buffer, DecodeError
from millstream.wire.schema import Versioned, codec

_K = TypeVar("_K", bound=Versioned)
_KIND: Final = Struct(">h")


class DamagedRecordError(ValueError):
    """The key or value of a record matches no format that the coordinator knows."""


def decode_key(encoded: Buffer, key_of_kind: Mapping[int, type[_K]]) -> _K | int:
    """Return a record's key, or its kind if the kind is unknown.

    Raises DamagedRecordError if a key of a known kind is damaged."""
    if len(encoded) < _KIND.size:
        raise DamagedRecordError(f"a key of {len(encoded)} bytes is too short to hold a kind")
    kind: int = _KIND.unpack_from(encoded)[0]
    shape = key_of_kind.get(kind)
    if shape is None:
        return kind
    try:
        return codec(shape, kind).decode(encoded, _KIND.size)
    except DecodeError as problem:
        raise DamagedRecordError(f"a key of kind {kind} is damaged: {problem}") from problem
