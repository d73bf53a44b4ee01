"""Reading a topic as a member of a group, and committing what was handed out.

At least once: the offsets of a batch are stored when the next one is asked for, that is when the
batch is printed. The client library commits what is stored every so often and before partitions go
to another member; `close` commits the rest. A batch whose partition was taken away meanwhile stays
uncommitted, and its new owner prints it again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.cli.support.failure import CommandError, no_connection
from millstream.cli.support.message import Message
from millstream.cli.support.reading import Reading
from millstream.env.termination import on_termination

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

    from millstream.cli.support.connection import Connection


class GroupReading(Reading):
    """One member's reading. Where it starts is the group's business; where it ends without
    following is the end of each partition when it was assigned."""

    __slots__ = ("_assigned", "_pending", "_watch_ends")

    def __init__(self, connection: Connection, consumer: Consumer, topic: str) -> None:
        super().__init__(connection, consumer, topic)
        #: The group has assigned something, be it nothing.
        self._assigned = False
        #: Assigned partitions whose end was not seen yet.
        self._pending: set[int] = set()
        self._watch_ends = False

    def subscribe(self, *, watch_ends: bool) -> None:
        """Join the group; `watch_ends` when reading stops at the ends."""
        self._choose(None)  # a topic that does not exist is told at once
        self._watch_ends = watch_ends
        self._consumer.subscribe(
            [self._topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    def messages(self, max_messages: int | None, no_follow: bool) -> Iterator[list[Message]]:
        """Batches as they come, until a limit is reached."""
        interrupted = threading.Event()
        # The first Ctrl-C waits for the end of the batch, so that no batch is printed and not
        # committed. The second one interrupts at once, for output that is stuck. A process in the
        # background that ignores interrupts goes on to ignore them.
        with on_termination(
            interrupted.set,
            signals=(signal.SIGINT,),
            interrupt_at_second=True,
            only_default=True,
        ):
            while max_messages is None or self.count < max_messages:
                if no_follow and self._assigned and not self._pending:
                    return
                if interrupted.is_set():
                    raise KeyboardInterrupt
                batch = self._next_batch(max_messages, self._pending if no_follow else None)
                if batch:
                    yield batch
                    self._store(batch)

    def close(self) -> None:
        """Commit what was printed and is not committed yet, and leave the group.

        The client library would wait for a lost broker without end, hence the thread.
        """
        failures: list[CommandError] = []
        leaving = threading.Thread(target=self._leave, args=(failures,), daemon=True)
        leaving.start()
        leaving.join(self._connection.timeout_s)
        if leaving.is_alive():
            reason = "what was printed last may not be committed, and be read again"
            raise no_connection(self._connection.servers, reason)
        if failures:
            raise failures[0]

    def _leave(self, failures: list[CommandError]) -> None:
        from confluent_kafka import KafkaError, KafkaException

        try:
            if self.count:
                self._consumer.commit(asynchronous=False)
        except KafkaException as exception:
            if exception.args[0].code() != KafkaError._NO_OFFSET:  # noqa: SLF001 - all committed
                what = "cannot commit what was printed, which will be read again"
                failures.append(self._connection.failure(exception, what))
        finally:
            self._consumer.close()

    def _store(self, batch: list[Message]) -> None:
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        for partition, offset in {m.partition: m.offset for m in batch}.items():
            try:
                self._consumer.store_offsets(
                    offsets=[TopicPartition(self._topic, partition, offset + 1)]
                )
            except KafkaException as exception:
                # Taken away since: not ours to commit any more.
                if exception.args[0].code() != KafkaError._STATE:  # noqa: SLF001
                    raise self._connection.failure(exception, "cannot commit") from None

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        from confluent_kafka import KafkaException

        self._assigned = True
        if not self._watch_ends:
            return
        try:
            for entry in partitions:
                self._ends[entry.partition] = self._consumer.get_watermark_offsets(
                    entry, timeout=self._connection.timeout_s
                )[1]
                self._pending.add(entry.partition)
        except KafkaException as exception:
            what = f"cannot find the offsets of {self._topic!r}"
            raise self._connection.failure(exception, what) from None

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._pending.difference_update(entry.partition for entry in partitions)
