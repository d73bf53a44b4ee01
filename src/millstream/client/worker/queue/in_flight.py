"""The messages that a worker holds: which may start, which partitions are full, what to commit.

    waiting (not due) -> ready -> running -> released -> finished -> committed
                 tracked: unrecorded -> ready

Pure: the caller passes the time and holds the lock.

Items with the same queue key run one after the other. The first item of a key queue waits, is ready
or runs; the next one follows once the first is released. A partition's offset advances up to its
lowest unfinished message, never beyond it. The offset's metadata records finished messages beyond
it, as far as the metadata has room.

The window limits runnable messages per partition, and bytes. Messages that are not due, and those
behind them in their key queue, count as bytes only: a long delay does not stop reading.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable

from millstream.client.record import Partition
from millstream.client.worker.message.work_item import WorkItem
from millstream.client.worker.queue.offset_metadata import OffsetMetadata
from millstream.client.worker.queue.partition_window import PartitionProgress, PartitionWindow
from millstream.client.worker.queue.topic_queue import TopicQueues


class KeyQueue:
    """The items of one key in order. The first waits, is ready or runs."""

    __slots__ = ("is_waiting", "items")

    def __init__(self) -> None:
        self.items: deque[WorkItem] = deque()
        self.is_waiting = False


class InFlight:
    """All items of a worker. `window` is per partition, `window_bytes` for all of them."""

    def __init__(self, window: int, window_bytes: int) -> None:
        self._window = window
        self._window_bytes = window_bytes
        self._partitions: dict[Partition, PartitionWindow] = {}
        self._queues: dict[object, KeyQueue] = {}
        self._ready: deque[WorkItem] = deque()
        #: Takes the place of `_ready` if topics have priorities or rate limits.
        self._by_topic: TopicQueues | None = None
        self._waiting: list[tuple[float, int, WorkItem]] = []
        self._numbers = itertools.count()
        #: Partitions whose items no longer start.
        self._stopped: set[Partition] = set()
        self.running: dict[WorkItem, None] = {}
        #: Tracked items that may start once committed metadata names them.
        self.unrecorded: deque[WorkItem] = deque()
        #: While set, only this item starts. With `is_exclusive` and no item, nothing starts.
        self.exclusive: WorkItem | None = None
        self.is_exclusive = False

    def __len__(self) -> int:
        """Return the number of items that are not finished and collected for a commit."""
        windows = self._partitions.values()
        return sum(len(window.unfinished) + len(window.finished) for window in windows)

    @property
    def bytes(self) -> int:
        """Estimated memory of all items."""
        return sum(window.bytes for window in self._partitions.values())

    @property
    def ready_count(self) -> int:
        """An upper bound of the number of items that may start now."""
        return len(self._ready if self._by_topic is None else self._by_topic)

    def use_topics(self, queues: TopicQueues) -> None:
        """Start items as these queues decide. Call this before items are added."""
        self._by_topic = queues

    # Partitions

    def partitions(self) -> dict[Partition, None]:
        """Return the open partitions."""
        return dict.fromkeys(self._partitions)

    def open(
        self, partition: Partition, offset: int, metadata: OffsetMetadata | None = None
    ) -> None:
        """Accept messages of the partition from `offset` on."""
        self._partitions[partition] = PartitionWindow(offset, metadata or OffsetMetadata())

    def window(self, partition: Partition) -> PartitionWindow | None:
        """Return the partition's window, or None if the partition is not open."""
        return self._partitions.get(partition)

    def stop_partitions(self, partitions: Iterable[Partition]) -> None:
        """Start no more items of these partitions."""
        self._stopped.update(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget the items of partitions that another member has now."""
        for partition in partitions:
            self._stopped.discard(partition)
            window = self._partitions.pop(partition, None)
            for item in () if window is None else window.unfinished.values():
                item.is_dropped = True
                if item.queue_key is not None:
                    self._queues.pop(item.queue_key, None)
        self.unrecorded = deque(item for item in self.unrecorded if not item.is_dropped)

    def full_partitions(self) -> set[Partition]:
        """Return the partitions whose reading should pause."""
        share = self._bytes_per_partition
        return {
            partition
            for partition, window in self._partitions.items()
            if len(window.unfinished) - window.waiting >= self._window or window.bytes >= share
        }

    def resumable_partitions(self) -> set[Partition]:
        """Return the partitions whose reading may resume: their window is at most half full."""
        share = self._bytes_per_partition
        return {
            partition
            for partition, window in self._partitions.items()
            if (len(window.unfinished) - window.waiting) * 2 <= self._window
            and window.bytes * 2 <= share
        }

    def is_crowded(self, partition: Partition) -> bool:
        """Whether so many messages of the partition wait that further ones should be parked."""
        window = self._partitions[partition]
        return window.waiting >= self._window or window.bytes * 2 >= self._bytes_per_partition

    @property
    def _bytes_per_partition(self) -> float:
        return self._window_bytes / max(1, len(self._partitions))

    # Items, in the order of their states

    def add(self, item: WorkItem, now: float) -> None:
        """Add an item. Items of a partition are added in offset order."""
        window = self.add_released(item)
        if item.queue_key is not None:
            queue = self._queues.setdefault(item.queue_key, KeyQueue())
            queue.items.append(item)
            if len(queue.items) > 1:
                window.waiting += queue.is_waiting
                return
        self._offer(item, now)

    def add_released(self, item: WorkItem) -> PartitionWindow:
        """Add an item that does not run: it only has to be finished."""
        window = self._partitions[item.partition]
        window.advance(item.offset)
        window.unfinished[item.offset] = item
        window.bytes += item.size
        return window

    def promote_due(self, now: float) -> list[WorkItem]:
        """Make items ready that are due. Return parked items whose wait ended instead."""
        parked = []
        while self._waiting and self._waiting[0][0] <= now:
            item = heapq.heappop(self._waiting)[2]
            if item.is_dropped:
                continue
            self._set_waiting(item, is_waiting=False)
            if item.is_parked:
                parked.append(item)
            else:
                self._enqueue(item)
        return parked

    def make_ready(self, item: WorkItem) -> None:
        """Let a tracked item start: committed metadata names it."""
        (self._ready if self._by_topic is None else self._by_topic).append(item)

    def start(self, now: float = 0.0) -> WorkItem | None:
        """Return the next item that may run, now running, or None."""
        if self.is_exclusive:
            return self._start_exclusive()
        if self._by_topic is not None:
            return self._start_by_topic(self._by_topic, now)
        while self._ready:
            item = self._ready.popleft()
            if item.is_dropped or item.partition in self._stopped:
                continue
            self.running[item] = None
            return item
        return None

    def postpone(self, item: WorkItem, due: float, now: float) -> None:
        """Let the item run again at `due`. Its key queue waits for it."""
        self.running.pop(item, None)
        if not item.is_dropped:
            item.due = due
            self._offer(item, now)

    def release(self, item: WorkItem, now: float) -> None:
        """End the item's runs, and let the next item of its key queue follow."""
        self.running.pop(item, None)
        if item.is_dropped or item.queue_key is None:
            return
        queue = self._queues[item.queue_key]
        queue.items.popleft()
        if queue.items:
            self._offer(queue.items[0], now)
        else:
            del self._queues[item.queue_key]

    def finish(self, item: WorkItem, *, keep: bool) -> None:
        """Mark the item finished. With `keep` its output is sent with the commit of its offset."""
        window = self._partitions.get(item.partition)
        if item.is_dropped or window is None:
            return
        del window.unfinished[item.offset]
        window.has_changed = True
        if keep:
            grown = sum(output.size for output in item.outputs)
            item.size += grown
            window.bytes += grown
            window.finished.append(item)
        else:
            window.bytes -= item.size

    def withhold(self, item: WorkItem) -> None:
        """Take back that an item is finished: its output was not sent. `finish` it again later."""
        window = self._partitions.get(item.partition)
        if item.is_dropped or window is None:
            return
        item.size -= sum(output.size for output in item.outputs)
        window.restore(item)

    def take_progress(self, also: Iterable[Partition] = ()) -> dict[Partition, PartitionProgress]:
        """Return the progress of partitions that changed since the last call, and of `also`."""
        chosen = dict.fromkeys(also)
        return {
            partition: window.take_progress()
            for partition, window in self._partitions.items()
            if window.has_changed or partition in chosen
        }

    def _start_by_topic(self, queues: TopicQueues, now: float) -> WorkItem | None:
        while (item := queues.take(now)) is not None:
            if not item.is_dropped and item.partition not in self._stopped:
                self.running[item] = None
                return item
        return None

    def _start_exclusive(self) -> WorkItem | None:
        item = self.exclusive
        ready = self._ready if self._by_topic is None else self._by_topic
        if item is None or self.running or item.is_dropped or item not in ready:
            return None
        ready.remove(item)
        if item.partition in self._stopped:
            return None
        self.running[item] = None
        return item

    def _offer(self, item: WorkItem, now: float) -> None:
        if item.due > now:
            heapq.heappush(self._waiting, (item.due, next(self._numbers), item))
            self._set_waiting(item, is_waiting=True)
        else:
            self._enqueue(item)

    def _enqueue(self, item: WorkItem) -> None:
        if item.is_tracked:
            self.unrecorded.append(item)
        elif self._by_topic is None:
            self._ready.append(item)
        else:
            self._by_topic.append(item)

    def _set_waiting(self, item: WorkItem, *, is_waiting: bool) -> None:
        count = 1
        if item.queue_key is not None:
            queue = self._queues[item.queue_key]
            queue.is_waiting = is_waiting
            count = len(queue.items)
        self._partitions[item.partition].waiting += count if is_waiting else -count
