"""Transaction coordinators of other brokers, as those need them who admit batches.

A `Desk` is where partitions are added to a transaction or verified; the coordinator of this broker
is one. `Desks` finds that of a transactional id: the leader of its partition of the transactions
topic, as far as this broker knows. Other brokers are asked by AddPartitionsToTxn in the form that
brokers use among themselves, for many transactions at once; by AddPartitionsAfterEnd where the
coordinator is to wait for a transaction that is ending.

Errors are the coordinator's own; NETWORK_EXCEPTION if it could not be asked or did not answer, and
COORDINATOR_NOT_AVAILABLE if nobody coordinates the id just now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from millstream.broker.link import Conversation, Links, known_code
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.coordination.key_partition import partition_of
from millstream.metadata.catalog import Catalog
from millstream.model.error import ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.reply import Reply, ReplyKind
from millstream.model.sentinel import NO_LEADER
from millstream.model.topic import TopicPartition
from millstream.transactions.state_topic import TRANSACTIONS_TOPIC
from millstream.transactions.transaction_coordinator import TransactionCoordinator
from millstream.wire.messages.add_partitions_after_end import (
    AddPartitionsAfterEndRequest,
    AddPartitionsAfterEndResponse,
)
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TxnTopic,
)
from millstream.wire.schema import Message

#: Wait of a question that is expected to need one.
_FIRST_WAIT_MS: Final = 20
_WAITED_MAX: Final = 10_000


class Desk(Protocol):
    """See `TransactionCoordinator`, whose methods these are."""

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        version: int,
        reply: Reply[Any],
    ) -> None: ...

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        reply: Reply[Any],
    ) -> None: ...

    def add_partitions_after_end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        version: int,
        reply: Reply[Any],
        wait_s: float,
    ) -> None: ...

    def flush(self, transactional_id: str) -> None: ...


class Question(NamedTuple):
    """What is asked about one transaction. The reply gets a code for each partition."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: Sequence[TopicPartition]
    adds: bool
    reply: Reply[Any]
    #: How long the coordinator may wait for a transaction that is ending: `WaitingQuestions` only.
    wait_ms: int = 0


class Questions(Conversation[Question]):
    """The `Conversation` about transactions."""

    version = 5
    response: ClassVar[type[Message]] = AddPartitionsToTxnResponse

    def request(self, items: Sequence[Question]) -> Message:
        return AddPartitionsToTxnRequest(transactions=[_row(item) for item in items])

    def answer(self, items: Sequence[Question], response: Any) -> None:
        if response.error_code:
            for item in items:
                self.fail(item, known_code(response.error_code))
        else:
            self._answer_rows(items, response.results_by_transaction)

    def _answer_rows(
        self, items: Sequence[Question], rows: Sequence[AddPartitionsToTxnResponse.Transaction]
    ) -> None:
        """Rows come in the order of the questions."""
        for place, item in enumerate(items):
            row = rows[place] if place < len(rows) else None
            codes = _codes(row) if row is not None else {}
            if codes.keys() == set(item.partitions):
                item.reply.deliver(codes)
            else:
                self.fail(item, ErrorCode.UNKNOWN_SERVER_ERROR)

    def fail(self, item: Question, code: ErrorCode) -> None:
        item.reply.fail(code)


class WaitingQuestions(Questions):
    """The same, where the coordinator waits for transactions that are ending."""

    version = 0
    response = AddPartitionsAfterEndResponse

    def request(self, items: Sequence[Question]) -> Message:
        return AddPartitionsAfterEndRequest(
            wait_ms=max(item.wait_ms for item in items),
            transactions=[_row(item) for item in items],
        )

    def answer(self, items: Sequence[Question], response: Any) -> None:
        self._answer_rows(items, response.results_by_transaction)


