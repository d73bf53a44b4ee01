"""The producer snapshots of one log: files `<offset>.snapshot` beside its segments.

A snapshot holds the producer state after all records below its offset (`ProducerState` has the
format). It is written without sync: its CRC tells a torn one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from millstream.env.disk import Disk
from millstream.log.files import write_small_file
from millstream.log.producers.producer_state import ProducerState
from millstream.log.segment import SNAPSHOT_SUFFIX, segment_name

_logger = logging.getLogger(__name__)


class ProducerSnapshots:
    """The snapshot files in one folder, by offset, ascending."""

    __slots__ = ("_disk", "_folder", "offsets")

    def __init__(self, disk: Disk, folder: Path, offsets: list[int]) -> None:
        self._disk = disk
        self._folder = folder
        self.offsets = offsets

    def write(self, offset: int, state: ProducerState) -> Path:
        """Write the state as of `offset`, which is above all others or exists. Not synced."""
        path = self._path(offset)
        write_small_file(self._disk, path, state.encode())
        state.is_dirty = False
        if offset not in self.offsets:
            self.offsets.append(offset)
        return path

    def newest(self, offset_max: int | None = None) -> tuple[ProducerState, int]:
        """Return the newest intact snapshot with its offset; (empty state, 0) if there is none.

        `offset_max` excludes later snapshots.
        """
        for offset in reversed(self.offsets):
            if offset_max is not None and offset > offset_max:
                continue
            path = self._path(offset)
            try:
                return ProducerState.decode(self._disk.read(path)), offset
            except (ValueError, FileNotFoundError) as error:
                _logger.warning("%s is not used: %s", path, error)
        return ProducerState(), 0

    def keep(self, kept: Iterable[int]) -> None:
        """Remove all snapshots whose offset is not in `kept`."""
        keep = set(kept)
        for offset in self.offsets:
            if offset not in keep:
                self._disk.remove(self._path(offset))
        self.offsets = [offset for offset in self.offsets if offset in keep]

    def truncate_to(self, offset: int) -> None:
        """Remove the snapshots above `offset`. The log would trust them once it grew past them."""
        self.keep([each for each in self.offsets if each <= offset])

    def _path(self, offset: int) -> Path:
        return self._folder / segment_name(offset, SNAPSHOT_SUFFIX)
