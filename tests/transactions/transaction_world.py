"""A transactional id with its log, partitions and producers, without any I/O.

The test decides when things happen: when records are committed, markers arrive or are lost, time
passes, and the coordinator restarts from its log. Producers behave like real ones. Fenced producers
keep trying to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition
from millstream.transactions import transaction_record as record
from millstream.transactions.state import (
    BUMPING_VERSION,
    EndRequest,
    Marker,
    TransactionEffects,
    TransactionMetadata,
    TransactionState,
)

TRANSACTIONAL_ID = "bank"
PARTITIONS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
TIMEOUT_MS = 1000

OK = ErrorCode.NONE
Reply = Callable[[Any], None]


class Refused(Exception):  # noqa: N818 - a response, not an error of the test
    """The partition rejects the batch or marker."""


class PartitionModel:
    """A model of the transaction handling of a partition log."""

    def __init__(self) -> None:
        #: (producer, value) or (producer, marker)
        self.entries: list[tuple[ProducerIdAndEpoch, Any]] = []
        self.epochs: dict[int, int] = {}
        self.open: set[int] = set()

    def has_open(self, producer: ProducerIdAndEpoch) -> bool:
        return producer.producer_id in self.open and (
            self.epochs.get(producer.producer_id) == producer.epoch
        )

    def write(self, producer: ProducerIdAndEpoch, value: Any) -> None:
        if producer.epoch < self.epochs.get(producer.producer_id, -1):
            raise Refused
        self.epochs[producer.producer_id] = producer.epoch
        self.open.add(producer.producer_id)
        self.entries.append((producer, value))

    def mark(self, marker: Marker) -> bool:
        """Append a marker; return False if the partition has seen a later epoch."""
        producer = marker.producer
        if producer.epoch < self.epochs.get(producer.producer_id, -1):
            return False
        self.epochs[producer.producer_id] = producer.epoch
        self.open.discard(producer.producer_id)
        self.entries.append((producer, marker))
        return True

    def outcomes(self) -> dict[Any, bool | None]:
        """Return for every value whether it was committed; None while its transaction is open."""
        found: dict[Any, bool | None] = {}
        waiting: dict[int, list[Any]] = {}
        for producer, entry in self.entries:
            values = waiting.setdefault(producer.producer_id, [])
            if isinstance(entry, Marker):
                found.update(dict.fromkeys(values, entry.is_commit))
                values.clear()
            else:
                assert entry not in found, "a value was written twice"
                found[entry] = None
                values.append(entry)
        return found


@dataclass
class Client:
    """A producer with the transactional id. Its transactions are numbered."""

    name: str
    version: int
    producer: ProducerIdAndEpoch | None = None
    serial: int = 0
    #: Idle, in a transaction, or ending one (True to commit) and waiting for the response.
    phase: str = "new"
    ends_with: bool = False
    is_waiting: bool = False
    added: set[TopicPartition] = field(default_factory=set)
    #: Acknowledged values, by transaction.
    acknowledged: dict[int, list[Any]] = field(default_factory=dict)
    #: Transactions that the producer tried to commit, and the results that it got.
    asked: set[int] = field(default_factory=set)
    ended: dict[int, bool] = field(default_factory=dict)
    #: All identities that the producer has had.
    past: list[ProducerIdAndEpoch] = field(default_factory=list)

    def become(self, producer: ProducerIdAndEpoch) -> None:
        if self.producer is not None:
            self.past.append(self.producer)
        self.producer = producer

    def start_over(self) -> None:
        """Start a new process with the same transactional id."""
        if self.producer is not None:
            self.past.append(self.producer)
        self.producer = None
        self.phase = "new"
        self.added.clear()
        self.serial += 1


class World:
    """The transactional id, its log, its partitions and its producers."""

    def __init__(self, version: int, client_versions: Sequence[int], first_epoch: int = -1) -> None:
        self.version = version
        self.clients = [
            Client(name, each) for name, each in zip("xyz", client_versions, strict=False)
        ]
        self.now_ms = 0
        self.partitions = {each: PartitionModel() for each in PARTITIONS}
        #: The committed records of the transactional id.
        self.log: list[tuple[bytes, bytes | None]] = []
        #: Effects whose records are not committed yet.
        self.pipeline: list[TransactionEffects] = []
        self.timer_ms: int | None = None
        #: Markers that are being sent.
        self.markers: list[tuple[Marker, TopicPartition]] = []
        self.transaction = TransactionMetadata(TRANSACTIONAL_ID, version)
        self.next_id = 100
        self.values = 0
        #: The newest identity that InitProducerId assigned; all earlier ones are fenced.
        self.fencing_order: list[int] = []
        self.newest: ProducerIdAndEpoch | None = None
        if first_epoch >= 0:
            self.transaction.producer_id, self.transaction.producer_epoch = 99, first_epoch
            self.fencing_order.append(99)

    # The coordinator

    def new_id(self) -> int:
        self.next_id += 1
        self.fencing_order.append(self.next_id)
        return self.next_id

    def ask(self, request: Callable[[Any], TransactionEffects], reply: Reply) -> None:
        """Send a request; `reply` is called with the response, at once if it is an error."""
        try:
            effects = request(reply)
        except BrokerError as error:
            reply(error.code)
            return
        self.carry_out(effects)

    def carry_out(self, effects: TransactionEffects) -> None:
        for _, due_ms in effects.timers:
            self.timer_ms = due_ms
        self.pipeline.append(effects)

    def commit_next(self) -> None:
        effects = self.pipeline.pop(0)
        self.log += effects.records
        for reply, response in effects.replies:
            reply(response)
        if effects.marker is not None:
            self.begin_markers(effects.marker)

    def begin_markers(self, marker: Marker) -> None:
        if not self.transaction.partitions:
            self.carry_out(self.transaction.marked(self.now_ms, None))
        self.markers += [(marker, each) for each in sorted(self.transaction.partitions)]

    def deliver_marker(self, place: int, *, is_acknowledged: bool = True) -> None:
        marker, partition = self.markers[place]
        self.partitions[partition].mark(marker)
        if is_acknowledged:
            del self.markers[place]
            self.carry_out(self.transaction.marked(self.now_ms, partition))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        if self.timer_ms is not None and self.timer_ms <= self.now_ms:
            self.timer_ms = None
            self.carry_out(self.transaction.expire(self.now_ms, ("timeout", "")))

    def crash(self) -> None:
        """Restart the coordinator: only committed records are left."""
        self.pipeline.clear()
        self.markers.clear()
        self.timer_ms = None
        self.transaction = TransactionMetadata(TRANSACTIONAL_ID, self.version)
        for _, encoded in self.log:
            value = record.decode_value(encoded)
            assert value is not None
            self.transaction.restore(value)
        self.carry_out(self.transaction.loaded(self.now_ms))
        for client in self.clients:
            client.is_waiting = False

    def finish_all(self) -> None:
        """Commit all pending records, and deliver all markers."""
        while self.pipeline or self.markers:
            while self.pipeline:
                self.commit_next()
            if self.markers:
                self.deliver_marker(0)

    # Producers

    def is_fenced(self, producer: ProducerIdAndEpoch) -> bool:
        """Whether a later producer has been initialised."""
        if self.newest is None:
            return False
        order = self.fencing_order
        return (order.index(producer.producer_id), producer.epoch) < (
            order.index(self.newest.producer_id),
            self.newest.epoch,
        )

    def start(self, client: Client, *, goes_on: bool) -> None:
        """Send InitProducerId; with `goes_on` the producer continues after an error (KIP-360)."""
        expected = client.producer if goes_on else None
        client.is_waiting = True

        def reply(response: Any) -> None:
            client.is_waiting = False
            if isinstance(response, ProducerIdAndEpoch):
                client.become(response)
                self.newest = response
                client.phase = "ready"
                client.added.clear()
                client.serial += 1
            elif response == ErrorCode.PRODUCER_FENCED:
                client.start_over()
            else:
                assert response == ErrorCode.CONCURRENT_TRANSACTIONS, response

        transaction = self.transaction
        epoch = None if expected is None else expected.epoch
        new_id = self.new_id() if transaction.needs_producer_id(epoch) else None
        self.ask(
            lambda token: transaction.init_producer(
                self.now_ms, TIMEOUT_MS, expected, new_id, token
            ),
            reply,
        )

    def add(self, client: Client, partition: TopicPartition) -> None:
        """Send AddPartitionsToTxn, as a classic producer does."""
        producer = client.producer
        assert producer is not None
        client.is_waiting = True

        def reply(response: Any) -> None:
            client.is_waiting = False
            if response is None:
                client.added.add(partition)
                client.phase = "in"
            elif response != ErrorCode.CONCURRENT_TRANSACTIONS:
                client.start_over()

        transaction = self.transaction
        self.ask(
            lambda token: transaction.add_partitions(self.now_ms, producer, [partition], 0, token),
            reply,
        )

    def write(self, client: Client, partition: TopicPartition) -> None:
        """Send Produce. The partition asks the coordinator to admit the first batch."""
        producer = client.producer
        assert producer is not None
        self.values += 1
        value = (client.name, client.serial, self.values)
        client.is_waiting = True

        def done(code: ErrorCode) -> None:
            client.is_waiting = False
            if code == OK:
                client.phase = "in"
                client.acknowledged.setdefault(client.serial, []).append(value)
            elif code != ErrorCode.CONCURRENT_TRANSACTIONS:
                client.start_over()

        self.produce(producer, client.version, partition, value, done)

    def produce(
        self,
        producer: ProducerIdAndEpoch,
        version: int,
        partition: TopicPartition,
        value: Any,
        done: Callable[[ErrorCode], None],
    ) -> None:
        model = self.partitions[partition]
        transaction = self.transaction

        def append() -> None:
            is_open = (
                transaction is self.transaction
                and transaction.state is TransactionState.ONGOING
                and transaction.producer == producer
                and partition in transaction.partitions
            )
            if not model.has_open(producer) and not is_open:
                done(ErrorCode.INVALID_TXN_STATE)
                return
            try:
                model.write(producer, value)
            except Refused:
                done(ErrorCode.INVALID_PRODUCER_EPOCH)
                return
            assert not self.is_fenced(producer), f"{producer} was fenced and wrote {value}"
            done(OK)

        def admitted(response: Any) -> None:
            if isinstance(response, dict):
                response = response[partition] or None
            if response is None:
                append()
            else:
                done(response)

        if model.has_open(producer):
            append()
        elif version >= BUMPING_VERSION:
            self.ask(
                lambda token: transaction.add_partitions(
                    self.now_ms, producer, [partition], version, token
                ),
                admitted,
            )
        else:
            self.ask(lambda token: self._verify(producer, partition, token), admitted)

    def _verify(
        self, producer: ProducerIdAndEpoch, partition: TopicPartition, token: Any
    ) -> TransactionEffects:
        codes = self.transaction.check_partitions(producer, [partition])
        return TransactionEffects(replies=[(token, codes)])

    def end(self, client: Client, *, is_commit: bool) -> None:
        producer = client.producer
        assert producer is not None
        client.phase, client.ends_with, client.is_waiting = "ending", is_commit, True
        if is_commit:
            client.asked.add(client.serial)

        def reply(response: Any) -> None:
            client.is_waiting = False
            if isinstance(response, ProducerIdAndEpoch):
                if client.version >= BUMPING_VERSION:
                    client.become(response)
                client.ended[client.serial] = is_commit
                client.serial += 1
                client.phase = "ready"
                client.added.clear()
            elif response != ErrorCode.CONCURRENT_TRANSACTIONS:
                client.start_over()

        transaction = self.transaction
        end = EndRequest(producer, is_commit, client.version)
        new_id = self.new_id() if transaction.needs_producer_id(producer.epoch) else None
        self.ask(lambda token: transaction.end(self.now_ms, end, new_id, token), reply)

    def write_late(
        self, client: Client, producer: ProducerIdAndEpoch, partition: TopicPartition
    ) -> None:
        """Produce as a zombie, or with a batch that was delayed."""
        self.values += 1
        value = ("late", client.name, producer, self.values)
        self.produce(producer, client.version, partition, value, lambda _: None)

    # Possible events

    def actions(self) -> list[Callable[[], None]]:
        """Return all actions that producers may do now."""
        found: list[Callable[[], None]] = []
        for client in self.clients:
            if not client.is_waiting:
                found += self._actions_of(client)
        return found

    def _actions_of(self, client: Client) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = [partial(self.start, client, goes_on=False)]
        if client.producer is not None:
            found.append(partial(self.start, client, goes_on=True))
        if client.phase in ("ready", "in"):
            if client.version < BUMPING_VERSION:
                found += [partial(self.add, client, each) for each in PARTITIONS]
                found += [partial(self.write, client, each) for each in sorted(client.added)]
            else:
                found += [partial(self.write, client, each) for each in PARTITIONS]
        if client.phase == "in":
            found += [partial(self.end, client, is_commit=each) for each in (True, False)] * 2
        if client.phase == "ending":
            found += [partial(self.end, client, is_commit=client.ends_with)] * 2
        past = {each for each in client.past if each != client.producer}
        if client.version < BUMPING_VERSION:
            # In the classic protocol only an initialisation fences.
            past = {each for each in past if self.is_fenced(each)}
        found += [
            partial(self.write_late, client, producer, PARTITIONS[0]) for producer in sorted(past)
        ]
        return found

    # Invariants

    def outcomes(self) -> dict[Any, bool | None]:
        found: dict[Any, bool | None] = {}
        for model in self.partitions.values():
            found.update(model.outcomes())
        return found

    def check(self) -> None:
        """Check that each transaction ends the same way in all partitions, and as its producer
        requested."""
        by_transaction: dict[Any, set[bool | None]] = {}
        for value, outcome in self.outcomes().items():
            if value[0] != "late":
                by_transaction.setdefault(value[:2], set()).add(outcome)
        for transaction, outcomes in by_transaction.items():
            assert not outcomes >= {True, False}, f"{transaction} was committed and aborted"
        for client in self.clients:
            committed = {
                serial
                for (name, serial), outcomes in by_transaction.items()
                if name == client.name and True in outcomes
            }
            assert committed <= client.asked, f"{client.name} did not ask for that commit"
        if self.log and not self.pipeline:
            self._check_log()

    def _check_log(self) -> None:
        replayed = TransactionMetadata(TRANSACTIONAL_ID, self.version)
        value = record.decode_value(self.log[-1][1])
        assert value is not None
        replayed.restore(value)
        for name in ("state", "producer", "next_producer_id", "timeout_ms", "start_ms"):
            assert getattr(replayed, name) == getattr(self.transaction, name), name
        assert replayed.partitions >= self.transaction.partitions

    def check_end(self) -> None:
        """Check the end state after all timeouts: no transaction is open, and the results that
        producers got are the results in the partitions."""
        self.finish_all()
        self.pass_time(TIMEOUT_MS + 1)
        self.finish_all()
        self.check()
        assert self.transaction.state in (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )
        outcomes = self.outcomes()
        assert None not in outcomes.values(), "a transaction hangs"
        for client in self.clients:
            for serial, is_commit in client.ended.items():
                for value in client.acknowledged.get(serial, ()):
                    assert outcomes[value] is is_commit, f"{client.name} was told otherwise"
        self._check_usable()

    def _check_usable(self) -> None:
        """Check that a new producer can commit a transaction."""
        client = Client("new", self.version)
        self.start(client, goes_on=False)
        self.finish_all()
        if client.version < BUMPING_VERSION:
            self.add(client, PARTITIONS[0])
            self.finish_all()
        self.write(client, PARTITIONS[0])
        self.finish_all()
        (value,) = client.acknowledged[client.serial]
        self.end(client, is_commit=True)
        self.finish_all()
        assert self.outcomes()[value] is True
