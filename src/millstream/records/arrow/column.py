"""The columns of records to decode. Other columns are skipped."""

from __future__ import annotations

from typing import NamedTuple


class Columns(NamedTuple):
    """The columns to decode, besides the offset, which is always decoded."""

    key: bool = True
    value: bool = True
    timestamp: bool = True
    timestamp_type: bool = True
    headers: bool = False
