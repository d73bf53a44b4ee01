"""The order of a transactional producer's requests: the queue by itself, and raw requests to a
broker whose transaction coordinator decides when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from broker.transaction.test_transaction_cluster import LEADER, TOPIC, Scene, retried
from harness.in_process.server_set import ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import produce_request
from harness.raw.raw_transaction import CLASSIC_END, CLASSIC_PRODUCE
from millstream.broker.transaction.remote_admission import AdmittingCoordinator
from millstream.broker.transaction.transaction_queue import QueueKey, TransactionQueues
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply
from millstream.model.topic import TopicPartition
from millstream.wire.messages.produce import ProduceRequest

KEY = QueueKey("x", ProducerIdAndEpoch(7, 0))


class Request:
    """A request whose coordinator decides at once, or when `decide` is called."""

    def __init__(
        self, name: str, done: list[str], *, at_once: bool = False, size: int = 10
    ) -> None:
        self.name = name
        self.size = size
        self.at_once = at_once
        self.decide: Callable[[], None] | None = None
        self.leave: Callable[[], None] | None = None
        self.then: Callable[[], None] = lambda: None
        self._done = done

    def request_admission(self, decided: Callable[[], None]) -> None:
        if self.at_once:
            decided()
        else:
            self.decide = decided

    def copy_batches(self, leave: Callable[[], None]) -> None:
        self.leave = leave

    def finish(self) -> None:
        self._done.append(self.name)
        self.then()


def test_requests_are_finished_in_their_order() -> None:
    queues, done = TransactionQueues(1000), []
    first, second = Request("first", done), Request("second", done)
    third = Request("third", done, at_once=True)
    assert not any(queues.may_append(KEY, each) for each in (first, second, third))
    assert second.decide is None
    assert first.decide is not None
    first.decide()
    assert done == ["first"]
    assert second.decide is not None
    second.decide()
    assert done == ["first", "second", "third"]
    assert (len(queues), queues.waiting_bytes) == (0, 0)


def test_a_request_that_is_decided_at_once_does_not_wait() -> None:
    queues, done = TransactionQueues(1000), []
    assert queues.may_append(KEY, Request("only", done, at_once=True))
    assert (len(queues), done) == (0, [])


def test_producers_and_epochs_do_not_wait_for_each_other() -> None:
    queues, done = TransactionQueues(1000), []
    assert not queues.may_append(KEY, Request("waits", done))
    for key in (QueueKey("y", KEY.producer), QueueKey("x", ProducerIdAndEpoch(7, 1))):
        assert queues.may_append(key, Request("other", done, at_once=True))


def test_a_request_that_comes_while_the_head_is_finished_joins() -> None:
    queues, done = TransactionQueues(1000), []
    head, late = Request("head", done), Request("late", done, at_once=True)
    assert not queues.may_append(KEY, head)
    head.then = lambda: done.append(f"joined {not queues.may_append(KEY, late)}")
    assert head.decide is not None
    head.decide()
    assert done == ["head", "joined True", "late"]
    assert len(queues) == 0


def test_a_request_whose_client_left_gives_its_room_back() -> None:
    queues, done = TransactionQueues(1000), []
    head, gone, last = (Request(name, done) for name in ("head", "gone", "last"))
    for each in (head, gone, last):
        queues.may_append(KEY, each)
    assert gone.leave is not None
    assert head.decide is not None
    gone.leave()
    assert queues.waiting_bytes == 2 * last.size
    head.decide()
    assert done == ["head"]
    assert last.decide is not None
    assert gone.decide is None


def test_waiting_requests_are_bounded() -> None:
    queues, done = TransactionQueues(15), []
    assert queues.has_room(100)
    queues.may_append(KEY, Request("large", done, size=100))
    assert not queues.has_room(1)


class HeldCoordinator:
    """A coordinator that delays requests until the test releases them."""

    def __init__(self, coordinator: AdmittingCoordinator) -> None:
        self._coordinator = coordinator
        self._is_open = False
        #: Requests without a reply, oldest first.
        self.questions: list[Callable[[ErrorCode], None]] = []
        #: Requests that wait for the end of the previous transaction.
        self.after_end: list[Callable[[], None]] = []

    def open(self) -> None:
        """Release all requests from now on; the waiting ones newest first."""
        self._is_open = True
        while self.questions:
            self.questions.pop()(ErrorCode.NONE)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        version: int,
        reply: Reply[Any],
    ) -> None:
        def ask() -> None:
            self._coordinator.add_partitions(transactional_id, producer, partitions, version, reply)
            self._coordinator.flush(transactional_id)

        self._hold(ask, reply)

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        reply: Reply[Any],
    ) -> None:
        def ask() -> None:
            self._coordinator.verify_partitions(transactional_id, producer, partitions, reply)
            self._coordinator.flush(transactional_id)

        self._hold(ask, reply)

    def _hold(self, ask: Callable[[], None], reply: Reply[Any]) -> None:
        if self._is_open:
            ask()
        else:
            self.questions.append(
                lambda code: ask() if code == ErrorCode.NONE else reply.fail(code)
            )

    def flush(self, transactional_id: str) -> None: ...

    def add_partitions_after_end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        version: int,
        reply: Reply[Any],
        wait_s: float,
    ) -> None:
        self.after_end.append(
            lambda: self.add_partitions(transactional_id, producer, partitions, version, reply)
        )


class Stage:
    """The cluster of `Scene`, and a producer whose coordinator is a `HeldCoordinator`."""

    def __init__(self, scene: Scene, transactional_id: str, version: int) -> None:
        self.scene = scene
        self.version = version
        self.client = scene.brokers.client(LEADER)
        self.services = scene.brokers.services(LEADER)
        self.producer = scene.producer(transactional_id)
        if self.is_classic:
            assert self.producer.add(TOPIC, 0, 1) == [0, 0]
        self.before = len(scene.values())
        self._found = self.services.transaction_coordinators
        self.coordinator = HeldCoordinator(self._found.find(transactional_id))
        self.services.transaction_coordinators = self  # type: ignore[assignment]

    @property
    def is_classic(self) -> bool:
        return self.version == CLASSIC_PRODUCE

    def find(self, transactional_id: str) -> HeldCoordinator:
        return self.coordinator

    def close(self) -> None:
        self.services.transaction_coordinators = self._found
        self.client.close()

    def request(self, *partitions: int) -> ProduceRequest:
        """Return a request with the producer's next batch for each partition."""
        rows = []
        for partition in partitions:
            place = (TOPIC, partition)
            sequence = self.producer.sequences.get(place, 0)
            batch = self.producer.batch(TOPIC, b"%d" % sequence, partition=partition)
            self.producer.sequences[place] = sequence + 1
            rows.append(ProduceRequest.Topic.Partition(index=partition, records=batch))
        request = produce_request(TOPIC, b"", 0)
        request.topic_data[0].partition_data = rows
        request.transactional_id = self.producer.transactional_id
        return request

    def send(self, *requests: ProduceRequest) -> None:
        self.client.send_together(requests, self.version)

    def response(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Reply to the request that has waited longest."""
        brokers, questions = self.scene.brokers, self.coordinator.questions
        wait_until(lambda: brokers.ask(lambda: bool(questions)), "a question")
        brokers.ask(lambda: questions.pop(0)(code))

    def open(self) -> None:
        self.scene.brokers.ask(self.coordinator.open)

    def receive(self, count: int) -> list[list[int]]:
        """Return the error codes of so many responses."""
        responses = [self.client.receive() for _ in range(count)]
        return [
            [row.error_code for topic in response.responses for row in topic.partition_responses]
            for response in responses
        ]

    def committed(self) -> list[bytes]:
        """Commit, and return the records that the transaction wrote to partition 0."""
        self.open()
        expected = self.producer.sequences[(TOPIC, 0)]
        retried(
            lambda: self.producer.end(commit=True, version=CLASSIC_END if self.is_classic else 5)
        )
        scene = self.scene
        wait_until(lambda: len(scene.values()) - self.before >= expected, "the marker")
        return scene.values()[self.before :]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with ServerSet(tmp_path_factory.mktemp("brokers")) as brokers:
        scene = Scene(brokers)
        yield scene
        scene.routes.close()


@pytest.fixture(params=[12, CLASSIC_PRODUCE], ids=["version-2", "classic"])
def stage(scene: Scene, request: pytest.FixtureRequest) -> Iterator[Stage]:
    name = f"{request.node.name}"
    stage = Stage(scene, name, request.param)
    yield stage
    stage.close()


def test_a_request_does_not_overtake_one_whose_admission_is_retried(stage: Stage) -> None:
    """The previous transaction is still ending; the second request is not admitted first."""
    stage.send(stage.request(0), stage.request(0))
    if not stage.is_classic:
        stage.response(ErrorCode.CONCURRENT_TRANSACTIONS)
        assert len(stage.coordinator.after_end) == 1
        stage.open()
        stage.scene.brokers.ask(stage.coordinator.after_end[0])
    else:
        stage.open()
    assert stage.receive(2) == [[0], [0]]
    assert stage.committed() == [b"0", b"1"]


def test_a_request_of_open_partitions_does_not_overtake_one_with_a_new_one(stage: Stage) -> None:
    stage.send(stage.request(0))
    stage.response()
    assert stage.receive(1) == [[0]]
    stage.send(stage.request(0, 1), stage.request(0))
    stage.open()
    assert stage.receive(2) == [[0, 0], [0]]
    assert stage.committed() == [b"0", b"1", b"2"]


def test_a_request_without_admission_does_not_overtake_requests_with_one(stage: Stage) -> None:
    """The batch of the first request opens the transaction while the second request waits."""
    stage.send(stage.request(0), stage.request(0))
    stage.response()
    stage.send(stage.request(0))
    first = stage.receive(1)
    stage.open()
    assert first + stage.receive(2) == [[0], [0], [0]]
    assert stage.committed() == [b"0", b"1", b"2"]


def test_nothing_is_appended_behind_a_batch_that_was_rejected(stage: Stage) -> None:
    """Otherwise the retry of the first batch would count as a duplicate, and be lost."""
    first, second = stage.request(0), stage.request(0)
    stage.send(first, second)
    stage.response(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    stage.open()
    assert stage.receive(2) == [[ErrorCode.NOT_ENOUGH_REPLICAS]] * 2
    stage.send(first, second)
    assert stage.receive(2) == [[0], [0]]
    assert stage.committed() == [b"0", b"1"]


def test_an_old_batch_that_is_repeated_delays_no_request(scene: Scene) -> None:
    """The batch comes from an abandoned connection; its transaction has ended."""
    stage = Stage(scene, "old-batch", CLASSIC_PRODUCE)
    try:
        old = stage.request(0)
        stage.open()
        stage.send(old)
        assert stage.receive(1) == [[0]]
        assert stage.committed() == [b"0"]
        stage.send(old)
        assert stage.receive(1) == [[ErrorCode.TRANSACTION_ABORTABLE]]
        retried(lambda: stage.producer.add(TOPIC, 0)[0])
        stage.send(stage.request(0))
        assert stage.receive(1) == [[0]]
        assert stage.committed() == [b"0", b"1"]
    finally:
        stage.close()


def test_a_request_whose_client_has_gone_is_not_appended(stage: Stage) -> None:
    partition = stage.services.replicas.find(TOPIC, 0)
    queues, brokers = stage.services.transaction_queues, stage.scene.brokers
    end_offset = brokers.ask(lambda: partition.log.log_end_offset)
    first, second = stage.request(0), stage.request(0)
    stage.send(first, second)
    wait_until(lambda: brokers.ask(lambda: bool(stage.coordinator.questions)), "a question")
    stage.client.close()
    stage.client = brokers.client(LEADER)
    # Only the head is left.
    wait_until(
        lambda: brokers.ask(lambda: queues.waiting_bytes) < _batch_bytes(first, second),
        "the connection to be found closed",
    )
    stage.open()
    wait_until(lambda: brokers.ask(lambda: len(queues)) == 0, "the queue to be empty")
    assert brokers.ask(lambda: partition.log.log_end_offset) == end_offset
    stage.send(first, second)
    assert stage.receive(2) == [[0], [0]]
    assert stage.committed() == [b"0", b"1"]


def _batch_bytes(*requests: ProduceRequest) -> int:
    return sum(
        len(data.records or b"")
        for request in requests
        for topic in request.topic_data
        for data in topic.partition_data
    )


def test_requests_that_find_no_room_are_retried(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = stage.services.transaction_queues
    first, second, third = (stage.request(0) for _ in range(3))
    monkeypatch.setattr(queues, "waiting_bytes_max", _batch_bytes(first))
    stage.send(first, second)
    stage.open()
    assert stage.receive(2) == [[0], [ErrorCode.NOT_ENOUGH_REPLICAS]]
    # The second request must be appended first.
    stage.send(third)
    assert stage.receive(1) == [[ErrorCode.NOT_ENOUGH_REPLICAS]]
    stage.send(second, third)
    assert stage.receive(2) == [[0], [0]]
    assert stage.committed() == [b"0", b"1", b"2"]
