"""Checks in the log of the offsets topic that no committed offset moves back.

It reads the committed batches in order. Offsets of a transaction count from its commit marker on,
unless the log has a newer commit of the same partition.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.groups.group_record import (
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
)
from millstream.records.batch import BatchHeader
from millstream.records.control import read_marker
from millstream.records.record import decode_records

_BYTES_MAX = 1 << 20
#: Group, topic, partition.
_Place = tuple[str, str, int]


class OffsetOrder:
    """The committed offsets in one partition of the offsets topic."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        #: Committed offset, and its offset in the log.
        self._offsets: dict[_Place, tuple[int, int]] = {}
        self._pending: dict[int, list[tuple[_Place, int, int]]] = {}

    def apply(self, data: bytes, header: BatchHeader, position: int) -> None:
        if header.is_control:
            marker = read_marker(data, header, position)
            pending = self._pending.pop(header.producer_id, [])
            if marker is not None and marker.is_commit:
                for found in pending:
                    self._commit(*found)
            return
        for record in decode_records(data, _BYTES_MAX, position):
            key = decode_key(record.key or b"")
            if not isinstance(key, OffsetCommitKey):
                continue
            place = (key.group_id, key.topic, key.partition)
            value = decode_value(key, record.value)
            if not isinstance(value, OffsetCommitValue):
                self._violated(f"the committed offset of {place} was deleted")
            elif header.is_transactional:
                pending = self._pending.setdefault(header.producer_id, [])
                pending.append((place, value.offset, record.offset))
            else:
                self._commit(place, value.offset, record.offset)

    def _commit(self, place: _Place, offset: int, at: int) -> None:
        known, known_at = self._offsets.get(place, (0, -1))
        if at < known_at:
            return
        if offset < known:
            self._violated(f"the committed offset of {place} went from {known} to {offset}")
        self._offsets[place] = (offset, at)
