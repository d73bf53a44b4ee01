"""The clients of a run: each a thread with an unmodified confluent-kafka client.

Clients continue through all faults, as an application with retries does, and record their
operations. `stop` makes a client finish its pending work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from harness.history import Assign, Outcome, Poll, Seen, Send
from nemesis.evidence import CommitEvent, Evidence, now_ns

#: Longer than the faults of any run, so that every record sent must be delivered.
DELIVERY_MS_MAX = 900_000
FLUSH_S_MAX = 120.0
_COMMIT_EVERY_S = 0.3
_OBSERVE_EVERY_S = 0.3
_UNSENT_MAX = 2000
_BATCH_MAX = 50
#: Short, so that clients notice a full disk soon.
_PADDING = bytes(400)
COMMON = {
    "log_level": 0,
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.refresh.interval.ms": 10_000,
}


def name_of(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


class Client(threading.Thread):
    """Runs `work` on a thread. An exception there is a violation and does not end the run."""

    def __init__(self, name: str, evidence: Evidence) -> None:
        super().__init__(name=name, daemon=True)
        self.evidence = evidence
        self.stopping = threading.Event()

    def stop(self) -> None:
        self.stopping.set()

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - it is part of the verdict
            self.evidence.violations.append(f"{self.name} failed: {error!r}")

    def work(self) -> None:
        raise NotImplementedError

    def saw(self, error: object) -> None:
        self.evidence.errors.append(f"{self.name}: {error}")


class Writer(Client):
    """An idempotent producer that waits for all replicas."""

    def __init__(
        self,
        name: str,
        evidence: Evidence,
        connection: Mapping[str, str],
        topic: str,
        partitions: int,
        pause_s: float,
    ) -> None:
        super().__init__(name, evidence)
        self._topic = topic
        self._partitions = partitions
        self._pause_s = pause_s
        self._unsent = 0
        self.acknowledged: list[Send] = []
        #: By partition: the offset after the last acknowledged record.
        self._ends = [0] * partitions
        self.gap_s_max = 0.0
        self._acknowledged_at = 0.0
        self._producer = Producer(
            {
                **COMMON,
                **connection,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "batch.num.messages": _BATCH_MAX,
                "message.timeout.ms": DELIVERY_MS_MAX,
                "error_cb": self._failed,
            }
        )

    def work(self) -> None:
        number = 0
        while not self.stopping.is_set():
            if self._unsent < _UNSENT_MAX:
                self._send(number)
                number += 1
            self._producer.poll(0)
            self.stopping.wait(self._pause_s)
        left = self._producer.flush(FLUSH_S_MAX)
        if left:
            self.evidence.violations.append(
                f"{self.name}: {left} records were neither acknowledged nor failed"
            )

    def _send(self, number: int) -> None:
        partition = number % self._partitions
        value = f"{self.name}:{number}"
        begin_ns = now_ns()

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self._unsent -= 1
            send = Send(name_of(self._topic, partition), value, None)
            if error is not None:
                self.saw(f"{value} was not delivered: {error}")
                self.evidence.add(self.name, Outcome.INFO, begin_ns, [send])
                return
            send = Send(send.partition, value, self._offset_of(message))
            self.acknowledged.append(send)
            self.evidence.add(self.name, Outcome.OK, begin_ns, [send])
            self._note_gap()

        self._unsent += 1
        self._producer.produce(
            self._topic,
            value,
            partition=partition,
            headers={"padding": _PADDING},
            on_delivery=on_delivery,
        )

    def _offset_of(self, message: Message) -> int | None:
        """Return the offset of a record, or None if it is unknown.

        For a duplicate batch whose offset the broker no longer knows (DUPLICATE_SEQUENCE_NUMBER),
        librdkafka counts from -1."""
        partition, offset = message.partition(), message.offset()
        if offset is None or offset < _BATCH_MAX <= self._ends[partition]:
            return None
        self._ends[partition] = max(self._ends[partition], offset + 1)
        return offset

    def _note_gap(self) -> None:
        now = time.monotonic()
        if self._acknowledged_at:
            self.gap_s_max = max(self.gap_s_max, now - self._acknowledged_at)
        self._acknowledged_at = now

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self.evidence.violations.append(f"{self.name}: fatal: {self._producer.fatal_error()}")


class Member(Client):
    """A group member that reads records and commits their offsets."""

    def __init__(
        self,
        name: str,
        evidence: Evidence,
        connection: Mapping[str, str],
        group: str,
        protocol: str,
        topic: str,
    ) -> None:
        super().__init__(name, evidence)
        self.group = group
        self._topic = topic
        settings = {
            **COMMON,
            **connection,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        if protocol == "classic":
            settings |= {
                "session.timeout.ms": 10_000,
                "partition.assignment.strategy": "cooperative-sticky",
            }
        self._consumer = Consumer(settings)
        #: Offsets to commit, by partition.
        self._read: dict[int, int] = {}

    def work(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        committed_at = time.monotonic()
        while not self.stopping.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error():
                self.saw(message.error())
            elif message is not None:
                self._record_message(message)
            if time.monotonic() > committed_at + _COMMIT_EVERY_S:
                self._commit()
                committed_at = time.monotonic()
        self._consumer.close()

    def _record_message(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        seen = {name_of(self._topic, partition): [Seen(offset, message.value().decode())]}
        # The read begins now: partitions may have been assigned during the wait.
        self.evidence.add(self.name, Outcome.OK, now_ns(), [Poll(seen, committed=False)])
        self._read[partition] = offset + 1

    def _assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        names = [name_of(each.topic, each.partition) for each in partitions]
        self.evidence.add(self.name, Outcome.OK, now_ns(), [Assign(names)])

    def _revoked(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._commit()
        self._forget(partitions)

    def _lost(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._forget(partitions)

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._read.pop(each.partition, None)

    def _commit(self) -> None:
        if not self._read:
            return
        wanted = [TopicPartition(self._topic, part, offset) for part, offset in self._read.items()]
        begin_ns = now_ns()
        try:
            committed = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            self.saw(f"commit: {error.args[0]}")
            return
        for each in committed:
            if each.error is not None:
                self.saw(f"commit of {each.partition}: {each.error}")
                continue
            if self._read.get(each.partition) == each.offset:
                del self._read[each.partition]
            self.evidence.commits.append(
                CommitEvent(
                    self.group,
                    name_of(self._topic, each.partition),
                    each.offset,
                    begin_ns,
                    now_ns(),
                    f"{self.name}'s commit",
                )
            )


class Observer(Client):
    """Fetches the committed offsets of a group repeatedly."""

    def __init__(
        self,
        name: str,
        evidence: Evidence,
        connection: Mapping[str, str],
        group: str,
        topic: str,
        partitions: int,
    ) -> None:
        super().__init__(name, evidence)
        self.group = group
        self.topic = topic
        #: The last committed offset found, by partition.
        self.latest: dict[str, int] = {}
        self._places = [TopicPartition(topic, number) for number in range(partitions)]
        self._consumer = Consumer({**COMMON, **connection, "group.id": group})

    def work(self) -> None:
        while not self.stopping.wait(_OBSERVE_EVERY_S):
            self.look()
        self._consumer.close()

    def look(self) -> None:
        begin_ns = now_ns()
        try:
            found = self._consumer.committed(self._places, timeout=5)
        except KafkaException:
            return
        for each in found:
            if each.error is None:
                name = name_of(each.topic, each.partition)
                offset = self.latest[name] = max(each.offset, 0)
                self.evidence.commits.append(
                    CommitEvent(self.group, name, offset, begin_ns, now_ns(), self.name)
                )


def read_all(
    connection: Mapping[str, str], topic: str, partitions: int, seconds_max: float
) -> Poll:
    """Return all committed records of every partition.

    The end offsets are fixed at the beginning. No transaction below them may stay open for longer
    than `seconds_max`."""
    consumer = Consumer(
        {
            **COMMON,
            **connection,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    places = [TopicPartition(topic, number, 0) for number in range(partitions)]
    ends = {each.partition: consumer.get_watermark_offsets(each, timeout=30)[1] for each in places}
    consumer.assign(places)
    seen: dict[str, list[Seen]] = {name_of(topic, number): [] for number in range(partitions)}
    unread = dict(ends)
    deadline = time.monotonic() + seconds_max
    while unread:
        assert time.monotonic() < deadline, f"{topic} was not read to its end: {unread}"
        message = consumer.poll(1.0)
        if message is None:
            continue
        number, error = message.partition(), message.error()
        if error is None:
            record = Seen(message.offset(), message.value().decode())
            seen[name_of(topic, number)].append(record)
        elif error.code() != KafkaError._PARTITION_EOF:
            raise AssertionError(f"reading {topic} failed: {error}")
        elif message.offset() >= unread.get(number, 0):
            unread.pop(number, None)
    consumer.close()
    return Poll(seen, {name_of(topic, number): end for number, end in ends.items()})
