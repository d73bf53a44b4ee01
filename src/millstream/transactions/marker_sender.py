"""Sends a transaction's markers until every partition has one.

Owns the retries of one round: from the committed decision to the last partition. A `MarkerSender`
delivers a marker to a partition on this broker or another.
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

#: Delay before a marker is retried. It is short at first, because most failures end once brokers
#: have the new metadata, and longer for a partition without a leader.
_RETRY_S: Final = 0.05
_RETRY_S_MAX: Final = 1.0
_DOUBLINGS_MAX: Final = 10

#: With these codes the partition needs no marker: it was deleted, or it has seen a later epoch of
#: the producer, which implies that this transaction has ended there.
_NO_MARKER_NEEDED: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH)


class MarkerSender(Protocol):
    """Appends a marker to a partition, on whichever broker leads it."""

    def send(
        self, marker: Marker, coordinator_epoch: int, partition: TopicPartition, reply: Reply[None]
    ) -> None:
        """Send a marker; the reply gets None once it is committed.

        The reply fails with UNKNOWN_TOPIC_OR_PARTITION only if the partition was deleted, and with
        TRANSACTION_COORDINATOR_FENCED if the partition has seen a later coordinator."""
        ...


class MarkerRound:
    """The markers of one transaction. Calls `on_marked` for each partition, until it is closed."""

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
        """Stop sending: the shard is closed, and its new leader sends the markers."""
        self._is_closed = True

    def send(self, partition: TopicPartition, failures: int = 0) -> None:
        """Send the marker, and retry until it succeeds. `failures` counts failed attempts."""
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
        if code in _NO_MARKER_NEEDED:
            _logger.info(
                "%s needs no marker of %s: %s", partition, self._marker.producer, code.name
            )
            self._done(partition)
        elif code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            # The later coordinator has the same decision in its log, and sends the markers.
            _logger.warning("a later coordinator sends the markers of %s", partition)
            self.close()
        else:
            delay_s = min(_RETRY_S * 2 ** min(failures, _DOUBLINGS_MAX), _RETRY_S_MAX)
            asyncio.get_running_loop().call_later(delay_s, self.send, partition, failures + 1)
