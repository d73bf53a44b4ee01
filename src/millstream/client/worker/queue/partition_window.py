"""The unfinished messages of one partition, and the offset that may be committed. Pure."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from millstream.client.worker.message.work_item import WorkItem
from millstream.client.worker.queue.offset_metadata import OffsetMetadata, fit_unfinished


class PartitionProgress(NamedTuple):
    """What changed in a partition since the last commit.

    `items` finished since then. `offset` is the offset to commit. `unfinished` are offsets from
    `offset` on that are not finished, complete up to `end`.
    """

    items: list[WorkItem]
    offset: int
    unfinished: tuple[int, ...]
    end: int


class PartitionWindow:
    """Tracks which messages of a partition are unfinished."""

    __slots__ = (
        "_inherited",
        "_inherited_end",
        "bytes",
        "end",
        "finished",
        "has_changed",
        "unfinished",
        "waiting",
    )

    def __init__(self, offset: int, inherited: OffsetMetadata) -> None:
        #: By offset, in ascending order.
        self.unfinished: dict[int, WorkItem] = {}
        #: Finished items that `take_progress` has not returned yet.
        self.finished: list[WorkItem] = []
        #: The offset after the last message that was read.
        self.end = offset
        #: The previous worker finished every message before `_inherited_end` except these.
        self._inherited = dict.fromkeys(inherited.unfinished)
        self._inherited_end = inherited.end
        self.bytes = 0
        #: Items that wait until they are due, or wait behind such an item.
        self.waiting = 0
        self.has_changed = False

    def advance(self, offset: int) -> None:
        """Count the message at `offset` as read. If no item is added for it, it is finished."""
        self.end = offset + 1
        self.has_changed = True

    def restore(self, item: WorkItem) -> None:
        """Make an item unfinished that `take_progress` has returned."""
        self.unfinished[item.offset] = item
        self.unfinished = dict(sorted(self.unfinished.items()))
        self.bytes += item.size
        self.has_changed = True

    def was_finished(self, offset: int) -> bool:
        """Whether the previous worker finished the message at `offset`."""
        return offset < self._inherited_end and offset not in self._inherited

    def take_progress(self) -> PartitionProgress:
        """Return the finished items and the offset to commit with them.

        Finished items beyond the end of the metadata stay: their offsets would not be recorded.
        """
        offset = next(iter(self.unfinished), self.end)
        unread = (each for each in self._inherited if each >= self.end)
        end = max(self.end, self._inherited_end)
        unfinished, end = fit_unfinished(offset, itertools.chain(self.unfinished, unread), end)
        items = [item for item in self.finished if item.offset < end]
        self.finished = [item for item in self.finished if item.offset >= end]
        self.has_changed = False
        for item in items:
            self.bytes -= item.size
        return PartitionProgress(items, offset, unfinished, end)
