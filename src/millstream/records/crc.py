"""CRC32C (Castagnoli), the checksum that a record batch carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fastcrc.crc32 import iscsi

#: What the functions of this package read from.
Buffer: TypeAlias = bytes | bytearray | memoryview

#: CRC32C of a whole buffer. Bound and not wrapped: it runs once for every produced batch.
crc32c: Callable[[Buffer], int] = iscsi
