"""How far each log is clean: the file `cleaner-offset-checkpoint` in the data directory.

File: Kafka's format, the first dirty offset of each log that was ever cleaned. It is written after
the cleaned segments are in place. If a crash loses it, the same offsets are cleaned once more.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from millstream.env.disk import Disk
from millstream.log.compaction.cleaning_thread import CleaningThread
from millstream.log.directory.checkpoint import read_offsets, write_offsets
from millstream.model.topic import TopicPartition

CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"

_logger = logging.getLogger(__name__)


class CleanerCheckpoint:
    """The first dirty offsets of all logs, in memory and on disk. Used from the event loop."""

    __slots__ = ("_disk", "_is_stale", "_path", "_writing", "offsets")

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / CLEANER_OFFSETS
        self.offsets = self._read()
        #: Whether the file names offsets that are too high.
        self._is_stale = False
        #: One write at a time, so that the newest offsets are written last.
        self._writing = asyncio.Lock()

    def _read(self) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self._disk, self._path)
        except ValueError as error:
            # Losing it costs only work.
            _logger.warning("all compacted logs will be cleaned from their start: %s", error)
            return {}

    def remove(self, topic_partition: TopicPartition) -> None:
        """Forget a log."""
        if self.offsets.pop(topic_partition, None) is not None:
            self._is_stale = True

    def lower(self, topic_partition: TopicPartition, offset: int) -> None:
        """Lower the first dirty offset of a log to at most `offset`."""
        if self.offsets.get(topic_partition, 0) > offset:
            self.offsets[topic_partition] = offset
            self._is_stale = True

    async def advance(
        self, topic_partition: TopicPartition, offset: int, thread: CleaningThread
    ) -> None:
        """Set the first dirty offset of a log that was cleaned, and write the file. Raises OSError.

        Runs in the cleaning's thread."""
        self.offsets[topic_partition] = offset
        async with self._writing:
            await thread.run(self._write, dict(self.offsets))

    async def correct(self) -> str | None:
        """Write the file if it names offsets that are too high. Returns why it failed, or None."""
        if not self._is_stale:
            return None
        self._is_stale = False
        try:
            async with self._writing:
                await asyncio.to_thread(self._write, dict(self.offsets))
        except OSError as error:
            self._is_stale = True
            message = f"{self._path} could not be written: {error}"
            _logger.warning("%s", message)
            return message
        return None

    def _write(self, offsets: dict[TopicPartition, int]) -> None:
        write_offsets(self._disk, self._path, offsets)
