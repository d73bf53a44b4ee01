"""Reads a topic as a group member, and commits printed messages.

Delivery is at least once. The reader stores the offsets of a batch once the batch is printed.
librdkafka commits stored offsets periodically and before partitions move to another member; `close`
commits the rest. If a partition was revoked before its batch was stored, the batch stays
uncommitted, and the partition's new owner prints it again.
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
    """Reads as one member. It starts at the group's committed offsets.

    With --no-follow it ends at the end offset that each partition had when it was assigned.
    """

    __slots__ = ("_assigned", "_pending", "_watch_ends")

    def __init__(self, connection: Connection, consumer: Consumer, topic: str) -> None:
        super().__init__(connection, consumer, topic)
        #: Whether the group has sent an assignment, which may be empty.
        self._assigned = False
        #: Assigned partitions that are not read to their end.
        self._pending: set[int] = set()
        self._watch_ends = False

    def subscribe(self, *, watch_ends: bool) -> None:
        """Join the group; `watch_ends` if reading stops at the end offsets."""
        self._choose(None)  # fails at once if the topic does not exist
        self._watch_ends = watch_ends
        self._consumer.subscribe(
            [self._topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    def messages(self, max_messages: int | None, no_follow: bool) -> Iterator[list[Message]]:
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
                if no_follow and self._assigned and not self._pending:
                    return
                if interrupted.is_set():
                    raise KeyboardInterrupt
                batch = self._next_batch(max_messages, self._pending if no_follow else None)
                if batch:
                    yield batch
                    self._store(batch)

    def close(self) -> None:
        """Commit printed messages that are not committed yet, and leave the group.

        librdkafka would wait for a lost broker without a limit, so a thread does it.
        """
        failures: list[CommandError] = []
        leaving = threading.Thread(target=self._leave, args=(failures,), daemon=True)
        leaving.start()
        leaving.join(self._connection.timeout_s)
        if leaving.is_alive():
            reason = "the last printed messages may be uncommitted, and will be read again"
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
                what = "cannot commit printed messages, which will be read again"
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
                # The partition was revoked, so this member cannot commit it.
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
            what = f"cannot look up the offsets of {self._topic!r}"
            raise self._connection.failure(exception, what) from None

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._pending.difference_update(entry.partition for entry in partitions)
