"""Malicious or broken clients of groups: correct error codes, bounded memory, no records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import Closed, RawClient, encode_frame
from millstream.model.error import ErrorCode
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest
from millstream.wire.messages.sync_group import SyncGroupRequest

OFFSETS_PARTITIONS = 4
GROUP_SIZE_MAX = 20
ATTEMPTS = 10_000
#: Requests sent before their responses are read.
WINDOW = 200
#: Long, because fencing a member writes a record, and other tests expect none.
LONG_MS = 1_800_000
MIB = 1 << 20
#: Memory that a flood may leave behind: assigned ids, fragmentation, buffers.
GROWTH_BYTES_MAX = 48 * MIB

UNKNOWN_MEMBER = ErrorCode.UNKNOWN_MEMBER_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("bad-input")
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 100,
        "group.max.size": GROUP_SIZE_MAX,
        "group.consumer.max.size": GROUP_SIZE_MAX,
        "group.consumer.max.session.timeout.ms": LONG_MS,
        "group.consumer.session.timeout.ms": LONG_MS,
        "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
        "offsets.topic.segment.bytes": 64 * 1024,
        "log.cleaner.backoff.ms": 100,
    }
    with BrokerProcess(folder, settings) as process:
        with RawClient(process.host, process.port) as client:
            client.create_topic("t")
            client.call(FindCoordinatorRequest(coordinator_keys=["g"]))
        yield process


@pytest.fixture
def unwritten(broker: BrokerProcess) -> Iterator[None]:
    """Check that the test writes nothing to the offsets topic."""
    before = end_offsets(broker)
    yield
    assert end_offsets(broker) == before


def _of_offsets_topic(broker: BrokerProcess, metric: str) -> float:
    labels = [f'topic="__consumer_offsets",partition="{n}"' for n in range(OFFSETS_PARTITIONS)]
    return sum(broker.metric(f"{metric}{{{each}}}") for each in labels)


def end_offsets(broker: BrokerProcess) -> float:
    return _of_offsets_topic(broker, "millstream_log_end_offset")


def join_request(group_id: str, member_id: str = "", **fields: Any) -> JoinGroupRequest:
    metadata = fields.pop("metadata", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff")
    given = {"session_timeout_ms": LONG_MS, "rebalance_timeout_ms": LONG_MS, **fields}
    return JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=metadata)],
        **given,
    )


def join(client: RawClient, group_id: str, **fields: Any) -> Any:
    """Join as the only member, and become stable."""
    response = client.call(join_request(group_id, **fields), 9)
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        response = client.call(join_request(group_id, response.member_id, **fields), 9)
    assert response.error_code == 0, response
    part = SyncGroupRequest.Assignment(member_id=response.member_id, assignment=b"all")
    request = SyncGroupRequest(
        group_id=group_id,
        generation_id=response.generation_id,
        member_id=response.member_id,
        group_instance_id=fields.get("group_instance_id"),
        assignments=[part],
    )
    assert client.call(request, 4).error_code == 0
    return response


def commit(
    client: RawClient, group_id: str, metadata: str | None = "", version: int = 9, **fields: Any
) -> int:
    row = OffsetCommitRequest.Topic.Partition(
        partition_index=0, committed_offset=5, committed_metadata=metadata
    )
    topic = OffsetCommitRequest.Topic(name="t", partitions=[row])
    request = OffsetCommitRequest(group_id=group_id, topics=[topic], **fields)
    response = client.call(request, version)
    return int(response.topics[0].partitions[0].error_code)


def codes_of(
    client: RawClient,
    group_id: str,
    member_id: str,
    generation: int,
    instance_id: str | None = None,
) -> dict[str, int]:
    """Return the error codes of all requests under this member id."""
    who: dict[str, Any] = {"member_id": member_id, "group_instance_id": instance_id}
    named: dict[str, Any] = {"group_id": group_id, "generation_id": generation, **who}
    return {
        "heartbeat": client.call(HeartbeatRequest(**named), 4).error_code,
        "sync": client.call(SyncGroupRequest(**named), 4).error_code,
        "commit": commit(client, group_id, generation_id_or_member_epoch=generation, **who),
    }


def leave(client: RawClient, group_id: str, member_id: str, instance_id: str | None = None) -> int:
    who = LeaveGroupRequest.Member(member_id=member_id, group_instance_id=instance_id)
    response = client.call(LeaveGroupRequest(group_id=group_id, members=[who]), 5)
    return int(response.error_code or response.members[0].error_code)


# Members


@pytest.mark.usefixtures("unwritten")
def test_unknown_members_of_a_group_that_is_not_there(client: RawClient) -> None:
    assert client.call(join_request("nowhere", "ghost"), 9).error_code == UNKNOWN_MEMBER
    assert codes_of(client, "nowhere", "ghost", 3) == {
        "heartbeat": UNKNOWN_MEMBER,
        "sync": UNKNOWN_MEMBER,
        "commit": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    fields = {"member_id": "ghost", "generation_id_or_member_epoch": 3}
    assert commit(client, "nowhere", version=8, **fields) == ILLEGAL
    assert leave(client, "nowhere", "ghost") == UNKNOWN_MEMBER


def test_unknown_members_and_stale_generations_of_a_live_group(
    broker: BrokerProcess, client: RawClient
) -> None:
    member = join(client, "live")
    before = end_offsets(broker)
    assert client.call(join_request("live", "ghost"), 9).error_code == UNKNOWN_MEMBER
    for instance_id in (None, "nobody"):
        codes = codes_of(client, "live", "ghost", 1, instance_id)
        assert set(codes.values()) == {UNKNOWN_MEMBER}
        assert leave(client, "live", "ghost", instance_id) == UNKNOWN_MEMBER
    for generation in (0, 2, 2**31 - 1):
        codes = codes_of(client, "live", member.member_id, generation)
        assert set(codes.values()) == {ILLEGAL}, generation
    # A client that is no member may not commit for a group that has members.
    assert commit(client, "live") == UNKNOWN_MEMBER
    assert end_offsets(broker) == before
    beat = HeartbeatRequest(group_id="live", generation_id=1, member_id=member.member_id)
    assert client.call(beat, 4).error_code == 0, "nothing has happened to the group"


def test_the_second_of_two_instances_fences_the_first(client: RawClient) -> None:
    first = join(client, "static", group_instance_id="one")
    second = client.call(join_request("static", group_instance_id="one"), 9)
    assert second.error_code == 0
    assert second.member_id != first.member_id
    codes = codes_of(client, "static", first.member_id, second.generation_id, "one")
    assert set(codes.values()) == {ErrorCode.FENCED_INSTANCE_ID}
    assert leave(client, "static", first.member_id, "one") == ErrorCode.FENCED_INSTANCE_ID
    joined = client.call(join_request("static", first.member_id, group_instance_id="one"), 9)
    assert joined.error_code == ErrorCode.FENCED_INSTANCE_ID


def beat(client: RawClient, group_id: str, member_id: str, epoch: int, **fields: Any) -> Any:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id, member_id=member_id, member_epoch=epoch, **fields
    )
    if epoch == 0:
        request.rebalance_timeout_ms = 1000
        request.subscribed_topic_names = ["t"]
        request.topic_partitions = []
    return client.call(request, 1)


def test_unknown_members_of_a_consumer_group_are_rejected(
    broker: BrokerProcess, client: RawClient
) -> None:
    assert beat(client, "848", "ghost", 3).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    joined = beat(client, "848", "me", 0)
    assert joined.error_code == 0
    before = end_offsets(broker)
    fenced, stale = ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH
    assert beat(client, "848", "ghost", 1).error_code == UNKNOWN_MEMBER
    assert beat(client, "848", "ghost", -1).error_code == UNKNOWN_MEMBER
    assert beat(client, "848", "me", joined.member_epoch + 5).error_code == fenced
    for epoch in (0, joined.member_epoch + 1):
        fields = {"member_id": "me", "generation_id_or_member_epoch": epoch}
        assert commit(client, "848", **fields) == stale
    ghost = {"member_id": "ghost", "generation_id_or_member_epoch": 1}
    assert commit(client, "848", **ghost) == UNKNOWN_MEMBER
    wanted = OffsetFetchRequest.Group(group_id="848", member_id="ghost", member_epoch=1)
    assert (
        client.call(OffsetFetchRequest(groups=[wanted]), 9).groups[0].error_code == UNKNOWN_MEMBER
    )
    wanted.member_id, wanted.member_epoch = "me", joined.member_epoch + 1
    assert client.call(OffsetFetchRequest(groups=[wanted]), 9).groups[0].error_code == stale
    assert end_offsets(broker) == before
    assert beat(client, "848", "me", joined.member_epoch).error_code == 0


@pytest.mark.usefixtures("unwritten")
def test_administration_of_groups_that_are_not_there(client: RawClient) -> None:
    missing = ErrorCode.GROUP_ID_NOT_FOUND
    assert client.call(DeleteGroupsRequest(groups_names=["no"]), 2).results[0].error_code == missing
    assert client.call(OffsetDeleteRequest(group_id="no"), 0).error_code == missing
    described = client.call(ConsumerGroupDescribeRequest(group_ids=["no"]), 1)
    assert described.groups[0].error_code == missing


# Sizes


@pytest.mark.usefixtures("unwritten")
def test_absurd_commit_metadata(client: RawClient) -> None:
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    # Lengths count as in Java's strings: a character beyond the basic plane counts twice.
    for text in ("x" * 4097, "x" * 32_767, "\U0001f600" * 2049):
        assert commit(client, "chatty", text) == too_large
    assert "chatty" not in {each.group_id for each in client.call(ListGroupsRequest()).groups}


def test_commit_metadata_of_the_greatest_length(client: RawClient) -> None:
    for text in (None, "", "x" * 4096, "ü" * 4096, "\U0001f600" * 2048):
        assert commit(client, "talkative", text) == 0


@pytest.mark.usefixtures("unwritten")
def test_absurd_subscriptions(broker: BrokerProcess, client: RawClient) -> None:
    response = client.call(join_request("fat", metadata=bytes(2 * MIB)), 9)
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert client.call(join_request("thin"), 9).error_code == ErrorCode.MEMBER_ID_REQUIRED
    with RawClient(broker.host, broker.port) as other, pytest.raises(Closed):
        other.call(join_request("fat", metadata=bytes(9 * MIB)), 9)
    many = [JoinGroupRequest.Protocol(name=f"p{n}") for n in range(50_000)]
    request = join_request("many")
    request.protocols = many
    assert client.call(request, 9).error_code in (
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    )


@pytest.mark.usefixtures("unwritten")
def test_absurd_timeouts(client: RawClient) -> None:
    invalid = ErrorCode.INVALID_SESSION_TIMEOUT
    for timeout_ms in (-1, 0, 99, 1_800_001, 2**31 - 1):
        response = client.call(join_request("timeless", session_timeout_ms=timeout_ms), 9)
        assert response.error_code == invalid


# Floods


def joins_answered(client: RawClient, requests: list[JoinGroupRequest], version: int) -> set[int]:
    """Return the error codes of many joins, sent in windows over one connection."""
    codes = set()
    for start in range(0, len(requests), WINDOW):
        window = requests[start : start + WINDOW]
        for request in window:
            client.send(request, version)
        codes.update(client.receive().error_code for _ in window)
    return codes


def group_count(client: RawClient) -> int:
    return len(client.call(ListGroupsRequest()).groups)


@pytest.mark.usefixtures("unwritten")
def test_ten_thousand_attempts_to_join_one_group(broker: BrokerProcess, client: RawClient) -> None:
    joins_answered(client, [join_request("flood")] * WINDOW, 9)
    before = broker.rss_bytes()
    codes = joins_answered(client, [join_request("flood")] * ATTEMPTS, 9)
    assert codes == {ErrorCode.MEMBER_ID_REQUIRED}
    assert broker.rss_bytes() - before < GROWTH_BYTES_MAX
    (described,) = client.call(DescribeGroupsRequest(groups=["flood"]), 5).groups
    assert described.members == []


@pytest.mark.usefixtures("unwritten")
def test_ten_thousand_groups_without_members_are_removed(
    broker: BrokerProcess, client: RawClient
) -> None:
    before_count, before = group_count(client), broker.rss_bytes()
    requests = [
        join_request(f"flood-{number}", session_timeout_ms=1000) for number in range(ATTEMPTS)
    ]
    assert joins_answered(client, requests, 9) == {ErrorCode.MEMBER_ID_REQUIRED}
    assert broker.rss_bytes() - before < 2 * GROWTH_BYTES_MAX
    wait_until(lambda: group_count(client) <= before_count, "the groups to be forgotten")


def test_members_that_never_come_back_fill_a_group_only(broker: BrokerProcess) -> None:
    """Old versions admit members without an id: each client disconnects before its response."""
    for _ in range(10 * GROUP_SIZE_MAX):
        with RawClient(broker.host, broker.port) as client:
            client.send(join_request("old"), 3)
    with RawClient(broker.host, broker.port) as client:
        (described,) = client.call(DescribeGroupsRequest(groups=["old"]), 5).groups
        # Members of the last generation, and members that join the next.
        assert GROUP_SIZE_MAX <= len(described.members) <= 2 * GROUP_SIZE_MAX
        refused = client.call(join_request("old"), 3)
        assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_consumer_group_is_bounded_too(client: RawClient) -> None:
    codes = [beat(client, "crowd", f"m{n}", 0).error_code for n in range(GROUP_SIZE_MAX + 5)]
    assert codes == [0] * GROUP_SIZE_MAX + [ErrorCode.GROUP_MAX_SIZE_REACHED] * 5


# Names


def test_group_names_of_every_byte(broker: BrokerProcess) -> None:
    """Invalid UTF-8 closes the connection, and is never read as another name."""
    accepted = set()
    for byte in range(256):
        row = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=byte)
        topic = OffsetCommitRequest.Topic(name="t", partitions=[row])
        frame = encode_frame(OffsetCommitRequest(group_id="@", topics=[topic]), 7)
        assert frame.count(b"\0\1@") == 1
        with RawClient(broker.host, broker.port) as client:
            client.send_raw(frame.replace(b"\0\1@", b"\0\1" + bytes([byte])))
            try:
                response = client.receive_frame()
            except Closed:
                continue
            assert response[-2:] == b"\0\0", f"error code for byte {byte}"
            accepted.add(byte)
    assert accepted == set(range(128))
    with RawClient(broker.host, broker.port) as client:
        wanted = [OffsetFetchRequest.Group(group_id=chr(byte)) for byte in range(128)]
        groups = client.call(OffsetFetchRequest(groups=wanted), 9).groups
        found = [group.topics[0].partitions[0].committed_offset for group in groups]
        assert found == list(range(128))


# The offsets topic


def test_commits_over_and_over_do_not_pile_up(broker: BrokerProcess, client: RawClient) -> None:
    row = OffsetCommitRequest.Topic.Partition(
        partition_index=0, committed_offset=1, committed_metadata="x" * 300
    )
    topic = OffsetCommitRequest.Topic(name="t", partitions=[row])
    request = OffsetCommitRequest(group_id="busy", topics=[topic])
    before = _of_offsets_topic(broker, "millstream_log_size_bytes")
    for _ in range(30):
        for _ in range(WINDOW // 2):
            client.send(request, 9)
        for _ in range(WINDOW // 2):
            assert client.receive().topics[0].partitions[0].error_code == 0
    # Compaction reduces a megabyte to the last value and the active segment.
    wait_until(
        lambda: _of_offsets_topic(broker, "millstream_log_size_bytes") - before < 200_000,
        "compaction",
        60.0,
    )
