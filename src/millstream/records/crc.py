"""CRC32C (Castagnoli), the checksum that a record batch carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fastcrc.crc32 import iscsi

#: The types that the functions of this package read from.
Buffer: TypeAlias = bytes | bytearray | memoryview

#: CRC32C of a whole buffer. Not wrapped in a function: it runs once per produced batch.
crc32c: Callable[[Buffer], int] = iscsi
