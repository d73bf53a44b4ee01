"""One client process of the random workload, run as a program until it is killed.

    actor.py writer --bootstrap ... --name w1 --history w1.jsonl --seed 7 --transactional-id t1

- writer: transactions over random partitions of both topics. It aborts some, and some are fenced by
  a second producer with the same transactional id.
- mover: reads INPUT in a group and writes the records to OUTPUT, in one transaction.
- reader, watcher: read every partition from its start; committed records, or all records.

A `harness.history.Recorder` records each operation. An outcome is FAIL only if the client knows
that the transaction can never commit.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from harness.history import Assign, Outcome, Poll, Recorder, Seen, Send, Step

INPUT, OUTPUT = "input", "output"
PARTITIONS = {INPUT: 12, OUTPUT: 12}
TRANSACTION_TIMEOUT_MS = 3000
GROUP = "movers"

_CALL_SECONDS_MAX = 5.0
_INIT_ATTEMPTS_MAX = 20
_COMMIT_ATTEMPTS_MAX = 10
_ABORT_SHARE = 0.2
_ZOMBIE_SHARE = 0.05
_SENDS_MAX = 60
#: Share of sends after which the writer flushes. The other sends are pipelined.
_FLUSH_SHARE = 0.01
_POLL_RECORDS_MAX = 60
_POLL_SECONDS = 0.1
#: Errors that a client may get while the broker is down or restarts.
_PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
}


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def all_partitions() -> list[TopicPartition]:
    """Return all partitions, each at its start."""
    return [
        TopicPartition(topic, number, 0)
        for topic, count in PARTITIONS.items()
        for number in range(count)
    ]


def connection(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 100,
        # When all brokers are down, librdkafka 2.16 forgets them, but keeps the old coordinator of
        # a group: it then never sends offsets.
        "metadata.recovery.strategy": "none",
        "log_level": 0,
        "error_cb": lambda _error: None,
    }


def reader_settings(bootstrap: str, *, committed: bool) -> dict[str, Any]:
    return {
        **connection(bootstrap),
        "group.id": "none",
        "enable.auto.commit": False,
        # A position that is out of range means that records were lost.
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 50,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }


def seen_in(messages: Sequence[Message]) -> dict[str, list[Seen]]:
    """Return the records by partition; raise errors that a client must not get."""
    seen: dict[str, list[Seen]] = defaultdict(list)
    for message in messages:
        error = message.error()
        if error is None:
            partition = partition_name(message.topic(), message.partition())
            seen[partition].append(Seen(message.offset(), message.value().decode()))
        elif error.code() not in _PASSING:
            raise KafkaException(error)
    return dict(seen)


def tell(error: KafkaException) -> None:
    """Print the reason for a failed transaction to standard error."""
    sys.stderr.write(f"{error.args[0]!r}\n")
    sys.stderr.flush()


class TransactionalProducer:
    """A producer that is replaced by a new one with the same id after a fatal error."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._settings = {
            **connection(bootstrap),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
        self._producer = self._open()

    def _open(self) -> Producer:
        producer = Producer(self._settings)
        for _ in range(_INIT_ATTEMPTS_MAX):
            try:
                producer.init_transactions(_CALL_SECONDS_MAX)
            except KafkaException as error:
                if not error.args[0].retriable():
                    producer = Producer(self._settings)
            else:
                return producer
        raise TimeoutError("init_transactions did not succeed")

    def transact(
        self, sends: Sequence[Send], chance: random.Random, consumer: Consumer | None = None
    ) -> tuple[Outcome, list[Step]]:
        """Run one transaction, including the positions of `consumer` if there is one."""
        offsets: dict[str, int] = {}
        try:
            self._producer.begin_transaction()
            self._send(sends, chance, offsets)
            if consumer is not None:
                self._send_positions(consumer)
        except KafkaException as error:
            # The client never sent a commit.
            tell(error)
            self._producer = self._open()
            outcome = Outcome.FAIL
        else:
            outcome = self._end(chance)
        return outcome, [
            Send(send.partition, send.value, offsets.get(send.value)) for send in sends
        ]

    def _send(self, sends: Sequence[Send], chance: random.Random, offsets: dict[str, int]) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None and offset >= 0:
                offsets[message.value().decode()] = offset

        for send in sends:
            topic, _, number = send.partition.rpartition("-")
            self._producer.produce(topic, send.value, partition=int(number), on_delivery=delivered)
            if chance.random() < _FLUSH_SHARE:
                self._producer.flush(_CALL_SECONDS_MAX)

    def _send_positions(self, consumer: Consumer) -> None:
        positions = [each for each in consumer.position(consumer.assignment()) if each.offset >= 0]
        metadata = consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(positions, metadata, _CALL_SECONDS_MAX)

    def _end(self, chance: random.Random) -> Outcome:
        drawn = chance.random()
        if drawn < _ABORT_SHARE:
            self._abort()
            return Outcome.FAIL
        if drawn < _ABORT_SHARE + _ZOMBIE_SHARE:
            zombie, self._producer = self._producer, self._open()
            outcome, _ = self._commit(zombie)
            # The new producer has aborted the transaction before the commit was requested.
            return Outcome.FAIL if outcome is Outcome.INFO else outcome
        outcome, is_usable = self._commit(self._producer)
        if not is_usable:
            self._producer = self._open()
        return outcome

    def _abort(self) -> None:
        # Unsent records make librdkafka fail the next transaction as well.
        self._producer.flush(_CALL_SECONDS_MAX)
        try:
            self._producer.abort_transaction(_CALL_SECONDS_MAX)
        except KafkaException:
            self._producer = self._open()

    def _commit(self, producer: Producer) -> tuple[Outcome, bool]:
        """Return the outcome, and whether the producer can continue."""
        for _ in range(_COMMIT_ATTEMPTS_MAX):
            try:
                producer.commit_transaction(_CALL_SECONDS_MAX)
            except KafkaException as error:
                tell(error)
                if error.args[0].txn_requires_abort():
                    return Outcome.FAIL, False
                if not error.args[0].retriable():
                    break
            else:
                return Outcome.OK, True
        return Outcome.INFO, False


