"""The error for a record of a coordinator's topic that cannot be decoded."""

from __future__ import annotations


class DamagedRecordError(ValueError):
    """The key or value of a record matches no format that the coordinator knows."""
