"""Every changing API declares how its changes are found; no function reads a secret."""

from __future__ import annotations

from millstream.broker.audit import change
from millstream.broker.handlers import ENTRIES
from millstream.wire.api import ApiKey
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from millstream.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse

#: APIs that change something for others than the client itself.
CHANGING = {
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.CREATE_ACLS,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_ACLS,
    ApiKey.DELETE_GROUPS,
    ApiKey.DELETE_RECORDS,
    ApiKey.DELETE_TOPICS,
    ApiKey.ELECT_LEADERS,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_DELETE,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.UPDATE_FEATURES,
    ApiKey.WRITE_TXN_MARKERS,
}


def test_every_changing_api_is_audited() -> None:
    found = {entry.request.api_key for entry in ENTRIES if entry.audit is not None}
    assert found == CHANGING


def test_a_validation_is_no_change() -> None:
    row = CreateTopicsResponse.Topic(name="t")
    made = CreateTopicsResponse(topics=[row])
    assert list(change.topics_created(CreateTopicsRequest(validate_only=True), made)) == []
    assert list(change.topics_created(CreateTopicsRequest(), made)) == [change.Change("topic:t", 0)]


def test_commits_of_members_are_left_out() -> None:
    topic = OffsetCommitResponse.Topic(
        name="t", partitions=[OffsetCommitResponse.Topic.Partition(error_code=0)]
    )
    made = OffsetCommitResponse(topics=[topic])
    member = OffsetCommitRequest(group_id="g", member_id="m", generation_id_or_member_epoch=3)
    assert list(change.offsets_committed(member, made)) == []
    reset = OffsetCommitRequest(group_id="g")
    assert [each.resource for each in change.offsets_committed(reset, made)] == ["group:g"]


def test_idempotent_producers_fence_nobody() -> None:
    made = InitProducerIdResponse()
    assert list(change.producer_fenced(InitProducerIdRequest(), made)) == []
    fencing = InitProducerIdRequest(transactional_id="x")
    (found,) = change.producer_fenced(fencing, made)
    assert found.resource == "transactional-id:x"


def test_reassignments_have_their_replicas() -> None:
    asked = AlterPartitionReassignmentsRequest.Topic
    told = AlterPartitionReassignmentsResponse.Topic
    request = AlterPartitionReassignmentsRequest(
        topics=[
            asked(
                name="t",
                partitions=[
                    asked.Partition(partition_index=0, replicas=[1, 2]),
                    asked.Partition(partition_index=1, replicas=None),
                ],
            )
        ]
    )
    rows = [told.Partition(partition_index=number) for number in (0, 1)]
    made = AlterPartitionReassignmentsResponse(responses=[told(name="t", partitions=rows)])
    details = [each.detail for each in change.partitions_reassigned(request, made)]
    assert details == ["partition 0: replicas [1, 2]", "partition 1: cancelled"]


def test_passwords_of_users_are_not_read() -> None:
    upsertion = AlterUserScramCredentialsRequest.Upsertion(name="a", salted_password=b"SECRET")
    request = AlterUserScramCredentialsRequest(upsertions=[upsertion])
    row = AlterUserScramCredentialsResponse.Result(user="a")
    (found,) = change.users_altered(request, AlterUserScramCredentialsResponse(results=[row]))
    assert found.resource == "user:a"
    assert "SECRET" not in repr(found)


def test_members_that_an_operator_removes() -> None:
    member = LeaveGroupRequest.Member

    def found(*members: LeaveGroupRequest.Member) -> list[tuple[str, str]]:
        rows = [LeaveGroupResponse.Member(member_id=each.member_id) for each in members]
        request = LeaveGroupRequest(group_id="g", members=list(members))
        changes = change.members_removed(request, LeaveGroupResponse(members=rows))
        return [(each.resource, each.detail) for each in changes]

    assert found(member(member_id="m")) == []
    assert found(member(member_id="m", reason="the consumer is being closed")) == []
    assert found(member(group_instance_id="static")) == [("group:g", "removed static")]
    assert found(member(member_id="m"), member(member_id="n")) == [("group:g", "removed m, n")]
    by_admin = "member was removed by an admin: maintenance"
    assert found(member(member_id="m", reason=by_admin)) == [("group:g", "removed m")]