class Member:
    """A consumer of the group, and its assignment."""

    def __init__(self, bootstrap: str) -> None:
        self._moves: list[Step] = []
        self._is_disturbed = False
        self.consumer = Consumer(
            {
                **reader_settings(bootstrap, committed=True),
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 2000,
                "heartbeat.interval.ms": 200,
            }
        )
        self.consumer.subscribe(
            [INPUT], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        names = [partition_name(each.topic, each.partition) for each in partitions]
        self._moves.append(Assign(names))
        self._is_disturbed = True

    def _revoked(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._is_disturbed = True

    def take_moves(self) -> list[Step]:
        taken, self._moves = self._moves, []
        return taken

    def poll(self) -> list[Message] | None:
        """Return some records; None if a rebalance happened while they were read, so that their
        owner is unknown."""
        messages: list[Message] = []
        wait_seconds = _POLL_SECONDS
        while len(messages) < _POLL_RECORDS_MAX:
            self._is_disturbed = False
            message = self.consumer.poll(wait_seconds)
            if self._is_disturbed and messages:
                return None
            if message is None:
                break
            if seen_in([message]):
                messages.append(message)
            wait_seconds = 0
        return messages


class Actor:
    def __init__(self, options: argparse.Namespace, recorder: Recorder) -> None:
        self._options = options
        self._recorder = recorder
        self._chance = random.Random(options.seed)
        self._numbers = itertools.count()

    def _value(self) -> str:
        return f"{self._options.name}:{next(self._numbers)}"

    def _output(self) -> str:
        return partition_name(OUTPUT, self._chance.randrange(PARTITIONS[OUTPUT]))

    def _producer(self) -> TransactionalProducer:
        return TransactionalProducer(self._options.bootstrap, self._options.transactional_id)

    def write(self) -> None:
        producer = self._producer()
        partitions = [partition_name(each.topic, each.partition) for each in all_partitions()]
        while True:
            count = self._chance.randint(1, _SENDS_MAX)
            sends = [Send(self._chance.choice(partitions), self._value()) for _ in range(count)]
            self._recorder.begin(sends)
            self._recorder.end(*producer.transact(sends, self._chance))

    def move(self) -> None:
        producer = self._producer()
        while True:
            self._move_until_given_up(producer)

    def _move_until_given_up(self, producer: TransactionalProducer) -> None:
        """Move records until a transaction is not committed or a rebalance interrupts a poll.

        The position of the consumer is then ahead of the committed offset, so it is replaced."""
        member = Member(self._options.bootstrap)
        outcome = Outcome.OK
        while outcome is Outcome.OK:
            messages = member.poll()
            if messages is None:
                break
            if not messages:
                continue
            sends = [Send(self._output(), self._value()) for _ in messages]
            self._recorder.begin(sends)
            outcome, sent = producer.transact(sends, self._chance, member.consumer)
            poll = Poll(seen_in(messages), group=GROUP)
            self._recorder.end(outcome, [*member.take_moves(), poll, *sent])
        member.consumer.close()

    def read(self, *, committed: bool) -> None:
        consumer = Consumer(reader_settings(self._options.bootstrap, committed=committed))
        consumer.assign(all_partitions())
        while True:
            self._recorder.begin()
            seen = seen_in(consumer.consume(_POLL_RECORDS_MAX, _POLL_SECONDS))
            self._recorder.end(Outcome.OK, [Poll(seen, committed=committed)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["writer", "mover", "reader", "watcher"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--transactional-id", default="")
    options = parser.parse_args()
    with Recorder(options.history, options.name, time.monotonic_ns) as recorder:
        actor = Actor(options, recorder)
        match options.role:
            case "writer":
                actor.write()
            case "mover":
                actor.move()
            case "reader":
                actor.read(committed=True)
            case "watcher":
                actor.read(committed=False)


if __name__ == "__main__":
    main()
