"""The leader epochs of one log, read from its checkpoint file when first needed."""

from __future__ import annotations

import logging

from millstream.log.directory import checkpoint
from millstream.log.directory.log_folder import LogFolder
from millstream.log.epoch_cache import EpochCache
from millstream.model.sentinel import NO_EPOCH

_logger = logging.getLogger(__name__)


class LeaderEpochs:
    """The epoch cache of one log, loaded lazily: an idle log costs no read at startup."""

    __slots__ = ("_assigned", "_folder", "cache")

    def __init__(self, folder: LogFolder) -> None:
        self._folder = folder
        #: None until loaded.
        self.cache: EpochCache | None = None
        #: An epoch that was assigned while `cache` was not loaded.
        self._assigned = NO_EPOCH

    def load(self, log_end_offset: int, *, is_recovered: bool) -> EpochCache:
        """Return the epochs. Before recovery the log end offset is unknown and not applied."""
        cache = self.cache
        if cache is None:
            cache = self.cache = EpochCache(self._read() if self._folder.exists else [])
            if is_recovered:
                self.apply_assigned(log_end_offset)
        return cache

    def _read(self) -> list[tuple[int, int]]:
        path = self._folder.path / checkpoint.LEADER_EPOCHS
        try:
            return checkpoint.read_epochs(self._folder.storage.disk, path)
        except ValueError as error:
            # The records are intact, but where older epochs began is no longer known.
            _logger.error("%s; continuing without the epochs that it held", error)
            return []

    def apply_assigned(self, log_end_offset: int) -> None:
        """Apply an epoch that was assigned before the cache and the log end offset were known."""
        if self.cache is not None and self._assigned >= 0:
            self.cache.drop_above(self._assigned)
            self.cache.assign(self._assigned, log_end_offset)

    def assign(self, epoch: int, log_end_offset: int) -> None:
        """Let `epoch` begin at the log end offset."""
        if self.cache is None:
            self._assigned = epoch
        else:
            self.cache.drop_above(epoch)
            self.cache.assign(epoch, log_end_offset)

    def drop_unused(self, log_end_offset: int) -> None:
        """Remove an epoch that began here and has no records."""
        self._assigned = NO_EPOCH
        if self.cache is not None:
            self.cache.truncate_from(log_end_offset)

    def unload(self) -> None:
        """Forget the cache if the checkpoint file holds all of it."""
        if self.cache is not None and not self.cache.is_dirty:
            self.cache = None
