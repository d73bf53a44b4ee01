"""The transaction coordinator of any transactional id, for the admission of partitions.

`TransactionCoordinators` finds the coordinator of an id: the leader of its partition of the
transactions topic, by this broker's metadata. The coordinator on this broker is called directly.
Another broker is sent AddPartitionsToTxn in the form that brokers use among themselves, for many
transactions at once, or AddPartitionsAfterEnd if the coordinator has to wait until a transaction
has ended.

Errors are the coordinator's own. The reply fails with NETWORK_EXCEPTION if the coordinator could
not be reached or did not respond, and with COORDINATOR_NOT_AVAILABLE if no broker coordinates the
id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from millstream.broker.peer_link import PeerApi, PeerLinks, known_code
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

#: How long the first query of a transaction waits if that of the previous transaction had to wait.
_FIRST_WAIT_MS: Final = 20
#: Transactional ids remembered because their queries had to wait.
_WAITED_MAX: Final = 10_000


class AdmittingCoordinator(Protocol):
    """The methods of `TransactionCoordinator` that admission uses."""

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


class AdmissionQuery(NamedTuple):
    """A request to add or verify partitions of one transaction; replies with a code for each."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: Sequence[TopicPartition]
    adds: bool
    reply: Reply[Any]
    #: How long the coordinator may wait for a transaction to end; only for `WaitingAdmissionApi`.
    wait_ms: int = 0


class AdmissionApi(PeerApi[AdmissionQuery]):
    """AddPartitionsToTxn, in the version for brokers."""

    version = 5
    response: ClassVar[type[Message]] = AddPartitionsToTxnResponse

    def request(self, items: Sequence[AdmissionQuery]) -> Message:
        return AddPartitionsToTxnRequest(transactions=[_row(item) for item in items])

    def complete(self, items: Sequence[AdmissionQuery], response: Any) -> None:
        if response.error_code:
            for item in items:
                self.fail(item, known_code(response.error_code))
        else:
            self._complete_rows(items, response.results_by_transaction)

    def _complete_rows(
        self,
        items: Sequence[AdmissionQuery],
        rows: Sequence[AddPartitionsToTxnResponse.Transaction],
    ) -> None:
        """Complete each item with its row. Rows have the order of the items."""
        for index, item in enumerate(items):
            row = rows[index] if index < len(rows) else None
            codes = _codes(row) if row is not None else {}
            if codes.keys() == set(item.partitions):
                item.reply.deliver(codes)
            else:
                self.fail(item, ErrorCode.UNKNOWN_SERVER_ERROR)

    def fail(self, item: AdmissionQuery, code: ErrorCode) -> None:
        item.reply.fail(code)


class WaitingAdmissionApi(AdmissionApi):
    """AddPartitionsAfterEnd: the coordinator waits until the previous transaction has ended."""

    version = 0
    response = AddPartitionsAfterEndResponse

    def request(self, items: Sequence[AdmissionQuery]) -> Message:
        return AddPartitionsAfterEndRequest(
            wait_ms=max(item.wait_ms for item in items),
            transactions=[_row(item) for item in items],
        )

    def complete(self, items: Sequence[AdmissionQuery], response: Any) -> None:
        self._complete_rows(items, response.results_by_transaction)


class AdmissionLinks(NamedTuple):
    """The links to coordinators on other brokers."""

    immediate: PeerLinks[AdmissionQuery]
    #: For queries that may wait, so that no other query queues behind them.
    waiting: PeerLinks[AdmissionQuery]


class TransactionCoordinators:
    """Finds the coordinator of a transactional id, on whichever broker. Event loop only."""

    __slots__ = ("_catalog", "_failures", "_links", "_local", "_node_id", "_waited")

    def __init__(
        self,
        node_id: int,
        catalog: Catalog,
        local: TransactionCoordinator,
        links: AdmissionLinks,
        failures: CallbackFailures,
    ) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._local = local
        self._links = links
        self._failures = failures
        #: Ids whose query had to wait for the end of a transaction, the latest last. Their next
        #: query will have to wait as well: such producers begin the next transaction at once.
        self._waited: dict[str, None] = {}

    def find(self, transactional_id: str) -> AdmittingCoordinator:
        """Return the coordinator; if there is none now, its replies fail."""
        topic = self._catalog.image.topic(TRANSACTIONS_TOPIC)
        leader = NO_LEADER
        if topic is not None:
            leader = topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader
        if leader == self._node_id:
            return self._local
        return _RemoteCoordinator(leader, self._links, self._waited, self._failures)


class _RemoteCoordinator:
    """The coordinator on another broker, or on none."""

    __slots__ = ("_failures", "_leader", "_links", "_waited")

    def __init__(
        self,
        leader: int,
        links: AdmissionLinks,
        waited: dict[str, None],
        failures: CallbackFailures,
    ) -> None:
        self._leader = leader
        self._links = links
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
        self._send(AdmissionQuery(transactional_id, producer, partitions, True, unanimous, wait_ms))

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
        self._send(AdmissionQuery(transactional_id, producer, partitions, True, unanimous, wait_ms))

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        reply: Reply[Any],
    ) -> None:
        unanimous = _unanimous(reply, self._failures)
        self._send(AdmissionQuery(transactional_id, producer, partitions, False, unanimous))

    def _send(self, query: AdmissionQuery) -> None:
        if self._leader == NO_LEADER:
            query.reply.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif query.wait_ms:
            self._links.waiting.put(self._leader, query)
        else:
            self._links.immediate.put(self._leader, query)

    def flush(self, transactional_id: str) -> None:
        """Do nothing: queries leave at the end of this turn of the loop."""


def _unanimous(reply: Reply[Any], failures: CallbackFailures) -> Reply[Any]:
    """Return a reply that turns an error common to all partitions into a failure of the whole, as
    the local coordinator does."""

    def deliver(codes: dict[TopicPartition, ErrorCode]) -> None:
        found = set(codes.values())
        if len(found) == 1 and ErrorCode.NONE not in found:
            reply.fail(found.pop())
        else:
            reply.deliver(codes)

    return Reply(ReplyKind.ADMISSION, failures, reply.fail, deliver)


def _row(query: AdmissionQuery) -> AddPartitionsToTxnRequest.Transaction:
    return AddPartitionsToTxnRequest.Transaction(
        transactional_id=query.transactional_id,
        producer_id=query.producer.producer_id,
        producer_epoch=query.producer.epoch,
        verify_only=not query.adds,
        topics=_by_topic(query.partitions),
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
