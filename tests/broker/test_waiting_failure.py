"""Disks and callbacks that fail while requests wait: each failure affects only its own request."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from harness.in_process.server_set import ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import (
    RawClient,
    fetch_request,
    produce_request,
    records_of,
    values_batch,
)
from millstream.broker.handlers.fetch import _Fetch
from millstream.log.log import PartitionLog
from millstream.model.error import ErrorCode
from millstream.model.reply import ReplyKind
from millstream.replication.follower.leader_session import LeaderSession
from millstream.replication.partition import Partition
from millstream.wire.messages.produce import ProduceRequest

_names = (f"t{number}" for number in count())


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSet]:
    folder: Path = tmp_path_factory.mktemp("waiting")
    with ServerSet(folder, 2, log_flush_before_ack="true", min_insync_replicas="1") as running:
        yield running


@pytest.fixture
def topic(brokers: ServerSet) -> str:
    """Create a topic with three partitions that broker 1 leads."""
    name = next(_names)
    with brokers.client(1) as client:
        client.create_topic(name, 3, replication_factor=2)
    for number in range(3):
        brokers.lead(name, number, 1)
    return name


def partition(brokers: ServerSet, topic: str, number: int) -> Partition:
    return brokers.services(1).replicas.find(topic, number)


def wait_for_more(brokers: ServerSet, client: RawClient, topic: str, number: int) -> None:
    """Send a fetch that waits for records of one partition."""
    found = partition(brokers, topic, number)
    before = brokers.ask(lambda: len(found.watchers or ()))
    request = fetch_request(
        [(topic, number, 0)], min_bytes=1, max_wait_ms=60_000, isolation_level=1
    )
    client.send(request, 12)
    wait_until(
        lambda: brokers.ask(lambda: len(found.watchers or ())) == before + 1, "the fetch to wait"
    )


def produce_to_all(client: RawClient, topic: str) -> None:
    """Produce one record to each partition in one request, so that all wake up in one turn."""
    request = produce_request(topic, values_batch(b"x"))
    request.topic_data[0].partition_data = [
        ProduceRequest.Topic.Partition(index=number, records=values_batch(b"x"))
        for number in range(3)
    ]
    rows = client.call(request, 12).responses[0].partition_responses
    assert [row.error_code for row in rows] == [0, 0, 0]


def row_of(client: RawClient) -> Any:
    response = client.receive()
    assert response.error_code == 0
    return response.responses[0].partitions[0]


def failing(method: Any, broken: Partition, error: Exception) -> Any:
    """Return a method of logs that fails for one partition."""

    def call(log: PartitionLog, *arguments: Any, **others: Any) -> Any:
        if log is broken.log:
            raise error
        return method(log, *arguments, **others)

    return call


def test_a_failing_disk_fails_only_the_fetch_of_its_partition(
    brokers: ServerSet, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = partition(brokers, topic, 0)
    with brokers.client(1) as one, brokers.client(1) as two, brokers.client(1) as writer:
        wait_for_more(brokers, one, topic, 0)
        wait_for_more(brokers, two, topic, 1)
        error = OSError(errno.EMFILE, "too many open files")
        monkeypatch.setattr(
            PartitionLog,
            "last_stable_offset",
            failing(PartitionLog.last_stable_offset, broken, error),
        )
        produce_to_all(writer, topic)
        assert row_of(one).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert [record.value for record in records_of(row_of(two).records)] == [b"x"]
        monkeypatch.undo()
        # The same connection still works.
        assert one.fetch(topic, 0).error_code == 0


def test_a_wake_up_that_raises_fails_only_its_request(
    brokers: ServerSet, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other fetches of the partition, and of partitions that wake up in the same turn, succeed."""
    clients = [brokers.client(1) for _ in range(4)]
    for number, client in enumerate(clients[:3]):
        wait_for_more(brokers, client, topic, number)
    wait_for_more(brokers, clients[3], topic, 0)
    real, raised = _Fetch.collect, list[int]()

    def collect(fetch: _Fetch) -> bool:
        if not raised:
            raised.append(1)
            raise OSError("a fault that the test asked for")
        return real(fetch)

    monkeypatch.setattr(_Fetch, "collect", collect)
    before = brokers.ask(lambda: brokers.services(1).failures.counts[ReplyKind.FETCH])
    with brokers.client(1) as writer:
        produce_to_all(writer, topic)
    codes = sorted(row_of(client).error_code for client in clients)
    assert codes == [0, 0, 0, ErrorCode.KAFKA_STORAGE_ERROR]
    assert brokers.ask(lambda: brokers.services(1).failures.counts[ReplyKind.FETCH]) == before + 1
    for client in clients:
        assert client.fetch(topic, 0).error_code == 0
        client.close()


