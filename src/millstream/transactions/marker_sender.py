"""Sending a transaction's markers to its partitions until each has one.

Owns the retries of one round: from the committed decision to the last partition. How a marker
reaches a partition is the `MarkerSender`'s, so that it may be on this broker or on another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from millstream.model.error import ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.reply import Reply, ReplyKind
from millstream.model.topic import TopicPartition
from millstream.transactions.state import Marker

_logger = logging.getLogger(__name__)

#: Rest before a marker that could not be written is sent again: short at first, as most failures
#: end when the metadata have reached everybody, and longer for a partition that has no leader.
_RETRY_S: Final = 0.05
_RETRY_S_MAX: Final = 1.0
_DOUBLINGS_MAX: Final = 10

#: After these nothing is left to mark: the partition is gone for good, or it has seen a later epoch
#: of the producer, which exists only once this transaction was ended there.
_SETTLED: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH)


class MarkerSender(Protocol):
    """Writes a marker into a partition, wherever its leader is."""

    def send(
        self, marker: Marker, coordinator_epoch: int, partition: TopicPartition, reply: Reply[None]
    ) -> None:
        """The reply gets None once the marker is committed. It fails with
        UNKNOWN_TOPIC_OR_PARTITION only if the partition exists no more, and with
        TRANSACTION_COORDINATOR_FENCED if a later coordinator was seen."""
        ...


class MarkerRound:
    """One round. `on_marked` is told each partition that is done, as long as it is not closed."""

    __slots__ = (
        "_coordinator_epoch",
        "_failures",
        "_is_closed",
        "_marker",
        "_on_marked",
        "_sender",
    )

    def __init__(
        self,
        marker: Marker,
        coordinator_epoch: int,
        sender: MarkerSender,
        on_marked: Callable[[TopicPartition], None],
        failures: CallbackFailures,
    ) -> None:
        self._marker = marker
        self._coordinator_epoch = coordinator_epoch
        self._sender = sender
        self._on_marked = on_marked
        self._failures = failures
        self._is_closed = False

    def close(self) -> None:
        """The shard is closed: whoever leads it now sends the markers again."""
        self._is_closed = True

    def send(self, partition: TopicPartition, failures: int = 0) -> None:
        """Send until it is there; `failures`: how often that was tried in vain."""
        if self._is_closed:
            return
        reply: Reply[None] = Reply(
            ReplyKind.TRANSACTION_MARKER,
            self._failures,
            lambda code: self._failed(partition, code, failures),
            lambda _: self._done(partition),
        )
        reply.run(
            lambda: self._sender.send(self._marker, self._coordinator_epoch, partition, reply)
        )

    def _done(self, partition: TopicPartition) -> None:
        if not self._is_closed:
            self._on_marked(partition)

    def _failed(self, partition: TopicPartition, code: ErrorCode, failures: int) -> None:
        if code in _SETTLED:
            _logger.info(
                "%s needs no marker of %s: %s", partition, self._marker.producer, code.name
            )
            self._done(partition)
        elif code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            # The later coordinator has the same decision in its log, and sends it.
            _logger.warning("a later coordinator than this one sends the markers of %s", partition)
            self.close()
        else:
            rest_s = min(_RETRY_S * 2 ** min(failures, _DOUBLINGS_MAX), _RETRY_S_MAX)
            asyncio.get_running_loop().call_later(rest_s, self.send, partition, failures + 1)
