"""Which messages may have killed a process, and how the worker runs them. Pure.

A partition's offset metadata (`offset_metadata.py`) names its worker. A worker that finds another
worker's id knows that this worker died, or lost its session, without giving the partition up. Three
steps then find the message that kills processes. Each further death leads to the next step:

    tracked   for a while, messages start only after committed metadata names them
    suspect   metadata named the message when a process died. It now runs with nothing else in
              progress in the process, so a second death has no other cause
    dead      a suspect whose deaths and attempts reach `attempts_max` becomes a dead letter

A partition that its worker gave up in order, or that keeps its worker, costs nothing of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millstream.client.record import Partition
from millstream.client.worker.message.work_item import WorkItem
from millstream.client.worker.queue.in_flight import InFlight
from millstream.client.worker.queue.offset_metadata import TRACKED_MAX, OffsetMetadata
from millstream.client.worker.queue.partition_window import PartitionProgress

#: Messages read within this time after a death may be those that the dead process had in progress.
_TRACKING_S: Final = 30.0
#: Another message may have caused the first death. From the second on, nothing else ran.
_DEATHS_CERTAIN: Final = 2


class PartitionTracking:
    """What is known about deaths in one partition."""

    __slots__ = ("deaths", "is_released", "remaining", "running", "unfinished", "until")

    def __init__(self, metadata: OffsetMetadata, owner: str, window: int, now: float) -> None:
        has_died = metadata.owner not in (None, owner)
        self.deaths = dict(metadata.deaths)
        if has_died:
            for offset in metadata.running:
                self.deaths[offset] = self.deaths.get(offset, 0) + 1
        is_tracking = has_died or metadata.is_tracking
        #: Until this time, up to `remaining` messages that are read become tracked.
        self.until = now + _TRACKING_S if is_tracking else 0.0
        self.remaining = window if is_tracking else 0
        #: Tracked messages that are not finished.
        self.unfinished = 0
        #: In progress, and named by metadata that is committed or about to be.
        self.running: dict[int, None] = {}
        self.is_released = False

    def is_active(self, now: float) -> bool:
        """Whether messages that are read now become tracked."""
        return self.remaining > 0 and now < self.until


class CrashTracker:
    """Decides which items are tracked and when they start. `owner` is this worker's id."""

    def __init__(self, owner: str, attempts_max: int, window: int) -> None:
        self._owner = owner
        self._attempts_max = attempts_max
        self._window = window
        self._partitions: dict[Partition, PartitionTracking] = {}
        #: Items that the next committed metadata names.
        self._recording: list[WorkItem] = []
        #: A suspect that has run by itself, and that committed metadata still names.
        self._ended_suspect: WorkItem | None = None

    def open(self, partition: Partition, metadata: OffsetMetadata, now: float) -> None:
        """Begin with what the previous worker committed."""
        self._partitions[partition] = PartitionTracking(metadata, self._owner, self._window, now)

    def drop(self, partitions: Iterable[Partition], in_flight: InFlight) -> None:
        """Forget partitions that another member has now."""
        for partition in partitions:
            self._partitions.pop(partition, None)
            if in_flight.exclusive is not None and in_flight.exclusive.partition == partition:
                in_flight.exclusive, in_flight.is_exclusive = None, False
            if self._ended_suspect is not None and self._ended_suspect.partition == partition:
                self._ended_suspect, in_flight.is_exclusive = None, False

    def release(self, partitions: Iterable[Partition]) -> None:
        """From now on, the metadata says that this worker gave the partitions up in order."""
        for partition in partitions:
            if partition in self._partitions:
                self._partitions[partition].is_released = True

    # Items

    def classify(self, item: WorkItem, now: float) -> bool:
        """Set how an item that was read runs. Return whether it becomes a dead letter at once."""
        tracking = self._partitions[item.partition]
        if not tracking.remaining and not tracking.deaths:
            return False
        item.deaths = tracking.deaths.get(item.offset, 0)
        item.attempts += item.deaths
        if item.deaths or tracking.is_active(now):
            item.is_tracked = True
            tracking.remaining -= tracking.remaining > 0
            tracking.unfinished += 1
        return item.deaths >= _DEATHS_CERTAIN and item.attempts >= self._attempts_max

    def attempt_ended(self, item: WorkItem, in_flight: InFlight) -> None:
        """Note that an attempt at the item has ended."""
        if not item.is_tracked:
            return
        tracking = self._partitions.get(item.partition)
        if tracking is not None:
            tracking.running.pop(item.offset, None)
        if item is in_flight.exclusive:
            # Metadata must not name the suspect when others run.
            in_flight.exclusive, self._ended_suspect = None, item

    def finished(self, item: WorkItem) -> None:
        """Stop tracking a finished item."""
        if not item.is_tracked:
            return
        tracking = self._partitions.get(item.partition)
        if tracking is not None:
            tracking.unfinished -= 1
            tracking.deaths.pop(item.offset, None)

    # Metadata before items start

    def plan(self, in_flight: InFlight) -> set[Partition]:
        """Choose the items to start next. Return the partitions whose metadata to commit first."""
        if self._ended_suspect is not None:
            return {self._ended_suspect.partition}
        if in_flight.exclusive is not None or not in_flight.unrecorded:
            return set()
        suspect = next((item for item in in_flight.unrecorded if item.deaths), None)
        if suspect is None:
            self._recording = self._next_items(in_flight)
        else:
            in_flight.is_exclusive = True
            if in_flight.running:
                return set()
            in_flight.exclusive = suspect
            self._recording = [suspect]
        for item in self._recording:
            in_flight.unrecorded.remove(item)
            self._partitions[item.partition].running[item.offset] = None
        return {item.partition for item in self._recording}

    def _next_items(self, in_flight: InFlight) -> list[WorkItem]:
        """Return tracked items, as many of each partition as its metadata may name."""
        room = {
            partition: TRACKED_MAX - len(tracking.running)
            for partition, tracking in self._partitions.items()
        }
        chosen = []
        for item in in_flight.unrecorded:
            if room[item.partition] > 0:
                room[item.partition] -= 1
                chosen.append(item)
        return chosen

    def recorded(self, in_flight: InFlight, *, is_committed: bool) -> None:
        """Let the planned items start, or put them back if their metadata was not committed."""
        recording, self._recording = self._recording, []
        if not is_committed:
            for item in reversed(recording):
                if not item.is_dropped:
                    self._partitions[item.partition].running.pop(item.offset, None)
                    in_flight.unrecorded.appendleft(item)
            if in_flight.exclusive in recording:
                in_flight.exclusive = None
            return
        if self._ended_suspect is not None:
            self._ended_suspect, in_flight.is_exclusive = None, False
        for item in recording:
            if not item.is_dropped:
                in_flight.make_ready(item)

    def metadata(
        self, partition: Partition, progress: PartitionProgress, in_flight: InFlight, now: float
    ) -> OffsetMetadata:
        """Return what the next worker of the partition must know."""
        tracking = self._partitions[partition]
        running = tuple(tracking.running)
        exclusive = in_flight.exclusive
        deaths = tracking.deaths.items()
        return OffsetMetadata(
            None if tracking.is_released else self._owner,
            progress.end,
            progress.unfinished,
            tracking.unfinished > 0 or tracking.is_active(now),
            running,
            exclusive is not None and running == (exclusive.offset,),
            {offset: count for offset, count in deaths if offset >= progress.offset},
        )
