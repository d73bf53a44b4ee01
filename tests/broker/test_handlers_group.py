"""Groups over the wire: each API in every version, and responses to invalid requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import RawClient, values_batch
from millstream.model.error import ErrorCode
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest
from millstream.wire.messages.sync_group import SyncGroupRequest

PARTITIONS = 3


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("group")
    settings = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 100}
    with BrokerProcess(folder, settings) as process:
        with RawClient(process.host, process.port) as client:
            client.create_topic("t", PARTITIONS)
            find(client, "g")
        yield process


def find(client: RawClient, *keys: str, version: int = 6, key_type: int = 0) -> Any:
    if version < 4:
        return [client.call(FindCoordinatorRequest(key=keys[0], key_type=key_type), version)]
    request = FindCoordinatorRequest(coordinator_keys=list(keys), key_type=key_type)
    return client.call(request, version).coordinators


def join_request(group_id: str, member_id: str = "", **fields: Any) -> JoinGroupRequest:
    protocol = JoinGroupRequest.Protocol(
        name="range", metadata=b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
    )
    given = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, **fields}
    return JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[protocol],
        **given,
    )


def join(client: RawClient, group_id: str, version: int = 9, **fields: Any) -> Any:
    response = client.call(join_request(group_id, **fields), version)
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        assert version >= 4
        response = client.call(join_request(group_id, response.member_id, **fields), version)
    return response


def sync(client: RawClient, group_id: str, joined: Any, version: int = 5) -> Any:
    part = SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=b"all of it")
    request = SyncGroupRequest(
        group_id=group_id,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[part],
    )
    if version >= 5:
        request.protocol_type, request.protocol_name = "consumer", "range"
    return client.call(request, version)


def commit(
    client: RawClient, group_id: str, offset: int, version: int = 9, **fields: Any
) -> list[int]:
    """Commit offsets of partition 0 of t and of a missing partition; return the error codes."""
    row = OffsetCommitRequest.Topic.Partition
    metadata = fields.pop("metadata", "note")
    topic = OffsetCommitRequest.Topic(
        name="t",
        partitions=[
            row(partition_index=0, committed_offset=offset, committed_metadata=metadata),
            row(partition_index=PARTITIONS, committed_offset=offset),
        ],
    )
    if version >= 10:
        topic.topic_id = client.topic_id("t")
    response = client.call(
        OffsetCommitRequest(group_id=group_id, topics=[topic], **fields), version
    )
    return [each.error_code for each in response.topics[0].partitions]


def fetch(
    client: RawClient, group_id: str, version: int = 9, *, everything: bool = False
) -> dict[int, int]:
    """Return the committed offsets of t by partition."""
    numbers = list(range(PARTITIONS))
    if version < 8:
        topics = None if everything else [OffsetFetchRequest.Topic(name="t")]
        if topics is not None:
            topics[0].partition_indexes = numbers
        response = client.call(OffsetFetchRequest(group_id=group_id, topics=topics), version)
    else:
        wanted = OffsetFetchRequest.Group(group_id=group_id)
        if not everything:
            topic = OffsetFetchRequest.Group.Topic(name="t", partition_indexes=numbers)
            if version >= 10:
                topic.topic_id = client.topic_id("t")
            wanted.topics = [topic]
        (response,) = client.call(OffsetFetchRequest(groups=[wanted]), version).groups
    if version >= 2:
        assert response.error_code == 0
    rows = [each for topic in response.topics for each in topic.partitions]
    assert not any(each.error_code for each in rows)
    return {each.partition_index: each.committed_offset for each in rows}


# FindCoordinator and the offsets topic


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_found_in_every_version(
    broker: BrokerProcess, client: RawClient, version: int
) -> None:
    for row in find(client, "a", "b", version=version):
        assert (row.error_code, row.node_id, row.port) == (0, 1, broker.port)
    if version >= 1:
        (row,) = find(client, "x", version=version, key_type=1)
        assert (row.error_code, row.node_id, row.port) == (0, 1, broker.port)
        (row,) = find(client, "x", version=version, key_type=2)
        # Share groups are known from version 6 on.
        early = ErrorCode.INVALID_REQUEST
        assert row.error_code == (early if version < 6 else ErrorCode.COORDINATOR_NOT_AVAILABLE)
        (row,) = find(client, "x", version=version, key_type=9)
        assert row.error_code == ErrorCode.INVALID_REQUEST


def test_the_offsets_topic_is_internal_compacted_and_closed_to_clients(client: RawClient) -> None:
    name = "__consumer_offsets"
    request = MetadataRequest(topics=[MetadataRequest.Topic(name=name)])
    (topic,) = client.call(request, 12).topics
    assert topic.is_internal
    assert len(topic.partitions) == 50
    resource = DescribeConfigsRequest.Resource(resource_type=2, resource_name=name)
    (result,) = client.call(DescribeConfigsRequest(resources=[resource]), 4).results
    configs = {config.name: config.value for config in result.configs}
    assert configs["cleanup.policy"] == "compact"
    assert configs["segment.bytes"] == str(100 * 1024 * 1024)
    refused = client.produce(name, values_batch(b"x"))
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


# Members


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_syncs_and_leaves_in_every_version(client: RawClient, version: int) -> None:
    group_id = f"life-{version}"
    joined = join(client, group_id, version)
    assert (joined.error_code, joined.generation_id) == (0, 1)
    assert joined.leader == joined.member_id
    assert joined.protocol_name == "range"
    assert [member.member_id for member in joined.members] == [joined.member_id]
    synced = sync(client, group_id, joined, min(version, 5))
    assert (synced.error_code, synced.assignment) == (0, b"all of it")
    beat = HeartbeatRequest(group_id=group_id, generation_id=1, member_id=joined.member_id)
    assert client.call(beat, min(version, 4)).error_code == 0
    beat.generation_id = 2
    assert client.call(beat, min(version, 4)).error_code == ErrorCode.ILLEGAL_GENERATION
    (described,) = client.call(DescribeGroupsRequest(groups=[group_id]), min(version, 6)).groups
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    (member,) = described.members
    assert (member.client_host, member.member_assignment) == ("/127.0.0.1", b"all of it")
    leave_version = min(version, 5)
    request = LeaveGroupRequest(group_id=group_id)
    if leave_version < 3:
        request.member_id = joined.member_id
        assert client.call(request, leave_version).error_code == 0
        again = client.call(request, leave_version)
        assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    else:
        request.members = [LeaveGroupRequest.Member(member_id=joined.member_id)] * 2
        response = client.call(request, leave_version)
        codes = [each.error_code for each in response.members]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]


def test_errors_of_join_in_every_version(client: RawClient) -> None:
    for version in range(10):
        wrong = client.call(join_request("errors", session_timeout_ms=1), version)
        assert wrong.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        assert not wrong.protocol_name
        assert client.call(join_request(""), version).error_code == ErrorCode.INVALID_GROUP_ID
        unknown = client.call(join_request("errors", "somebody"), version)
        assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_two_members_over_two_connections(broker: BrokerProcess, client: RawClient) -> None:
    first = join(client, "pair")
    sync(client, "pair", first)
    with RawClient(broker.host, broker.port) as other:
        given = other.call(join_request("pair"), 9).member_id
        other.send(join_request("pair", given), 9)
        beat = HeartbeatRequest(group_id="pair", generation_id=1, member_id=first.member_id)
        wait_until(
            lambda: client.call(beat, 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS,
            "the rebalance",
        )
        rejoined = client.call(join_request("pair", first.member_id), 9)
        joined = other.receive()
        assert rejoined.generation_id == joined.generation_id == 2
        assert joined.leader == first.member_id
        assert len(rejoined.members) == 2
        assert joined.members == []
        # The other member disconnects, and the sync of the first one still gets a response.
    assert sync(client, "pair", rejoined).error_code == 0


def test_a_member_without_heartbeats_is_removed(broker: BrokerProcess, client: RawClient) -> None:
    joined = join(client, "silent", session_timeout_ms=100)
    sync(client, "silent", joined)

    def state() -> str:
        request = DescribeGroupsRequest(groups=["silent"])
        return str(client.call(request, 6).groups[0].group_state)

    wait_until(lambda: state() == "Empty", "the session timeout")


# The consumer protocol


def beat(client: RawClient, group_id: str, version: int, epoch: int = 0, **fields: Any) -> Any:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id, member_id="me", member_epoch=epoch, **fields
    )
    if epoch == 0:
        request.rebalance_timeout_ms = 1000
        request.subscribed_topic_names = ["t"]
        request.topic_partitions = []
    return client.call(request, version)


@pytest.mark.parametrize("version", range(2))
def test_a_member_of_the_consumer_protocol_joins_and_leaves(
    client: RawClient, version: int
) -> None:
    group_id = f"consumer-{version}"
    absent = beat(client, group_id, version, epoch=1)
    assert absent.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    joined = beat(client, group_id, version)
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "me", 1)
    (assigned,) = joined.assignment.topic_partitions
    assert assigned.partitions == list(range(PARTITIONS))
    assert beat(client, group_id, version, epoch=1).assignment is None
    fields = {"member_id": "me", "generation_id_or_member_epoch": 1}
    assert commit(client, group_id, 5, **fields)[0] == ErrorCode.NONE
    fields["generation_id_or_member_epoch"] = 0
    assert commit(client, group_id, 6, **fields)[0] == ErrorCode.STALE_MEMBER_EPOCH
    request = ConsumerGroupDescribeRequest(group_ids=[group_id, "nobody"])
    described, unknown = client.call(request, version).groups
    assert (described.group_state, described.assignor_name) == ("Stable", "uniform")
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (dead,) = client.call(DescribeGroupsRequest(groups=[group_id]), 5).groups
    assert dead.group_state == "Dead", "it is no classic group"
    listed = client.call(ListGroupsRequest(types_filter=["consumer"]), 5).groups
    assert group_id in {group.group_id for group in listed}
    left = beat(client, group_id, version, epoch=-1)
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert fetch(client, group_id)[0] == 5


# Offsets


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_in_every_version(client: RawClient, version: int) -> None:
    group_id = f"commit-{version}"
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(client, group_id, 100 + version, version) == [ErrorCode.NONE, unknown]
    assert fetch(client, group_id) == {0: 100 + version, 1: -1, 2: -1}


@pytest.mark.parametrize("version", range(1, 11))
def test_fetch_in_every_version(client: RawClient, version: int) -> None:
    commit(client, "fetched", 42)
    assert fetch(client, "fetched", version) == {0: 42, 1: -1, 2: -1}
    assert fetch(client, "never heard of", version) == {0: -1, 1: -1, 2: -1}
    if version >= 2:
        assert fetch(client, "fetched", version, everything=True) == {0: 42}
        assert fetch(client, "never heard of", version, everything=True) == {}


def test_commits_are_fenced(client: RawClient) -> None:
    joined = join(client, "fenced")
    sync(client, "fenced", joined)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for fields, code in (
        ({"member_id": joined.member_id, "generation_id_or_member_epoch": 1}, ErrorCode.NONE),
        ({"member_id": joined.member_id, "generation_id_or_member_epoch": 0}, 22),
        ({"member_id": "somebody", "generation_id_or_member_epoch": 1}, 25),
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert commit(client, "fenced", 1, **fields) == [code, unknown]


def test_too_long_metadata_is_rejected(client: RawClient) -> None:
    codes = commit(client, "absurd", 1, metadata="x" * 4097)
    assert codes[0] == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(client, "absurd", 1, metadata="x" * 4096)[0] == ErrorCode.NONE
    assert commit(client, "absurd", 2, metadata=None)[0] == ErrorCode.NONE


def test_group_ids_may_have_any_characters(client: RawClient) -> None:
    names = ["", "with space", "\0", "ü", "\U0001f600" * 50, "".join(map(chr, range(256)))]
    for offset, name in enumerate(names):
        assert commit(client, name, offset)[0] == ErrorCode.NONE
    for offset, name in enumerate(names):
        assert fetch(client, name)[0] == offset
    listed = {group.group_id for group in client.call(ListGroupsRequest(), 5).groups}
    assert listed.issuperset(names)


def test_offsets_are_deleted_unless_subscribed(client: RawClient) -> None:
    row = OffsetDeleteRequest.Topic.Partition
    topic = OffsetDeleteRequest.Topic(
        name="t", partitions=[row(partition_index=0), row(partition_index=9)]
    )

    def delete(group_id: str) -> Any:
        return client.call(OffsetDeleteRequest(group_id=group_id, topics=[topic]), 0)

    assert delete("nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    commit(client, "deleting", 5)
    response = delete("deleting")
    codes = [each.error_code for each in response.topics[0].partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert fetch(client, "deleting")[0] == -1
    joined = join(client, "deleting")
    sync(client, "deleting", joined)
    codes = [each.error_code for each in delete("deleting").topics[0].partitions]
    assert codes[0] == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


# Administration


def test_groups_are_listed_by_state_and_type(client: RawClient) -> None:
    commit(client, "listed empty", 1)
    sync(client, "listed stable", join(client, "listed stable"))

    def listed(version: int, **filters: Any) -> set[str]:
        response = client.call(ListGroupsRequest(**filters), version)
        names = {group.group_id for group in response.groups}
        return names & {"listed empty", "listed stable"}

    for version in range(6):
        assert listed(version) == {"listed empty", "listed stable"}
    assert listed(4, states_filter=["empty"]) == {"listed empty"}
    assert listed(5, states_filter=["Stable", "Dead"]) == {"listed stable"}
    assert listed(5, types_filter=["Classic"]) == {"listed empty", "listed stable"}
    assert listed(5, types_filter=["consumer"]) == set()


@pytest.mark.parametrize("version", range(3))
def test_only_groups_without_members_are_deleted(client: RawClient, version: int) -> None:
    names = [f"busy-{version}", f"idle-{version}", "nobody"]
    sync(client, names[0], join(client, names[0]))
    commit(client, names[1], 1)
    response = client.call(DeleteGroupsRequest(groups_names=names), version)
    assert {each.group_id: each.error_code for each in response.results} == {
        names[0]: ErrorCode.NON_EMPTY_GROUP,
        names[1]: ErrorCode.NONE,
        names[2]: ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert fetch(client, names[1])[0] == -1


def test_a_group_that_does_not_exist_is_described_as_dead(client: RawClient) -> None:
    for version in range(7):
        (row,) = client.call(DescribeGroupsRequest(groups=["nobody"]), version).groups
        assert row.group_state == "Dead"
        assert row.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)


def test_offsets_and_members_survive_a_kill(broker: BrokerProcess) -> None:
    with RawClient(broker.host, broker.port) as client:
        joined = join(client, "kill")
        sync(client, "kill", joined)
        fields = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
        assert commit(client, "kill", 77, **fields)[0] == ErrorCode.NONE
    broker.kill()
    broker.start()
    with RawClient(broker.host, broker.port) as client:
        late = HeartbeatRequest(group_id="kill", generation_id=9, member_id=joined.member_id)
        illegal = ErrorCode.ILLEGAL_GENERATION
        # While the group is being loaded, every heartbeat succeeds.
        wait_until(lambda: client.call(late, 4).error_code == illegal, "the group to be loaded")
        beat = HeartbeatRequest(group_id="kill", generation_id=1, member_id=joined.member_id)
        assert client.call(beat, 4).error_code == ErrorCode.NONE
        assert fetch(client, "kill")[0] == 77
