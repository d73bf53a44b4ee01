"""Copying bytes and numbers between buffers: the Python form of `memory.pxd`.

The C form checks no bounds: a kernel checks the position against the buffer's size first. Numbers
are in the machine's byte order and indexed from the start of the buffer, as in Arrow. A compiled
kernel uses the functions of the `.pxd` and never imports this module.
"""

from __future__ import annotations

import struct
from typing import Final

from millstream.records.crc import Buffer

_INT32: Final = struct.Struct("=i")
_INT64: Final = struct.Struct("=q")


def address(view: Buffer) -> Buffer:
    """Return where the bytes of `view` start: a pointer in C, the bytes themselves here."""
    return view


def copy(target: bytearray, position: int, source: Buffer, start: int, size: int) -> None:
    """Copy `size` bytes from `start` in `source` to `position` in `target`."""
    target[position : position + size] = source[start : start + size]


def put_int32(target: bytearray, index: int, value: int) -> None:
    """Set the number at `index`."""
    _INT32.pack_into(target, 4 * index, value)


def put_int64(target: bytearray, index: int, value: int) -> None:
    """Set the number at `index`."""
    _INT64.pack_into(target, 8 * index, value)


def get_int32(source: Buffer, index: int) -> int:
    """Return the number at `index`."""
    value: int = _INT32.unpack_from(source, 4 * index)[0]
    return value


def get_int64(source: Buffer, index: int) -> int:
    """Return the number at `index`."""
    value: int = _INT64.unpack_from(source, 8 * index)[0]
    return value
