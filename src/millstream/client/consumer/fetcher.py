"""Fetches records through librdkafka, carries out pending seeks, and keeps errors for later.

`Fetcher` calls librdkafka, so its caller holds the core's lock. It decides nothing about positions:
`Positions` says which records are pending and which seeks are due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import OFFSET_INVALID, Message
from confluent_kafka import Consumer as RdKafkaConsumer

from millstream.client.consumer.consumer_handle import (
    SLICE_S,
    ended_in,
    position,
    seek,
    split_errors,
)
from millstream.client.consumer.positions import Positions
from millstream.client.error import BrokerError, TimedOut, from_kafka
from millstream.client.record import Partition

_logger = logging.getLogger(__name__)

_SEEK_S_MAX: Final = 30.0
_SEEK_SLICE_S: Final = 0.01


class Fetcher:
    """Moves records from librdkafka to `positions`.

    `is_closing` and `is_rebalancing` are functions: a closing consumer stops waiting, and inside a
    rebalance callback nothing is raised or polled.
    """

    def __init__(
        self,
        handle: RdKafkaConsumer,
        positions: Positions,
        *,
        is_closing: Callable[[], bool],
        is_rebalancing: Callable[[], bool],
    ) -> None:
        self._handle = handle
        self._positions = positions
        self._is_closing = is_closing
        self._is_rebalancing = is_rebalancing
        #: An error that the application's next call raises.
        self.pending_error: BaseException | None = None
        #: Partitions whose end librdkafka has reached, if `enable.partition.eof` is set.
        self.ended: set[Partition] = set()

    def fetch(self, count_max: int, timeout_s: float, is_over: Callable[[], bool]) -> None:
        """Fetch the records that are available, or wait for the first ones."""
        self._receive(self._handle.consume(count_max, 0))
        deadline = time.monotonic() + timeout_s
        while not self._positions.has_pending and not self._is_closing() and not is_over():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            first = self._handle.poll(min(left, SLICE_S))
            if first is None:
                self._after_poll()
                continue
            self._receive([first])
            if count_max > 1:
                self._receive(self._handle.consume(count_max - 1, 0))

    def accept(self, messages: list[Message]) -> None:
        """Add the messages of a call of librdkafka, and keep the first error among them."""
        if any(map(Message.error, messages)):
            self.ended.update(ended_in(messages))
            messages, error = split_errors(messages)
            if error is not None:
                self.keep_error(from_kafka(error, "Reading", BrokerError))
        self._positions.accept(messages)

    def serve(self, timeout_s: float = 0.0) -> None:
        """Let librdkafka run its callbacks, and accept a record that it returns."""
        message = self._handle.poll(timeout_s)
        self.accept([] if message is None else [message])

    def position(self, partition: Partition) -> int:
        """Return the offset of the next record, if any was fetched since the last seek.

        Otherwise the target of that seek, or OFFSET_INVALID. A target may be one of librdkafka's
        numbers for the ends.
        """
        offset = self._positions.next_offset(partition)
        if offset is None:
            offset = position(self._handle, partition)
        if offset != OFFSET_INVALID:
            return offset
        sought = self._positions.sought(partition)
        return OFFSET_INVALID if sought is None else sought

    def run_pending_seeks(self) -> None:
        """Move librdkafka to where partitions continue."""
        deadline = time.monotonic() + _SEEK_S_MAX
        while (target := self._positions.next_seek()) is not None and not self._is_closing():
            if self._is_rebalancing():
                # librdkafka cannot be polled inside a callback: the next call does it.
                return
            if seek(self._handle, *target):
                # An end that was reported before is the end of the fetch before the seek.
                self.ended.discard(target[0])
                self._positions.seek_done(*target)
                continue
            if time.monotonic() > deadline:
                topic = target[0].topic
                raise TimedOut(f"Seeking in {topic}: the partition was not ready in time.")
            self.serve(_SEEK_SLICE_S)
            self.raise_pending_error()

    def keep_error(self, error: BaseException) -> None:
        """Keep an error for the application's next call that can raise it."""
        if self.pending_error is None:
            self.pending_error = error
        else:
            _logger.warning("Another error before the application has seen the first: %s", error)

    def keep_first_error(self, error: BaseException) -> None:
        """Keep an error that librdkafka reports repeatedly, unless one is kept already."""
        if self.pending_error is None:
            self.pending_error = error

    def raise_pending_error(self) -> None:
        """Raise the error that was kept, if there is one."""
        if self.pending_error is not None and not self._is_rebalancing():
            error, self.pending_error = self.pending_error, None
            raise error

    def _receive(self, messages: list[Message]) -> None:
        self.accept(messages)
        self._after_poll()

    def _after_poll(self) -> None:
        self.raise_pending_error()
        self.run_pending_seeks()