def test_a_change_of_leadership_survives_a_waiting_fetch_that_raises(
    brokers: ServerSet, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with brokers.client(1) as one, brokers.client(1) as two, brokers.client(2) as new:
        wait_for_more(brokers, one, topic, 0)
        wait_for_more(brokers, two, topic, 0)
        real, raised = _Fetch.collect, list[int]()

        def collect(fetch: _Fetch) -> bool:
            if not raised:
                raised.append(1)
                raise OSError("a fault that the test asked for")
            return real(fetch)

        monkeypatch.setattr(_Fetch, "collect", collect)
        brokers.lead(topic, 0, 2)
        codes = sorted(row_of(client).error_code for client in (one, two))
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR]
        assert not brokers.servers[1].failed.done()
        # Broker 1 has followed, and continues to follow.
        assert new.produce(topic, values_batch(b"x"), 0).error_code == 0
        wait_until(
            lambda: brokers.ask(lambda: partition(brokers, topic, 0).log.log_end_offset) == 1,
            "broker 1 to replicate",
        )
        brokers.lead(topic, 0, 1)
        assert one.produce(topic, values_batch(b"y"), 0).error_code == 0
        assert len(one.read_all(topic, 0)) == 2


@pytest.mark.parametrize(
    ("owner", "name"),
    [(LeaderSession, "add"), (PartitionLog, "drop_unused_epochs")],
    ids=["fetcher", "log"],
)
def test_a_partition_that_can_not_follow_at_first_follows_later(
    brokers: ServerSet,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
) -> None:
    """The failure affects only this partition: the broker follows the others at once."""
    found = partition(brokers, topic, 0)
    real, raised = getattr(owner, name), list[int]()

    def fail_once(self: Any, *arguments: Any) -> Any:
        if not raised and (found in arguments or self is found.log):
            raised.append(1)
            raise OSError(errno.EMFILE, "too many open files")
        return real(self, *arguments)

    monkeypatch.setattr(owner, name, fail_once)
    for number in range(3):
        brokers.lead(topic, number, 2)
    with brokers.client(2) as new:
        for number in range(3):
            assert new.produce(topic, values_batch(b"x"), number).error_code == 0
        wait_until(
            lambda: brokers.ask(
                lambda: all(
                    partition(brokers, topic, number).log.log_end_offset == 1 for number in range(3)
                )
            ),
            "broker 1 to replicate",
        )
    assert raised
    assert not brokers.servers[1].failed.done()


def test_an_acknowledgement_that_raises_fails_only_its_request(
    brokers: ServerSet, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, raised = Partition.is_acknowledged, list[int]()

    def is_acknowledged(found: Partition, offset: int, *, acks_all: bool) -> bool:
        is_done = real(found, offset, acks_all=acks_all)
        if is_done and found.topic_partition.topic == topic and not raised:
            raised.append(1)
            raise OSError("a fault that the test asked for")
        return is_done

    with brokers.client(1) as client:
        for _ in range(3):
            client.send(produce_request(topic, values_batch(b"x")), 12)
        monkeypatch.setattr(Partition, "is_acknowledged", is_acknowledged)
        client.send(produce_request(topic, values_batch(b"x")), 12)
        rows = [client.receive().responses[0].partition_responses[0] for _ in range(4)]
        codes = sorted(row.error_code for row in rows)
        assert codes == [0, 0, 0, ErrorCode.KAFKA_STORAGE_ERROR]
        assert client.produce(topic, values_batch(b"y")).error_code == 0
