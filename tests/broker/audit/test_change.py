"""Every changing API declares how its changes are found; no function reads a secret."""

from __future__ import annotations

from millstream.broker.audit import change
from millstream.broker.handlers import ENTRIES
from millstream.wire.api import ApiKey
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from millstream.wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
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


def test_acls_have_the_words_of_commands() -> None:
    creation = CreateAclsRequest.Creation(
        resource_type=5,
        resource_name="spark-",
        resource_pattern_type=4,
        principal="User:alice",
        host="*",
        operation=4,
        permission_type=3,
    )
    request = CreateAclsRequest(creations=[creation])
    made = CreateAclsResponse(results=[CreateAclsResponse.Result()])
    (found,) = change.acls_created(request, made)
    assert found.resource == "acl:transactional-id/prefixed/spark-"
    assert found.detail == "allow User:alice from *: write"
    creation.operation = 99
    (found,) = change.acls_created(request, made)
    assert found.detail == "allow User:alice from *: 99"


def test_quotas_have_all_digits() -> None:
    entry = AlterClientQuotasRequest.Entry
    ops = [
        entry.Op(key="producer_byte_rate", value=1_234_567_890.0),
        entry.Op(key="request_percentage", value=12.5),
        entry.Op(key="consumer_byte_rate", remove=True),
    ]
    entity = [entry.Entity(entity_type="user", entity_name="alice")]
    row = AlterClientQuotasResponse.Entry(
        entity=[AlterClientQuotasResponse.Entry.Entity(entity_type="user", entity_name="alice")]
    )
    request = AlterClientQuotasRequest(entries=[entry(entity=entity, ops=ops)])
    (found,) = change.quotas_altered(request, AlterClientQuotasResponse(entries=[row]))
    assert found.resource == "quota:user=alice"
    assert found.detail == (
        "producer_byte_rate=1234567890, request_percentage=12.5, consumer_byte_rate removed"
    )


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
