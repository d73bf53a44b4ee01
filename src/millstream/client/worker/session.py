"""One stretch of work: a consumer in the group, a producer, handlers, and the loop over them.

It ends when the worker stops, or with an error after which only a new consumer knows what is
committed; the worker then begins another one.

Before the first messages of a partition are added, the note beside its committed offset is read,
and a note with this worker's id is committed. A worker that finds that id later knows that this one
has died. The id is taken out when the partition is given up in order.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from millstream.client.consumer.consumer import RECORDS_MAX, Consumer
from millstream.client.error import ClientError, UsageError
from millstream.client.producer.producer import Producer
from millstream.client.record import Partition, Record
from millstream.client.worker.job_queue import Counts, Desk
from millstream.client.worker.offset_metadata import Note
from millstream.client.worker.plain_publisher import PlainMover
from millstream.client.worker.policy import WorkerSettings
from millstream.client.worker.publisher import Clients, Mover
from millstream.client.worker.runner import Handler, runner_for
from millstream.client.worker.transactional_publisher import TransactionMover

LOGGER: Final = logging.getLogger("millstream.client.worker")
_POLL_S: Final = 0.05
#: While messages start that notes name: the next may have to be named soon.
_CAREFUL_POLL_S: Final = 0.002
#: Before any message was seen, about the size of one.
_MESSAGE_BYTES_GUESS: Final = 64 * 1024
_MESSAGE_BYTES_MAX: Final = 1_000_000_000
#: A transaction is short; one left by a killed worker holds up readers until it times out. Records
#: are given up well before, while the transaction can still be aborted in order.
_TRANSACTION_S_MAX: Final = 20.0


class Session:
    def __init__(
        self,
        servers: str | None,
        group: str,
        topics: list[str],
        settings: WorkerSettings,
        handler: Handler,
        counts: Counts,
        owner: str,
        is_stopping: Callable[[], bool],
        repair: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._is_stopping = is_stopping
        self.desk = Desk(settings, group, counts, owner, is_stopping)
        #: Partitions whose messages may be added, and those whose first note is not committed.
        self._opened: set[Partition] = set()
        self._unmarked: set[Partition] = set()
        #: Whether the last turn wrote notes that careful messages waited for.
        self._is_noting = False
        self._message_bytes = float(_MESSAGE_BYTES_GUESS)
        self._paused: set[Partition] = set()
        #: Whether partitions went since the last poll began.
        self._has_changed = False
        self._is_closing = False
        self._producer = Producer(servers, **self._producer_options(group))
        options: dict[str, Any] = {
            **settings.consumer,
            "commit_interval_s": 0,
            "on_revoke": self._revoked,
            "on_lost": self._lost,
        }
        try:
            beside = [name for topic in topics for name in settings.topics_beside(topic)]
            self._consumer = Consumer(servers, group=group, topics=[*topics, *beside], **options)
        except BaseException:
            self._producer.close()
            raise
        make = TransactionMover if settings.transactional else PlainMover
        clients = Clients(self._consumer, self._producer, self.desk, repair)
        self._mover: Mover = make(clients, settings.interval_s)
        self._runner = runner_for(handler, self.desk, settings.concurrency)

    @property
    def assignment(self) -> frozenset[Partition]:
        return self._consumer.assignment

    @property
    def is_full(self) -> bool:
        return bool(self._paused)

    def run(self) -> None:
        self._runner.start()
        try:
            while not self._is_stopping():
                self._turn()
        except BaseException:
            self._abandon()
            raise
        self._drain()

    def _turn(self) -> None:
        self._has_changed = False
        wait_s = _CAREFUL_POLL_S if self._is_noting else _POLL_S
        records: Sequence[Record] = self._consumer.poll(self._count(), timeout_s=wait_s)
        if records:
            self._open(records)
        self._mark()
        self.desk.add(self._ours(records) if self._has_changed else records)
        self._runner.abandon(self.desk.tick())
        self._mover.step()
        self._take_notes()
        self._throttle()

    def _count(self) -> int:
        """How many messages to read at once, so that a partition's share has room for them."""
        share = self._settings.window_bytes / max(1, len(self._opened))
        return max(1, min(RECORDS_MAX, int(share / self._message_bytes)))

    def _open(self, records: Sequence[Record]) -> None:
        """Learn what the former workers of partitions that are new here have left."""
        size = sum(len(record.raw_value or b"") for record in records) / len(records)
        self._message_bytes = max(1.0, size, self._message_bytes / 2)
        firsts: dict[Partition, int] = {}
        for record in records:
            firsts.setdefault(Partition(record.topic, record.partition), record.offset)
        new = {each: first for each, first in firsts.items() if each not in self._opened}
        if not new:
            return
        committed = self._consumer.committed()
        for partition, first in new.items():
            offset = committed.get(partition)
            if offset is None or offset > first:
                # Nothing was committed, or for a log that was truncated since.
                self.desk.open(partition, first, Note())
            else:
                self.desk.open(partition, offset, Note.of(offset))
        self._opened.update(new)
        self._unmarked.update(new)

    def _mark(self) -> None:
        """Commit notes with this worker's id, before the first handler of a partition starts."""
        if self._unmarked and self._mover.note(set(self._unmarked)):
            self._unmarked.clear()

    def _take_notes(self) -> None:
        """Commit the notes that careful messages wait for."""
        partitions = self.desk.plan_notes()
        self._is_noting = bool(partitions)
        if partitions:
            self.desk.noted(is_committed=self._mover.note(partitions))

    def _ours(self, records: Iterable[Record]) -> list[Record]:
        """Those that were read just before their partition went are somebody else's."""
        mine = self._consumer.assignment
        return [each for each in records if (each.topic, each.partition) in mine]

    def _throttle(self) -> None:
        """Read no more of partitions of which enough is held."""
        full, roomy = self.desk.pressure()
        mine = self._consumer.assignment
        self._paused &= mine
        for partition in (full - self._paused) & mine:
            self._told(self._consumer.pause, partition)
            self._paused.add(partition)
        for partition in self._paused & roomy:
            self._told(self._consumer.resume, partition)
            self._paused.discard(partition)

    def _told(self, call: Callable[[str, int], None], partition: Partition) -> None:
        try:
            call(*partition)
        except UsageError as error:
            # It was taken away this very moment.
            LOGGER.debug("%s", error)

    # Partitions that go; called inside the consumer's poll

    def _revoked(self, _consumer: Consumer, partitions: list[Partition]) -> None:
        if not self._is_closing:
            self._finish(partitions)
        self._lost(_consumer, partitions)

    def _finish(self, partitions: list[Partition]) -> None:
        if not self.desk.drain(partitions, self._settings.drain_s):
            LOGGER.warning(
                "Handlers of %s did not end in %s s: others process their messages again.",
                ", ".join(f"{topic}-{number}" for topic, number in partitions),
                self._settings.drain_s,
            )
        try:
            self._settle_for_good(partitions)
        except ClientError as error:
            LOGGER.warning("%s", error)

    def _settle_for_good(self, partitions: Iterable[Partition]) -> None:
        """Commit what is finished, and that these partitions are given up in order."""
        mine = [partition for partition in partitions if partition in self._opened]
        self.desk.leave(mine)
        self._mover.settle(mine)

    def _lost(self, _consumer: Consumer, partitions: list[Partition]) -> None:
        self._has_changed = True
        self.desk.drop(partitions)
        self._mover.drop(partitions)
        for known in (self._paused, self._opened, self._unmarked):
            known.difference_update(partitions)

    # The end

    def _drain(self) -> None:
        """Start nothing more, wait for what runs, commit it, leave the group."""
        self.desk.drain(self.desk.partitions(), self._settings.drain_s)
        self.desk.close()
        self._runner.stop()
        try:
            self._settle_for_good(set(self._opened))
        finally:
            self._close()

    def _abandon(self) -> None:
        self.desk.close()
        self.desk.drop(self.desk.partitions())
        self._runner.stop()
        self._close()

    def _close(self) -> None:
        """What could be committed is: partitions go without more ado."""
        self._is_closing = True
        for client in (self._consumer, self._producer):
            try:
                client.close()
            except ClientError as error:
                LOGGER.warning("%s", error)

    def _producer_options(self, group: str) -> dict[str, Any]:
        options = self._settings.producer_options
        # How large a message may be is for its topic to say.
        limit = {"message.max.bytes": _MESSAGE_BYTES_MAX}
        options["config"] = limit | dict(options.get("config", {}))
        if self._settings.transactional:
            name = self._settings.name or uuid.uuid4().hex
            limits = {
                "transaction_timeout_s": _TRANSACTION_S_MAX,
                "delivery_timeout_s": _TRANSACTION_S_MAX / 2,
            }
            options = limits | options
            options |= {"transactional_id": f"{group}-{name}"}
        return options
