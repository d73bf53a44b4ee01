"""Transaction coordinators of other brokers, as those need them who admit batches.

A `Desk` is where partitions are added to a transaction or verified; the coordinator of this broker
is one. `Desks` finds that of a transactional id: the leader of its partition of the transactions
topic, as far as this broker knows. Other brokers are asked by AddPartitionsToTxn in the form that
brokers use among themselves, for many transactions at once.

Errors are the coordinator's own; NETWORK_EXCEPTION if it could not be asked or did not answer, and
COORDINATOR_NOT_AVAILABLE if nobody coordinates the id just now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from millstream.broker.link import Conversation, Links, known_code
from millstream.coordination.effects import Producer
from millstream.coordination.placement import partition_of
from millstream.metadata.catalog import Catalog
from millstream.metadata.record import NO_LEADER
from millstream.model.error import ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.reply import Reply, ReplyKind
from millstream.model.topic import TopicPartition
from millstream.transactions.coordinator import Coordinator
from millstream.transactions.placement import TRANSACTIONS_TOPIC
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TxnTopic,
)


class Desk(Protocol):
    """See `Coordinator`, whose methods these are."""

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        version: int,
        reply: Reply[Any],
    ) -> None: ...

    def verify_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        reply: Reply[Any],
    ) -> None: ...

    def flush(self, transactional_id: str) -> None: ...

    def when_ended(self, transactional_id: str, callback: Callable[[], None]) -> bool:
        """Call `callback` when the id has no transaction that is ending. False, and no call, where
        that can't be known: the coordinator has to be asked again."""
        ...


class Question(NamedTuple):
    """What is asked about one transaction. The reply gets a code for each partition."""

    transactional_id: str
    producer: Producer
    partitions: Sequence[TopicPartition]
    adds: bool
    reply: Reply[Any]


class Questions(Conversation[Question]):
    """The `Conversation` about transactions."""

    version = 5
    response = AddPartitionsToTxnResponse

    def request(self, items: Sequence[Question]) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnRequest.Transaction(
                    transactional_id=item.transactional_id,
                    producer_id=item.producer.producer_id,
                    producer_epoch=item.producer.epoch,
                    verify_only=not item.adds,
                    topics=_by_topic(item.partitions),
                )
                for item in items
            ]
        )

    def answer(self, items: Sequence[Question], response: Any) -> None:
        """Rows come in the order of the questions."""
        rows = response.results_by_transaction
        if response.error_code:
            for item in items:
                self.fail(item, known_code(response.error_code))
            return
        for place, item in enumerate(items):
            row = rows[place] if place < len(rows) else None
            codes = _codes(row) if row is not None else {}
            if codes.keys() == set(item.partitions):
                item.reply.deliver(codes)
            else:
                self.fail(item, ErrorCode.UNKNOWN_SERVER_ERROR)

    def fail(self, item: Question, code: ErrorCode) -> None:
        item.reply.fail(code)


class Desks:
    """Finds desks. Event loop only."""

    __slots__ = ("_catalog", "_failures", "_links", "_local", "_node_id")

    def __init__(
        self,
        node_id: int,
        catalog: Catalog,
        local: Coordinator,
        links: Links[Question],
        failures: CallbackFailures,
    ) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._local = local
        self._links = links
        self._failures = failures

    def of(self, transactional_id: str) -> Desk:
        topic = self._catalog.image.topic(TRANSACTIONS_TOPIC)
        leader = NO_LEADER
        if topic is not None:
            leader = topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader
        if leader == self._node_id:
            return self._local
        return _RemoteDesk(leader, self._links, self._failures)


class _RemoteDesk:
    """The coordinator on another broker, or none."""

    __slots__ = ("_failures", "_leader", "_links")

    def __init__(self, leader: int, links: Links[Question], failures: CallbackFailures) -> None:
        self._leader = leader
        self._links = links
        self._failures = failures

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        version: int,
        reply: Reply[Any],
    ) -> None:
        unanimous = _unanimous(reply, self._failures)
        self._ask(Question(transactional_id, producer, partitions, True, unanimous))

    def verify_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        reply: Reply[Any],
    ) -> None:
        unanimous = _unanimous(reply, self._failures)
        self._ask(Question(transactional_id, producer, partitions, False, unanimous))

    def _ask(self, question: Question) -> None:
        if self._leader == NO_LEADER:
            question.reply.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            self._links.put(self._leader, question)

    def flush(self, transactional_id: str) -> None:
        """It leaves at the end of this turn of the loop, together with others."""

    def when_ended(self, transactional_id: str, callback: Callable[[], None]) -> bool:
        return False


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
