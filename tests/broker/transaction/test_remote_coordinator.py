"""Admission and markers on other brokers: requests, responses, and the choice of the broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from groups.coordinator_home import ReplyResults
from millstream.broker.transaction.remote_admission import (
    AdmissionApi,
    AdmissionLinks,
    AdmissionQuery,
    TransactionCoordinators,
    WaitingAdmissionApi,
)
from millstream.broker.transaction.remote_marker import ClusterMarkers, MarkerApi, MarkerDelivery
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.metadata.cluster_record import PartitionRecord, TopicRecord
from millstream.metadata.image import ClusterImage
from millstream.model.error import ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.map import Map
from millstream.model.sentinel import NO_LEADER
from millstream.model.topic import TopicPartition
from millstream.transactions.state import Marker
from millstream.transactions.state_topic import TRANSACTIONS_TOPIC
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnResponse,
    TxnTopicResult,
)
from millstream.wire.messages.write_txn_markers import WriteTxnMarkersResponse

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
OWN, OTHER = 1, 2


class FakeLinks:
    def __init__(self) -> None:
        self.put_items: list[tuple[int, Any]] = []

    def put(self, broker_id: int, item: Any) -> None:
        self.put_items.append((broker_id, item))


def catalog(topic: str, *leaders: int) -> Any:
    partitions = tuple(
        PartitionRecord(replicas=(OWN, OTHER), leader=leader, leader_epoch=0, isr=(OWN, OTHER))
        for leader in leaders
    )
    record = TopicRecord(topic, bytes(16), partitions)
    return SimpleNamespace(image=ClusterImage(topics=Map({topic: record})))


def coordinators_of(
    view: Any, links: Any, waiting_links: Any = None, own: Any = None
) -> TransactionCoordinators:
    both = AdmissionLinks(links, waiting_links)
    return TransactionCoordinators(OWN, view, own, both, CallbackFailures())


def question(name: str, responses: ReplyResults, *partitions: TopicPartition) -> AdmissionQuery:
    return AdmissionQuery(
        name, ProducerIdAndEpoch(7, 3), partitions, name == "adds", responses.reply(name)
    )


def result(topic: str, **codes: int) -> TxnTopicResult:
    rows = [
        TxnTopicResult.Partition(partition_index=int(number[1:]), partition_error_code=code)
        for number, code in codes.items()
    ]
    return TxnTopicResult(name=topic, results_by_partition=rows)


def test_queries_of_many_transactions_share_a_request() -> None:
    responses = ReplyResults()
    items = [question("adds", responses, A0, A1, B0), question("asks", responses, A0)]
    request = AdmissionApi().request(items)
    first, second = request.transactions
    assert [(topic.name, topic.partitions) for topic in first.topics] == [("a", [0, 1]), ("b", [0])]
    assert (first.verify_only, second.verify_only) == (False, True)
    assert (first.producer_id, first.producer_epoch) == (7, 3)
    rows = [
        AddPartitionsToTxnResponse.Transaction(
            transactional_id="adds", topic_results=[result("a", _0=0, _1=0), result("b", _0=0)]
        ),
        AddPartitionsToTxnResponse.Transaction(
            transactional_id="asks", topic_results=[result("a", _0=48)]
        ),
    ]
    AdmissionApi().complete(items, AddPartitionsToTxnResponse(results_by_transaction=rows))
    assert responses.got == {
        "adds": dict.fromkeys((A0, A1, B0), ErrorCode.NONE),
        "asks": {A0: ErrorCode.INVALID_TXN_STATE},
    }


def test_a_response_for_other_partitions_is_an_error() -> None:
    responses = ReplyResults()
    items = [question("x", responses, A0), question("y", responses, B0)]
    row = AddPartitionsToTxnResponse.Transaction(
        transactional_id="x", topic_results=[result("b", _0=0)]
    )
    AdmissionApi().complete(items, AddPartitionsToTxnResponse(results_by_transaction=[row]))
    assert responses.got == dict.fromkeys("xy", ErrorCode.UNKNOWN_SERVER_ERROR)


def test_an_error_of_the_response_fails_every_query() -> None:
    responses = ReplyResults()
    items = [question("x", responses, A0)]
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    AdmissionApi().complete(items, AddPartitionsToTxnResponse(error_code=code))
    assert responses.got == {"x": code}


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({A0: ErrorCode.NONE, A1: ErrorCode.NONE}, None),
        (dict.fromkeys((A0, A1), ErrorCode.NOT_COORDINATOR), ErrorCode.NOT_COORDINATOR),
        ({A0: ErrorCode.NONE, A1: ErrorCode.INVALID_TXN_STATE}, None),
    ],
)
def test_a_remote_coordinator_replies_as_the_local_one(
    codes: dict[TopicPartition, ErrorCode], expected: ErrorCode | None
) -> None:
    links: Any = FakeLinks()
    responses = ReplyResults()
    coordinator = coordinators_of(catalog(TRANSACTIONS_TOPIC, OTHER), links).find("x")
    coordinator.verify_partitions("x", ProducerIdAndEpoch(7, 3), [A0, A1], responses.reply("x"))
    ((broker_id, item),) = links.put_items
    assert broker_id == OTHER
    item.reply.deliver(codes)
    assert responses.got["x"] == (codes if expected is None else expected)


def test_the_coordinator_is_the_leader_of_the_partition_of_the_id() -> None:
    links: Any = FakeLinks()
    own: Any = object()
    assert coordinators_of(catalog(TRANSACTIONS_TOPIC, OWN), links, own=own).find("x") is own
    for absent in (catalog(TRANSACTIONS_TOPIC, NO_LEADER), catalog("another")):
        responses = ReplyResults()
        coordinator = coordinators_of(absent, links).find("x")
        coordinator.add_partitions("x", ProducerIdAndEpoch(7, 3), [A0], 2, responses.reply("x"))
        assert responses.got == {"x": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert links.put_items == []


def delivery(
    producer_id: int, partition: TopicPartition, responses: ReplyResults
) -> MarkerDelivery:
    marker = Marker(ProducerIdAndEpoch(producer_id, 4), True, 2)
    return MarkerDelivery(marker, 9, partition, responses.reply(f"{producer_id} {partition}"))


def test_markers_for_a_broker_are_one_request() -> None:
    responses = ReplyResults()
    items = [delivery(7, A0, responses), delivery(7, A1, responses), delivery(8, A0, responses)]
    request = MarkerApi().request(items)
    first, second = request.markers
    assert [(topic.name, topic.partition_indexes) for topic in first.topics] == [("a", [0, 1])]
    assert (first.producer_id, first.producer_epoch, first.transaction_result) == (7, 4, True)
    assert (first.coordinator_epoch, first.transaction_version) == (9, 2)
    assert second.producer_id == 8
    topic = WriteTxnMarkersResponse.Marker.Topic
    rows = [
        topic.Partition(partition_index=0),
        topic.Partition(partition_index=1, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    row = WriteTxnMarkersResponse.Marker(producer_id=7, topics=[topic(name="a", partitions=rows)])
    MarkerApi().complete(items, WriteTxnMarkersResponse(markers=[row]))
    assert responses.got == {
        "7 a-0": None,
        # The other broker may not know the topic yet: its response decides nothing.
        "7 a-1": ErrorCode.NOT_LEADER_OR_FOLLOWER,
        "8 a-0": ErrorCode.UNKNOWN_SERVER_ERROR,
    }


def test_markers_go_to_the_leader_of_their_partition() -> None:
    links: Any = FakeLinks()
    sent: list[TopicPartition] = []
    local: Any = SimpleNamespace(send=lambda _marker, _epoch, partition, _: sent.append(partition))
    markers = ClusterMarkers(OWN, catalog("a", OWN, OTHER, NO_LEADER), local, links)
    responses = ReplyResults()
    marker = Marker(ProducerIdAndEpoch(7, 4), True, 2)
    for number in range(4):
        markers.send(marker, 9, TopicPartition("a", number), responses.reply(str(number)))
    assert sent == [A0]
    ((broker_id, item),) = links.put_items
    assert (broker_id, item.partition, item.coordinator_epoch) == (OTHER, A1, 9)
    assert responses.got == {
        "2": ErrorCode.LEADER_NOT_AVAILABLE,
        "3": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_queries_that_may_wait_have_links_of_their_own() -> None:
    links: Any = FakeLinks()
    waiting: Any = FakeLinks()
    responses = ReplyResults()
    coordinator = coordinators_of(catalog(TRANSACTIONS_TOPIC, OTHER), links, waiting).find("x")
    coordinator.add_partitions_after_end(
        "x", ProducerIdAndEpoch(7, 3), [A0], 2, responses.reply("x"), 0.5
    )
    assert links.put_items == []
    ((broker_id, item),) = waiting.put_items
    assert broker_id == OTHER
    assert WaitingAdmissionApi().request([item]).wait_ms == 500
    item.reply.deliver({A0: ErrorCode.CONCURRENT_TRANSACTIONS})
    assert responses.got == {"x": ErrorCode.CONCURRENT_TRANSACTIONS}


def test_an_id_that_had_to_wait_sends_its_next_query_by_the_waiting_links() -> None:
    links: Any = FakeLinks()
    waiting: Any = FakeLinks()
    coordinators = coordinators_of(catalog(TRANSACTIONS_TOPIC, OTHER), links, waiting)
    reply = ReplyResults().reply("x")
    coordinators.find("x").add_partitions_after_end(
        "x", ProducerIdAndEpoch(7, 3), [A0], 2, reply, 0.5
    )
    coordinators.find("x").add_partitions("x", ProducerIdAndEpoch(7, 4), [A0], 2, reply)
    coordinators.find("y").add_partitions("y", ProducerIdAndEpoch(8, 0), [A0], 2, reply)
    assert [item.transactional_id for _, item in waiting.put_items] == ["x", "x"]
    assert [item.transactional_id for _, item in links.put_items] == ["y"]
