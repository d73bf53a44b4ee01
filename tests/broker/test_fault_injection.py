"""Every kind of deferred response raises once, in a running broker.

Each kind of reply has a scenario: requests that end with such a reply. The reply raises when it
makes its response. The request must get an error response, or succeed where the broker retries the
step itself. The failure must be counted under its kind. Everything else must continue: the same
connection, a waiting fetch of another client, and the same scenario once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    response_class,
    values_batch,
)
from harness.raw.raw_transaction import GROUP, RawProducer, committed_values, find_coordinator
from millstream.broker.context import Services
from millstream.model.error import ErrorCode
from millstream.model.failure import CallbackKind
from millstream.model.reply import Reply, ReplyKind
from millstream.testing.fault import Faults
from millstream.wire.api import ApiKey
from millstream.wire.messages.add_partitions_after_end import AddPartitionsAfterEndRequest
from millstream.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, TxnTopic
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.fetch import FetchRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest
from millstream.wire.messages.sync_group import SyncGroupRequest
from millstream.wire.messages.write_txn_markers import WriteTxnMarkersRequest

NODE = 1
JOIN_WITHOUT_ID = 3
LEAVE_MANY = 5
_names = (f"n{number}" for number in count())


class Scene:
    """A client of the broker, with the requests of the scenarios."""

    def __init__(self, brokers: ServerSet, client: RawClient) -> None:
        self.brokers = brokers
        self.client = client

    @property
    def services(self) -> Services:
        return self.brokers.services(NODE)

    def producer(self) -> RawProducer:
        producer = RawProducer(self.client, next(_names))
        producer.init()
        return producer

    def join(self, group_id: str) -> Any:
        protocol = JoinGroupRequest.Protocol(name="range", metadata=b"")
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[protocol],
        )
        return self.client.call(request, JOIN_WITHOUT_ID)

    def commit_request(self, group_id: str) -> OffsetCommitRequest:
        row = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=5)
        topic = OffsetCommitRequest.Topic(name="t", partitions=[row])
        return OffsetCommitRequest(
            group_id=group_id, generation_id_or_member_epoch=-1, topics=[topic]
        )

    def commit(self, group_id: str) -> int:
        response = self.client.call(self.commit_request(group_id), 9)
        return int(response.topics[0].partitions[0].error_code)


Scenario = Callable[[Scene], int]


def produce(scene: Scene) -> int:
    return scene.client.produce("t", values_batch(b"a")).error_code


def transactional_produce(scene: Scene) -> int:
    return scene.producer().produce("t", b"a")


def fetch(scene: Scene) -> int:
    request = fetch_request([("empty", 0, 0)], min_bytes=1, max_wait_ms=20)
    response = scene.client.call(request, 12)
    return response.error_code or response.responses[0].partitions[0].error_code


def replica_fetch(scene: Scene) -> int:
    """The follower fetches a topic that the leader does not know yet, so the fetch waits."""
    epoch = scene.brokers.ask(lambda: scene.services.catalog.image.brokers[NODE].epoch)
    request = fetch_request(
        [(b"not known yet".ljust(16), 0, 0)], min_bytes=1, max_wait_ms=20, session_epoch=0
    )
    request.replica_state = FetchRequest.ReplicaState(replica_id=NODE, replica_epoch=epoch)
    response = scene.client.call(request, 15)
    (row,) = response.responses[0].partitions if response.responses else (None,)
    assert row is None or row.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    return int(response.error_code)


def join_group(scene: Scene) -> int:
    return int(scene.join(next(_names)).error_code)


def sync_group(scene: Scene) -> int:
    group_id = next(_names)
    member_id = scene.join(group_id).member_id
    part = SyncGroupRequest.Assignment(member_id=member_id, assignment=b"all")
    request = SyncGroupRequest(
        group_id=group_id, generation_id=1, member_id=member_id, assignments=[part]
    )
    return int(scene.client.call(request, 3).error_code)


def leave_group(scene: Scene) -> int:
    group_id = next(_names)
    member = LeaveGroupRequest.Member(member_id=scene.join(group_id).member_id)
    request = LeaveGroupRequest(group_id=group_id, members=[member])
    return int(scene.client.call(request, LEAVE_MANY).error_code)


def consumer_group_heartbeat(scene: Scene) -> int:
    request = ConsumerGroupHeartbeatRequest(
        group_id=next(_names),
        member_id=next(_names),
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    return int(scene.client.call(request).error_code)


def offset_commit(scene: Scene) -> int:
    return scene.commit(next(_names))


def offset_fetch(scene: Scene) -> int:
    """The fetch follows a commit, for which its response has to wait."""
    group_id, client = next(_names), scene.client
    topic = OffsetFetchRequest.Group.Topic(name="t", partition_indexes=[0])
    client.send(scene.commit_request(group_id), 9)
    client.send(
        OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group_id, topics=[topic])]), 9
    )
    assert client.receive().topics[0].partitions[0].error_code == 0
    return int(client.receive().groups[0].error_code)


def offset_delete(scene: Scene) -> int:
    group_id = next(_names)
    assert scene.commit(group_id) == 0
    row = OffsetDeleteRequest.Topic.Partition(partition_index=0)
    topic = OffsetDeleteRequest.Topic(name="t", partitions=[row])
    return int(scene.client.call(OffsetDeleteRequest(group_id=group_id, topics=[topic])).error_code)


def delete_groups(scene: Scene) -> int:
    group_id = next(_names)
    assert scene.commit(group_id) == 0
    response = scene.client.call(DeleteGroupsRequest(groups_names=[group_id]))
    return int(response.results[0].error_code)


def txn_offset_commit(scene: Scene) -> int:
    return scene.producer().commit_offset(next(_names), "t", 3, version=5)


def add_partitions_to_txn(scene: Scene) -> int:
    return scene.producer().add("t", 0)[0]


def add_partitions_after_end(scene: Scene) -> int:
    producer = scene.producer()
    transaction = AddPartitionsToTxnRequest.Transaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[TxnTopic(name="t", partitions=[0])],
    )
    request = AddPartitionsAfterEndRequest(wait_ms=10, transactions=[transaction])
    (row,) = scene.client.call(request).results_by_transaction
    return int(row.topic_results[0].results_by_partition[0].partition_error_code)


def add_offsets_to_txn(scene: Scene) -> int:
    return scene.producer().add_offsets(next(_names))


def init_producer_id(scene: Scene) -> int:
    return RawProducer(scene.client, next(_names)).try_init()


def end_txn(scene: Scene) -> int:
    producer = scene.producer()
    assert producer.produce("t", b"a") == 0
    return producer.end(commit=True)


def write_txn_markers(scene: Scene) -> int:
    topic = WriteTxnMarkersRequest.Marker.Topic(name="t", partition_indexes=[0])
    marker = WriteTxnMarkersRequest.Marker(
        producer_id=900_000 + int(next(_names)[1:]), transaction_result=False, topics=[topic]
    )
    response = scene.client.call(WriteTxnMarkersRequest(markers=[marker]))
    return int(response.markers[0].topics[0].partitions[0].error_code)


def delayed(scene: Scene) -> int:
    faults = Faults()
    apis = scene.services.apis
    api = apis.get(ApiKey.FIND_COORDINATOR)
    assert api is not None
    handle = api.handle
    scene.brokers.ask(lambda: faults.install(apis))
    scene.brokers.ask(lambda: faults.delay_answers(0.001, ApiKey.FIND_COORDINATOR, 1))
    try:
        request = FindCoordinatorRequest(coordinator_keys=["g"], key_type=GROUP)
        return int(scene.client.call(request).coordinators[0].error_code)
    finally:
        scene.brokers.ask(lambda: setattr(api, "handle", handle))


def a_whole_transaction(scene: Scene) -> int:
    """The broker retries these steps itself until they succeed."""
    producer, value = scene.producer(), next(_names).encode()
    assert producer.produce("whole", value) == 0
    code = producer.end(commit=True)
    wait_until(lambda: value in committed_values(scene.client, "whole"), "the transaction's marker")
    return code


SCENARIOS: dict[ReplyKind, Scenario] = {
    ReplyKind.PRODUCE: produce,
    ReplyKind.TRANSACTIONAL_PRODUCE: transactional_produce,
    ReplyKind.FETCH: fetch,
    ReplyKind.REPLICA_FETCH: replica_fetch,
    ReplyKind.JOIN_GROUP: join_group,
    ReplyKind.SYNC_GROUP: sync_group,
    ReplyKind.LEAVE_GROUP: leave_group,
    ReplyKind.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
    ReplyKind.OFFSET_COMMIT: offset_commit,
    ReplyKind.OFFSET_FETCH: offset_fetch,
    ReplyKind.OFFSET_DELETE: offset_delete,
    ReplyKind.DELETE_GROUPS: delete_groups,
    ReplyKind.TXN_OFFSET_COMMIT: txn_offset_commit,
    ReplyKind.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ReplyKind.ADD_PARTITIONS_AFTER_END: add_partitions_after_end,
    ReplyKind.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    ReplyKind.INIT_PRODUCER_ID: init_producer_id,
    ReplyKind.END_TXN: end_txn,
    ReplyKind.WRITE_TXN_MARKERS: write_txn_markers,
    ReplyKind.DELAYED: delayed,
    ReplyKind.ADMISSION: transactional_produce,
    ReplyKind.TRANSACTION_DECISION: a_whole_transaction,
    ReplyKind.TRANSACTION_MARKER: a_whole_transaction,
}
#: Error codes of the responses other than UNKNOWN_SERVER_ERROR.
CODES = {
    # The producer retries.
    ReplyKind.ADMISSION: ErrorCode.NOT_ENOUGH_REPLICAS,
    ReplyKind.TRANSACTION_DECISION: ErrorCode.NONE,
    ReplyKind.TRANSACTION_MARKER: ErrorCode.NONE,
}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSet]:
    """Start one broker, on which every acknowledgement waits for a flush."""
    folder: Path = tmp_path_factory.mktemp("faults")
    with ServerSet(folder, 1, log_flush_before_ack="true") as running:
        with running.client(NODE) as client:
            for name in ("t", "empty", "whole", "bystander"):
                client.create_topic(name)
            find_coordinator(client, "g", GROUP)
            find_coordinator(client, "x")
            wait_until(
                lambda: RawProducer(client, "warm").try_init() == 0, "the coordinators to be loaded"
            )
            wait_until(lambda: Scene(running, client).commit("warm") == 0, "the same for groups")
        yield running


class Fault:
    """Makes the next reply of one kind raise when its response is made."""

    def __init__(self, kind: ReplyKind, monkeypatch: pytest.MonkeyPatch) -> None:
        self.raised = 0
        deliver = Reply.deliver

        def deliver_or_raise(reply: Reply[Any], value: Any) -> None:
            if reply.kind is kind and reply.is_open and not self.raised:
                self.raised += 1
                reply._respond = self._raise
            deliver(reply, value)

        monkeypatch.setattr(Reply, "deliver", deliver_or_raise)

    def _raise(self, value: object) -> object:
        raise RuntimeError("a fault that the test asked for")


def failures(brokers: ServerSet, kind: str) -> int:
    return brokers.ask(lambda: brokers.services(NODE).failures.counts[kind])


def all_failures(brokers: ServerSet) -> int:
    return brokers.ask(lambda: brokers.services(NODE).failures.counts.total())


def test_every_kind_has_a_scenario() -> None:
    assert SCENARIOS.keys() == set(ReplyKind)


@pytest.mark.parametrize("kind", SCENARIOS)
def test_a_reply_that_raises_fails_only_its_request(
    brokers: ServerSet, kind: ReplyKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, total = failures(brokers, kind), all_failures(brokers)
    with brokers.client(NODE) as client, brokers.client(NODE) as bystander:
        end = client.list_offset("bystander", -1).offset
        bystander.send(fetch_request([("bystander", 0, end)], min_bytes=1, max_wait_ms=60_000), 12)
        fault = Fault(kind, monkeypatch)
        code = SCENARIOS[kind](Scene(brokers, client))
        assert fault.raised == 1
        assert code == CODES.get(kind, ErrorCode.UNKNOWN_SERVER_ERROR)
        assert failures(brokers, kind) == before + 1
        # On the same connection, without a fault.
        assert SCENARIOS[kind](Scene(brokers, client)) == 0
        assert client.produce("bystander", values_batch(b"news")).error_code == 0
        row = bystander.receive().responses[0].partitions[0]
        assert [record.value for record in records_of(row.records)] == [b"news"]
    assert all_failures(brokers) == total + 1


def test_a_request_that_runs_as_a_task_gets_an_error_response(
    brokers: ServerSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = failures(brokers, CallbackKind.HANDLER)
    topics = brokers.services(NODE).topics

    async def fail(names: object) -> dict[str, Any]:
        raise RuntimeError("a fault that the test asked for")

    wanted = MetadataRequest(topics=[MetadataRequest.Topic(name="new")])
    with brokers.client(NODE) as client, monkeypatch.context() as patch:
        patch.setattr(type(topics), "create_missing", lambda _, names: fail(names))
        client.send(wanted, 12)
        # A request behind it on the same connection.
        client.send(produce_request("t", values_batch(b"a")), 12)
        response = client.receive()
        assert [row.error_code for row in response.topics] == [ErrorCode.UNKNOWN_SERVER_ERROR]
        assert [broker.node_id for broker in response.brokers] == [NODE]
        assert client.receive().responses[0].partition_responses[0].error_code == 0
        patch.undo()
        assert client.call(wanted, 12).topics[0].error_code in (
            ErrorCode.NONE,
            ErrorCode.LEADER_NOT_AVAILABLE,
        )
    assert failures(brokers, CallbackKind.HANDLER) == before + 1


def test_the_kinds_of_failures_are_metrics(brokers: ServerSet) -> None:
    families = brokers.ask(lambda: list(brokers.services(NODE).metrics.families()))
    (family,) = [each for each in families if each.name == "millstream_callback_failures_total"]
    assert {labels[0] for labels, _ in family.rows} == {*ReplyKind, *CallbackKind}
    assert response_class(MetadataRequest).__name__ == "MetadataResponse"
