"""Reads a topic as a group member, and commits printed messages.

Delivery is at least once: a batch counts as processed once the next one is polled, so a batch whose
output failed is printed again. The consumer commits periodically and before partitions move to
another member; `close` commits the rest.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from millstream.cli.support.connection import Connection
from millstream.cli.support.failure import no_connection
from millstream.cli.support.message import TextMessage
from millstream.cli.support.reading import Reading
from millstream.env.termination import on_termination

if TYPE_CHECKING:
    from millstream.client.record import Partition

_COMMIT_INTERVAL_S: Final = 1.0


class GroupReading(Reading):
    """Reads as one member. It starts at the group's committed offsets.

    With --no-follow it ends at the end offset that each partition had when it was assigned.
    """

    __slots__ = ("_assigned", "_failed", "_group", "_pending", "_watch_ends")

    def __init__(
        self, connection: Connection, topic: str, group: str, *, read_committed: bool
    ) -> None:
        super().__init__(connection, topic, read_committed=read_committed)
        self._group = group
        #: Whether the group has sent an assignment, which may be empty.
        self._assigned = False
        #: Assigned partitions that are not read to their end.
        self._pending: set[int] = set()
        self._watch_ends = False
        #: Whether the output of a batch failed.
        self._failed = False

    def subscribe(self, *, from_beginning: bool, watch_ends: bool) -> None:
        """Join the group; `watch_ends` if reading stops at the end offsets.

        A group without committed offsets starts at the beginning or at the end."""
        from millstream.client.consumer.consumer import Consumer

        self._choose(None)  # fails at once if the topic does not exist
        self._watch_ends = watch_ends
        with self._connection.failing(topic=self._topic):
            self._consumer = Consumer(
                self._connection.servers,
                topics=[self._topic],
                group_id=self._group,
                auto_offset_reset="earliest" if from_beginning else "latest",
                commit_interval=_COMMIT_INTERVAL_S,
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_revoke,
                config=self._config(),
            )

    def messages(self, max_messages: int | None, follow: bool) -> Iterator[list[TextMessage]]:
        """Yield batches as they arrive, until a limit is reached."""
        interrupted = threading.Event()
        # The first Ctrl-C waits for the end of the batch, so that no printed batch stays
        # uncommitted. The second interrupts at once, for output that is stuck. A background
        # process that ignores interrupts keeps ignoring them.
        with on_termination(
            interrupted.set,
            signals=(signal.SIGINT,),
            interrupt_at_second=True,
            only_default=True,
        ):
            while max_messages is None or self.count < max_messages:
                if not follow and self._assigned and not self._pending:
                    return
                if interrupted.is_set():
                    raise KeyboardInterrupt
                batch = self._next_batch(max_messages, None if follow else self._pending)
                if batch:
                    self._failed = True
                    yield batch
                    self._failed = False

    def close(self) -> None:
        """Commit printed messages that are not committed yet, and leave the group.

        The consumer would wait for a lost broker without a limit, so a thread does it.
        """
        failures: list[Exception] = []
        leaving = threading.Thread(target=self._leave, args=(failures,), daemon=True)
        leaving.start()
        leaving.join(self._connection.timeout_s)
        if leaving.is_alive():
            reason = "the last printed messages may be uncommitted, and will be read again"
            raise no_connection(self._connection.servers, reason)
        self._admin.close()
        if failures:
            raise self._connection.failure(failures[0])

    def _leave(self, failures: list[Exception]) -> None:
        from millstream.client.error import MillstreamError

        if self._consumer is None:
            return
        try:
            if self._failed:
                # The consumer does not commit the batch that it handed out last.
                self._consumer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
            else:
                self._consumer.close()
        except MillstreamError as error:
            failures.append(error)

    def _on_assign(self, _: Any, partitions: list[Partition]) -> None:
        self._assigned = True
        if not self._watch_ends:
            return
        numbers = [each.partition for each in partitions]
        self._ends.update(self._offsets(numbers, "latest"))
        self._pending.update(numbers)

    def _on_revoke(self, _: Any, partitions: list[Partition]) -> None:
        self._pending.difference_update(each.partition for each in partitions)
