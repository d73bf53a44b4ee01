"""The partitions of a consumer: assignment and revocation, pauses, and where they start.

Rebalances arrive inside librdkafka's `poll`. The core implements what happens then (commit, drop
fetched records, call the application) as a `RebalanceListener`. An error of the listener does not
leave the callback: librdkafka's client would drop the records that the same call fetched.

    suspended   the application processes records: all partitions are paused, so that the consumer
                can be polled, and stays in its group, without fetching more
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from confluent_kafka import OFFSET_INVALID, TopicPartition
from confluent_kafka import Consumer as RdKafkaConsumer

from millstream.client.consumer.consumer_handle import (
    offsets_in,
    partitions_in,
    rows_of,
    with_committed_offsets,
)
from millstream.client.error import UsageError
from millstream.client.record import Partition


class RebalanceListener(Protocol):
    """Is called when the assignment changes."""

    #: Whether the consumer closes, so that waits should end.
    is_closing: bool

    def assigned(self, partitions: list[Partition]) -> None:
        """Called before the first fetch of these partitions."""

    def revoked(self, partitions: list[Partition]) -> None:
        """Called while the partitions are still assigned to this member."""

    def lost(self, partitions: list[Partition]) -> None:
        """Called when other members may already have the partitions."""

    def failed(self, error: BaseException) -> None:
        """Called with an error that one of the other methods raised."""


class Assignment:
    """The assigned partitions, and which of them are paused."""

    def __init__(
        self, handle: RdKafkaConsumer, listener: RebalanceListener, *, is_cooperative: bool
    ) -> None:
        self._handle = handle
        self._listener = listener
        self._is_cooperative = is_cooperative
        self.partitions: set[Partition] = set()
        self._paused: set[Partition] = set()
        self.is_suspended = False
        #: Partitions that are just being assigned, with the offsets that the application chose.
        self._starts: dict[Partition, int | None] = {}
        #: Where each partition began.
        self._first: dict[Partition, int] = {}
        #: Whether a callback of librdkafka is running.
        self.is_rebalancing = False

    def subscribe(self, topics: Sequence[str]) -> None:
        """Join the group with these topics."""
        self._handle.subscribe(
            list(topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def assign_only(self, partitions: Iterable[Partition], offset: int) -> None:
        """Assign these partitions without a group, and no others. New ones start at `offset`."""
        wanted = set(partitions)
        gone, came = sorted(self.partitions - wanted), sorted(wanted - self.partitions)
        if gone:
            self._listener.revoked(gone)
            self.partitions.difference_update(gone)
            self._paused.difference_update(gone)
            self._handle.incremental_unassign(rows_of(gone))
        if not came:
            return
        self.partitions |= wanted
        self._starts = dict.fromkeys(came)
        try:
            self._listener.assigned(came)
            starts = {each: offset if at is None else at for each, at in self._starts.items()}
        finally:
            self._starts = {}
        self._first.update(starts)
        self._handle.incremental_assign([TopicPartition(*each, at) for each, at in starts.items()])

    def unsubscribe(self) -> None:
        """Begin to leave the group. The partitions are revoked inside later polls."""
        self._handle.unsubscribe()

    def first_offset(self, partition: Partition) -> int:
        """Return where the partition began.

        Negative: one of librdkafka's numbers for the ends, or for no committed offset.
        """
        if partition in self._starts:
            chosen = self._starts[partition]
            return OFFSET_INVALID if chosen is None else chosen
        return self._first.get(partition, OFFSET_INVALID)

    def chosen(self, topic: str, number: int | None) -> list[Partition]:
        """Return the partitions of a topic, or one of them. Raises if they are not assigned."""
        if number is None:
            found = sorted(each for each in self.partitions if each.topic == topic)
        else:
            found = [Partition(topic, number)] if (topic, number) in self.partitions else []
        if not found:
            what = topic if number is None else f"{topic}-{number}"
            raise UsageError(
                f"{what} is not assigned to this consumer. A group assigns partitions inside "
                "poll(); on_assign says which."
            )
        return found

    def start_at(self, partition: Partition, offset: int) -> bool:
        """Start a partition there if it is just being assigned. False otherwise."""
        if partition not in self._starts:
            return False
        self._starts[partition] = offset
        return True

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Pause partitions for the application."""
        chosen = set(partitions)
        self._paused |= chosen
        if not self.is_suspended:
            self._handle.pause(rows_of(chosen))

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Resume partitions that the application paused."""
        chosen = set(partitions)
        self._paused -= chosen
        if not self.is_suspended:
            self._handle.resume(rows_of(chosen))

    @property
    def paused(self) -> set[Partition]:
        """The partitions that the application paused."""
        return set(self._paused)

    def suspend(self) -> None:
        """Pause all partitions while the application is busy."""
        if not self.is_suspended:
            self.is_suspended = True
            self._handle.pause(rows_of(self.partitions))

    def unsuspend(self) -> None:
        """Resume what `suspend` paused."""
        if self.is_suspended:
            self.is_suspended = False
            self._handle.resume(rows_of(self.partitions - self._paused))

    # librdkafka's callbacks

    def _on_assign(self, handle: RdKafkaConsumer, rows: list[TopicPartition]) -> None:
        came = partitions_in(rows)
        self.partitions |= set(came)
        self._starts = dict.fromkeys(came)
        with self._rebalancing():
            with self._keeping_errors():
                self._listener.assigned(came)
            found = self._with_start_offsets(rows)
            self._starts = {}
            self._first.update(offsets_in(found))
            if self._is_cooperative:
                handle.incremental_assign(found)
            else:
                handle.assign(found)
            silent = came if self.is_suspended else [each for each in came if each in self._paused]
            if silent:
                handle.pause(rows_of(silent))

    def _with_start_offsets(self, rows: list[TopicPartition]) -> list[TopicPartition]:
        """Return the rows with offsets: those that the application chose, or the committed ones."""
        starts = {name: offset for name, offset in self._starts.items() if offset is not None}
        chosen = [TopicPartition(*partition, offset) for partition, offset in starts.items()]
        others = [row for row in rows if (row.topic, row.partition) not in starts]
        return chosen + with_committed_offsets(
            self._handle, others, lambda: self._listener.is_closing
        )

    def _on_revoke(self, handle: RdKafkaConsumer, rows: list[TopicPartition]) -> None:
        gone = partitions_in(rows)
        with self._rebalancing():
            with self._keeping_errors():
                self._listener.revoked(gone)
            self._unassign(handle, rows, gone)

    def _on_lost(self, handle: RdKafkaConsumer, rows: list[TopicPartition]) -> None:
        gone = partitions_in(rows)
        with self._rebalancing():
            with self._keeping_errors():
                self._listener.lost(gone)
            self._unassign(handle, rows, gone)

    @contextlib.contextmanager
    def _rebalancing(self) -> Iterator[None]:
        self.is_rebalancing = True
        try:
            with self._keeping_errors():
                yield
        finally:
            self.is_rebalancing = False

    @contextlib.contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001 -- raised after librdkafka's call
            self._listener.failed(error)

    def _unassign(
        self, handle: RdKafkaConsumer, rows: list[TopicPartition], gone: Iterable[Partition]
    ) -> None:
        self.partitions.difference_update(gone)
        self._paused.difference_update(gone)
        if self._is_cooperative:
            handle.incremental_unassign(rows)
        else:
            handle.unassign()
