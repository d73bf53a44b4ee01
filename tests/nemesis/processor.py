"""A client that reads from one topic and writes to another, exactly once: read-process-write.

Every input record becomes one output record, in a transaction that also commits the input offsets
of its group. A transaction that cannot be committed is aborted, and its input is read again. A
producer that was fenced, or has another fatal error, is replaced by a new one. An output record
names its input and the attempt: `writer-1:17@processor-0.4`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from harness.history import Assign, Outcome, Poll, Seen, Send, Step
from nemesis.client import COMMON, Client, name_of
from nemesis.evidence import Evidence, now_ns

#: The coordinator aborts an open transaction after this time.
TRANSACTION_MS_MAX = 20_000
_READ_S = 0.3
_READ_MAX = 50
_CALL_S_MAX = 30.0
_REST_S = 0.2
_START_S_MAX = 120.0


#: When it sends offsets, librdkafka (2.16 at least) waits for ever for a coordinator that has left
#: the metadata, unless one of its connections changes state. Closing idle connections causes that.
_RESTLESS = {
    "connections.max.idle.ms": 2000,
    "topic.metadata.refresh.interval.ms": 1000,
    "metadata.max.age.ms": 3000,
}


class _ReplaceError(Exception):
    """Raised when the producer must be replaced."""


class Processor(Client):
    """A member of a group of processors; `name` is also its transactional id."""

    def __init__(
        self,
        name: str,
        evidence: Evidence,
        connection: Mapping[str, str],
        group: str,
        inputs: str,
        outputs: str,
    ) -> None:
        super().__init__(name, evidence)
        self.group = group
        self._connection = connection
        self._input = inputs
        self._output = outputs
        self._attempts = 0
        #: Records for the next transaction: partition, offset and value.
        self._found: list[tuple[int, int, str]] = []
        self._consumer: Consumer
        self._producer: Producer

    def work(self) -> None:
        while not self.stopping.is_set():
            self._open()
            try:
                while not self.stopping.is_set():
                    self._step()
            except _ReplaceError as reason:
                self.saw(reason)
            finally:
                self._consumer.close()

    def _open(self) -> None:
        self._consumer = Consumer(
            {
                **COMMON,
                **self._connection,
                "group.id": self.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,
            }
        )
        self._producer = Producer(
            {
                **COMMON,
                **self._connection,
                "transactional.id": self.name,
                "transaction.timeout.ms": TRANSACTION_MS_MAX,
                # Below the transaction timeout, as the client requires.
                "message.timeout.ms": TRANSACTION_MS_MAX,
                "linger.ms": 5,
                **_RESTLESS,
            }
        )
        self._retried(lambda: self._producer.init_transactions(_CALL_S_MAX), _START_S_MAX)
        self._consumer.subscribe([self._input], on_assign=self._assigned)

    def _assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        # All partitions restart from the committed offsets, which do not include this batch.
        self._found.clear()
        self._note_positions(partitions)

    def _note_positions(self, partitions: Sequence[TopicPartition]) -> None:
        names = [name_of(each.topic, each.partition) for each in partitions]
        self.evidence.add(self.name, Outcome.OK, now_ns(), [Assign(names)])

    # One transaction

    def _step(self) -> None:
        read = self._read()
        if not read:
            return
        self._attempts += 1
        begin_ns = now_ns()
        seen: dict[str, list[Seen]] = {}
        sends: list[Send] = []
        for partition, offset, value in read:
            seen.setdefault(name_of(self._input, partition), []).append(Seen(offset, value))
            sends.append(Send(name_of(self._output, partition), self._made_of(value)))
        steps: list[Step] = [Poll(seen, group=self.group), *sends]
        outcome = Outcome.INFO
        try:
            outcome = self._transact(read)
        finally:
            # If `_transact` raised, the outcome is unknown.
            self.evidence.add(self.name, outcome, begin_ns, steps)
        if outcome is not Outcome.OK:
            self._rewind()

    def _made_of(self, value: str) -> str:
        return f"{value}@{self.name}.{self._attempts}"

    def _read(self) -> list[tuple[int, int, str]]:
        found = self._found
        deadline = time.monotonic() + _READ_S
        while len(found) < _READ_MAX and (left_s := deadline - time.monotonic()) > 0:
            message = self._consumer.poll(left_s)
            if message is None:
                continue
            if message.error():
                self.saw(message.error())
                continue
            found.append((message.partition(), message.offset(), message.value().decode()))
        self._found = []
        return found

    def _transact(self, read: list[tuple[int, int, str]]) -> Outcome:
        producer = self._producer
        offsets = {partition: offset + 1 for partition, offset, _ in read}
        positions = [TopicPartition(self._input, *each) for each in offsets.items()]
        try:
            producer.begin_transaction()
            for partition, _, value in read:
                producer.produce(self._output, self._made_of(value), partition=partition)
            group = self._consumer.consumer_group_metadata()
            self._retried(
                lambda: producer.send_offsets_to_transaction(positions, group, _CALL_S_MAX)
            )
            self._retried(lambda: producer.commit_transaction(_CALL_S_MAX))
        except KafkaException as problem:
            error: KafkaError = problem.args[0]
            if not error.txn_requires_abort():
                raise _ReplaceError(f"transaction: {error}") from problem
            self.saw(f"transaction: {error}")
            self._abort()
            return Outcome.FAIL
        return Outcome.OK

    def _abort(self) -> None:
        try:
            self._retried(lambda: self._producer.abort_transaction(_CALL_S_MAX))
        except KafkaException as problem:
            raise _ReplaceError(f"abort: {problem.args[0]}") from problem

    def _retried(self, call: Callable[[], object], seconds_max: float = _START_S_MAX) -> None:
        """Retry a call until it succeeds or fails with an error that is not retriable."""
        deadline = time.monotonic() + seconds_max
        while True:
            try:
                call()
            except KafkaException as problem:
                error: KafkaError = problem.args[0]
                if not error.retriable() or time.monotonic() > deadline:
                    raise
                time.sleep(_REST_S)
            else:
                return

    def _rewind(self) -> None:
        """Seek to the committed offsets of the group."""
        try:
            assigned = self._consumer.assignment()
            for place in self._consumer.committed(assigned, timeout=_CALL_S_MAX):
                if place.offset < 0:
                    place.offset = 0
                self._consumer.seek(place)
        except KafkaException as problem:
            raise _ReplaceError(f"rewind: {problem.args[0]}") from problem
        self._note_positions(assigned)
