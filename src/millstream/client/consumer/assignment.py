"""The partitions that a consumer has: how they come and go, which are paused, where they begin.

Rebalances arrive inside calls of librdkafka's `poll`. What is to happen then (commit, drop what was
fetched, tell the application) is the core's, through `Rebalanced`. What that raises does not leave
the callback: librdkafka's client would throw away the records that the same call has fetched.

    resting   the application is busy with what it has: everything is paused for it, so that the
              consumer can be polled, and stays in its group, without taking in more
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from confluent_kafka import Consumer as Handle
from confluent_kafka import TopicPartition

from millstream.client.consumer.consumer_handle import partitions_in, placed, rows_of
from millstream.client.error import UsageError
from millstream.client.record import Partition


class Rebalanced(Protocol):
    """Who is told, and when."""

    #: Whether there is nothing to wait for any more.
    is_closing: bool

    def assigned(self, partitions: list[Partition]) -> None:
        """Before their first fetch."""

    def revoked(self, partitions: list[Partition]) -> None:
        """While they are still ours."""

    def lost(self, partitions: list[Partition]) -> None:
        """When they are somebody else's already."""

    def failed(self, error: BaseException) -> None:
        """One of the above raised this."""


class Assignment:
    def __init__(self, handle: Handle, told: Rebalanced, *, is_cooperative: bool) -> None:
        self._handle = handle
        self._told = told
        self._is_cooperative = is_cooperative
        self.partitions: set[Partition] = set()
        self._paused: set[Partition] = set()
        self.is_resting = False
        #: Partitions that are just being assigned, with the offsets that the application chose.
        self._starts: dict[Partition, int | None] = {}
        #: Whether a callback of librdkafka is running.
        self.is_rebalancing = False

    def subscribe(self, topics: Sequence[str]) -> None:
        self._handle.subscribe(
            list(topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def take(self, partitions: Iterable[Partition], offset: int) -> None:
        """Without a group: these, for good. With an offset, nobody is asked for a committed one."""
        self.partitions = set(partitions)
        self._handle.assign([TopicPartition(*partition, offset) for partition in self.partitions])

    def chosen(self, topic: str, number: int | None) -> list[Partition]:
        """The partitions meant, which must be ours."""
        if number is None:
            found = sorted(each for each in self.partitions if each.topic == topic)
        else:
            found = [Partition(topic, number)] if (topic, number) in self.partitions else []
        if not found:
            what = topic if number is None else f"{topic}-{number}"
            raise UsageError(
                f"{what} is not assigned to this consumer. A group assigns partitions inside "
                "poll(); on_assign tells which."
            )
        return found

    def start_at(self, partition: Partition, offset: int) -> bool:
        """Begin there, if the partition is just being assigned; else False, and nothing is done."""
        if partition not in self._starts:
            return False
        self._starts[partition] = offset
        return True

    def pause(self, partitions: Iterable[Partition]) -> None:
        chosen = set(partitions)
        self._paused |= chosen
        if not self.is_resting:
            self._handle.pause(rows_of(chosen))

    def resume(self, partitions: Iterable[Partition]) -> None:
        chosen = set(partitions)
        self._paused -= chosen
        if not self.is_resting:
            self._handle.resume(rows_of(chosen))

    @property
    def paused(self) -> set[Partition]:
        return set(self._paused)

    def rest(self) -> None:
        if not self.is_resting:
            self.is_resting = True
            self._handle.pause(rows_of(self.partitions))

    def wake(self) -> None:
        if self.is_resting:
            self.is_resting = False
            self._handle.resume(rows_of(self.partitions - self._paused))

    # librdkafka's callbacks

    def _on_assign(self, handle: Handle, rows: list[TopicPartition]) -> None:
        came = partitions_in(rows)
        self.partitions |= set(came)
        self._starts = dict.fromkeys(came)
        with self._rebalancing():
            with self._telling():
                self._told.assigned(came)
            found = self._placed(rows)
            self._starts = {}
            if self._is_cooperative:
                handle.incremental_assign(found)
            else:
                handle.assign(found)
            silent = came if self.is_resting else [each for each in came if each in self._paused]
            if silent:
                handle.pause(rows_of(silent))

    def _placed(self, rows: list[TopicPartition]) -> list[TopicPartition]:
        """With offsets: those that the application chose, or else the group's."""
        starts = {name: offset for name, offset in self._starts.items() if offset is not None}
        chosen = [TopicPartition(*partition, offset) for partition, offset in starts.items()]
        others = [row for row in rows if (row.topic, row.partition) not in starts]
        return chosen + placed(self._handle, others, lambda: self._told.is_closing)

    def _on_revoke(self, handle: Handle, rows: list[TopicPartition]) -> None:
        gone = partitions_in(rows)
        with self._rebalancing():
            with self._telling():
                self._told.revoked(gone)
            self._let_go(handle, rows, gone)

    def _on_lost(self, handle: Handle, rows: list[TopicPartition]) -> None:
        gone = partitions_in(rows)
        with self._rebalancing():
            with self._telling():
                self._told.lost(gone)
            self._let_go(handle, rows, gone)

    @contextlib.contextmanager
    def _rebalancing(self) -> Iterator[None]:
        self.is_rebalancing = True
        try:
            with self._telling():
                yield
        finally:
            self.is_rebalancing = False

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001 -- raised once librdkafka's call has returned
            self._told.failed(error)

    def _let_go(
        self, handle: Handle, rows: list[TopicPartition], gone: Iterable[Partition]
    ) -> None:
        self.partitions.difference_update(gone)
        self._paused.difference_update(gone)
        if self._is_cooperative:
            handle.incremental_unassign(rows)
        else:
            handle.unassign()