class Desks:
    """Finds desks. Event loop only."""

    __slots__ = (
        "_catalog",
        "_failures",
        "_links",
        "_local",
        "_node_id",
        "_waited",
        "_waiting_links",
    )

    def __init__(
        self,
        node_id: int,
        catalog: Catalog,
        local: TransactionCoordinator,
        links: Links[Question],
        waiting_links: Links[Question],
        failures: CallbackFailures,
    ) -> None:
        """`waiting_links` are for questions that may wait; no other may wait behind them."""
        self._node_id = node_id
        self._catalog = catalog
        self._local = local
        self._links = links
        self._waiting_links = waiting_links
        self._failures = failures
        #: Ids that had to wait for the end of a transaction, the last one to do so last. They will
        #: have to again: their producers begin the next transaction at once.
        self._waited: dict[str, None] = {}

    def of(self, transactional_id: str) -> Desk:
        topic = self._catalog.image.topic(TRANSACTIONS_TOPIC)
        leader = NO_LEADER
        if topic is not None:
            leader = topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader
        if leader == self._node_id:
            return self._local
        return _RemoteDesk(leader, self._links, self._waiting_links, self._waited, self._failures)


class _RemoteDesk:
    """The coordinator on another broker, or none."""

    __slots__ = ("_failures", "_leader", "_links", "_waited", "_waiting_links")

    def __init__(
        self,
        leader: int,
        links: Links[Question],
        waiting_links: Links[Question],
        waited: dict[str, None],
        failures: CallbackFailures,
    ) -> None:
        self._leader = leader
        self._links = links
        self._waiting_links = waiting_links
        self._waited = waited
        self._failures = failures

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        version: int,
        reply: Reply[Any],
    ) -> None:
        wait_ms = _FIRST_WAIT_MS if transactional_id in self._waited else 0
        unanimous = _unanimous(reply, self._failures)
        self._ask(Question(transactional_id, producer, partitions, True, unanimous, wait_ms))

    def add_partitions_after_end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        version: int,
        reply: Reply[Any],
        wait_s: float,
    ) -> None:
        self._waited.pop(transactional_id, None)
        self._waited[transactional_id] = None
        if len(self._waited) > _WAITED_MAX:
            del self._waited[next(iter(self._waited))]
        wait_ms = max(int(wait_s * 1000), 1)
        unanimous = _unanimous(reply, self._failures)
        self._ask(Question(transactional_id, producer, partitions, True, unanimous, wait_ms))

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        reply: Reply[Any],
    ) -> None:
        unanimous = _unanimous(reply, self._failures)
        self._ask(Question(transactional_id, producer, partitions, False, unanimous))

    def _ask(self, question: Question) -> None:
        if self._leader == NO_LEADER:
            question.reply.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif question.wait_ms:
            self._waiting_links.put(self._leader, question)
        else:
            self._links.put(self._leader, question)

    def flush(self, transactional_id: str) -> None:
        """It leaves at the end of this turn of the loop, together with others."""


def _unanimous(reply: Reply[Any], failures: CallbackFailures) -> Reply[Any]:
    """For codes of partitions: an error that all of them have is that of the whole, as the local
    coordinator would tell it."""

    def deliver(codes: dict[TopicPartition, ErrorCode]) -> None:
        found = set(codes.values())
        if len(found) == 1 and ErrorCode.NONE not in found:
            reply.fail(found.pop())
        else:
            reply.deliver(codes)

    return Reply(ReplyKind.ADMISSION, failures, reply.fail, deliver)


def _row(question: Question) -> AddPartitionsToTxnRequest.Transaction:
    return AddPartitionsToTxnRequest.Transaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer.producer_id,
        producer_epoch=question.producer.epoch,
        verify_only=not question.adds,
        topics=_by_topic(question.partitions),
    )


def _by_topic(partitions: Sequence[TopicPartition]) -> list[TxnTopic]:
    topics: dict[str, TxnTopic] = {}
    for name, number in partitions:
        topics.setdefault(name, TxnTopic(name=name)).partitions.append(number)
    return list(topics.values())


def _codes(row: AddPartitionsToTxnResponse.Transaction) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, each.partition_index): known_code(each.partition_error_code)
        for topic in row.topic_results
        for each in topic.results_by_partition
    }
