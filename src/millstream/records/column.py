"""Which columns of records are wanted: what is left out is not decoded."""

from __future__ import annotations

from typing import NamedTuple


class Columns(NamedTuple):
    """The wanted columns besides the offset, which is always there."""

    key: bool = True
    value: bool = True
    timestamp: bool = True
    timestamp_type: bool = True
    headers: bool = False
