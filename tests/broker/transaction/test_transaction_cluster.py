"""Transactions whose coordinator, partitions and groups are on different brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.in_process.server_set import ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import RawClient
from harness.raw.raw_transaction import (
    CLASSIC_END,
    CLASSIC_PRODUCE,
    GROUP,
    TRANSACTION,
    RawProducer,
    committed_values,
    fetch_offset,
    find_coordinator,
)
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.model.error import ErrorCode
from millstream.transactions.state_topic import TRANSACTIONS_TOPIC
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.produce import ProduceRequest
from millstream.wire.messages.txn_offset_commit import TxnOffsetCommitRequest

COORDINATOR, LEADER, GROUPS = 1, 2, 3
TOPIC = "orders"
pytestmark = pytest.mark.xdist_group("transaction_cluster")


class Routes:
    """A client of all brokers that sends each request of a transaction to the right broker."""

    def __init__(self, brokers: ServerSet) -> None:
        self.clients = {node_id: brokers.client(node_id) for node_id in brokers.servers}
        self.coordinator = COORDINATOR
        self.leader = LEADER

    def call(self, request: Any, version: int | None = None) -> Any:
        return self.clients[self._broker(request)].call(request, version)

    def _broker(self, request: Any) -> int:
        if isinstance(request, ProduceRequest):
            return self.leader
        return GROUPS if isinstance(request, TxnOffsetCommitRequest) else self.coordinator

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


class Scene:
    """Three brokers, a topic led by one, transactional ids and groups on the two others."""

    def __init__(self, brokers: ServerSet) -> None:
        self.brokers = brokers
        self.routes = Routes(brokers)
        self.anyone: RawClient = self.routes.clients[COORDINATOR]
        self.anyone.create_topic(TOPIC, 2, replication_factor=3)
        find_coordinator(self.anyone, "x")
        find_coordinator(self.anyone, "g", GROUP)
        for number in range(2):
            brokers.lead(TOPIC, number, LEADER)
        for number in range(3):
            brokers.lead(TRANSACTIONS_TOPIC, number, COORDINATOR)
            brokers.lead(OFFSETS_TOPIC, number, GROUPS)

    def producer(self, transactional_id: str) -> RawProducer:
        producer = RawProducer(self.routes, transactional_id)  # type: ignore[arg-type]
        retried(producer.try_init)
        return producer

    def values(self, partition: int = 0) -> list[bytes]:
        return committed_values(self.routes.clients[self.routes.leader], TOPIC, partition)

    def committed(self, group: str) -> int:
        offset, code = fetch_offset(self.routes.clients[GROUPS], group, TOPIC, stable=True)
        return offset if code == 0 else -2


def retried(step: Callable[[], int]) -> None:
    """Repeat a request as clients do, until it succeeds."""
    codes: list[int] = []

    def succeeds() -> bool:
        codes.append(step())
        return codes[-1] == 0

    wait_until(succeeds, "a step to succeed")
    assert set(codes) <= {
        ErrorCode.NONE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with ServerSet(tmp_path_factory.mktemp("brokers")) as brokers:
        scene = Scene(brokers)
        yield scene
        scene.routes.close()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("is_classic", [True, False])
def test_batches_and_offsets_of_one_transaction(
    scene: Scene, commit: bool, is_classic: bool
) -> None:
    name = f"{commit}-{is_classic}"
    before = len(scene.values())
    producer = scene.producer(name)
    group = f"group-{name}"
    if is_classic:
        assert producer.add(TOPIC, 0) == [0]
        assert producer.add_offsets(group) == 0
        versions = {"produce": CLASSIC_PRODUCE, "offsets": 4, "end": CLASSIC_END}
    else:
        versions = {"produce": 12, "offsets": 5, "end": 5}
    for value in (b"one", b"two"):
        assert producer.produce(TOPIC, value, version=versions["produce"]) == 0
    assert producer.commit_offset(group, TOPIC, 7, version=versions["offsets"]) == 0
    assert scene.values()[before:] == []
    assert scene.committed(group) == -2
    assert producer.end(commit=commit, version=versions["end"]) == 0
    wait_until(lambda: scene.committed(group) == (7 if commit else -1), "the offsets to be settled")
    expected = [b"one", b"two"] if commit else []
    wait_until(lambda: scene.values()[before:] == expected, "the markers")


def test_a_partition_that_was_not_added_is_rejected(scene: Scene) -> None:
    producer = scene.producer("not-added")
    assert producer.add(TOPIC, 1) == [0]
    code = producer.produce(TOPIC, b"x", version=CLASSIC_PRODUCE)
    assert code == ErrorCode.TRANSACTION_ABORTABLE
    assert producer.produce(TOPIC, b"x", version=10) == ErrorCode.INVALID_TXN_STATE
    code = producer.commit_offset("not-added", TOPIC, 1, version=4)
    assert code == ErrorCode.TRANSACTION_ABORTABLE


def test_a_fenced_producer_is_rejected(scene: Scene) -> None:
    old, new = scene.producer("fenced"), scene.producer("fenced")
    assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 1)
    assert old.produce(TOPIC, b"x") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.produce(TOPIC, b"x", version=CLASSIC_PRODUCE) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.commit_offset("fenced", TOPIC, 1) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_many_transactions_follow_each_other_at_once(scene: Scene) -> None:
    """Each transaction begins while markers of the previous one are pending."""
    before = len(scene.values())
    producer = scene.producer("many")
    for number in range(20):
        for partition in range(2):
            retried(partial(producer.produce, TOPIC, b"%d" % number, partition=partition))
        retried(partial(producer.end, commit=number % 2 == 0))
    expected = [b"%d" % number for number in range(0, 20, 2)]
    wait_until(lambda: scene.values()[before:] == expected, "all markers")


def test_a_coordinator_moves_with_its_transactions(scene: Scene) -> None:
    """The coordinator moves in every state of a transaction."""
    brokers, routes = scene.brokers, scene.routes
    before = len(scene.values())
    producer = scene.producer("moving")
    number = brokers.place(TRANSACTIONS_TOPIC, "moving")

    def move(to: int) -> None:
        brokers.lead(TRANSACTIONS_TOPIC, number, to)
        routes.coordinator = to

    try:
        move(GROUPS)
        retried(lambda: producer.produce(TOPIC, b"a"))
        move(LEADER)
        retried(lambda: producer.produce(TOPIC, b"b"))
        retried(lambda: producer.produce(TOPIC, b"b", partition=1))
        move(COORDINATOR)
        retried(lambda: producer.end(commit=True))
        move(LEADER)
        wait_until(lambda: scene.values()[before:] == [b"a", b"b"], "the markers")
        wait_until(lambda: scene.values(1)[-1:] == [b"b"], "the other marker")
        retried(lambda: producer.produce(TOPIC, b"c"))
        retried(lambda: producer.end(commit=False))
    finally:
        move(COORDINATOR)
    fresh = RawProducer(routes, "moving")  # type: ignore[arg-type]
    retried(fresh.try_init)
    assert fresh.producer_id == producer.producer_id
    assert fresh.epoch > producer.epoch


def test_a_broker_that_does_not_coordinate_says_so(scene: Scene) -> None:
    request = InitProducerIdRequest(transactional_id="elsewhere", transaction_timeout_ms=1000)
    response = scene.routes.clients[GROUPS].call(request)
    assert response.error_code == ErrorCode.NOT_COORDINATOR


def test_producer_ids_of_all_brokers_differ(scene: Scene) -> None:
    given = [
        client.call(InitProducerIdRequest(transaction_timeout_ms=1000)).producer_id
        for client in scene.routes.clients.values()
        for _ in range(5)
    ]
    assert len(set(given)) == len(given)
    # Each broker assigns ids from blocks of its own.
    assert len({producer_id // 1000 for producer_id in given}) == 3


def test_internal_topics_wait_for_the_brokers_that_are_set(tmp_path: Path) -> None:
    """Topics that were created with fewer replicas would never get more."""
    request = FindCoordinatorRequest(coordinator_keys=["x"], key_type=TRANSACTION)
    factor = {"transaction.state.log.replication.factor": "3"}
    with ServerSet(tmp_path, 2, **factor) as brokers, brokers.client(1) as client:
        (row,) = client.call(request).coordinators
        assert row.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "the replication factor is 3" in row.error_message
        brokers.start(3)
        retried(lambda: client.call(request).coordinators[0].error_code)
        (row,) = client.call(request).coordinators
        number = brokers.place(TRANSACTIONS_TOPIC, "x")
        record = brokers.record(TRANSACTIONS_TOPIC, number)
        assert len(record.replicas) == 3
        assert row.node_id == record.leader


def test_a_restart_of_the_coordinator_in_the_middle(tmp_path: Path) -> None:
    with ServerSet(tmp_path) as brokers:
        scene = Scene(brokers)
        producer = scene.producer("x")
        assert producer.produce(TOPIC, b"a") == 0
        assert producer.commit_offset("g", TOPIC, 5) == 0
        brokers.stop(COORDINATOR)
        number = brokers.place(TRANSACTIONS_TOPIC, "x")
        wait_until(lambda: brokers.record(TRANSACTIONS_TOPIC, number).leader > 1, "another leader")
        scene.routes.coordinator = brokers.record(TRANSACTIONS_TOPIC, number).leader
        wait_until(lambda: producer.end(commit=True) == 0, "the commit")
        wait_until(lambda: scene.values() == [b"a"], "the marker")
        wait_until(lambda: scene.committed("g") == 5, "the offset")
        brokers.start(COORDINATOR)
        scene.routes.close()
