"""The record of a classic group: the last generation that got an assignment."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.coordination.effects import LogRecord
from millstream.groups import group_record as record
from millstream.groups.classic.classic_member import ClassicMember


@dataclass(slots=True)
class StoredGeneration:
    """The contents of the record. It has the members' metadata for one protocol only."""

    #: None for a group that never had members.
    protocol_type: str | None
    generation: int
    protocol_name: str | None
    leader: str | None
    state_since_ms: int
    members: list[ClassicMember]


def encode(group_id: str, stored: StoredGeneration) -> LogRecord:
    value = record.GroupMetadataValue(
        protocol_type=stored.protocol_type or "",
        generation=stored.generation,
        protocol=stored.protocol_name,
        leader=stored.leader,
        current_state_timestamp=stored.state_since_ms,
        members=[
            record.GroupMetadataValue.Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(stored.protocol_name),
                assignment=member.assignment,
            )
            for member in stored.members
        ],
    )
    return record.encode(record.GroupMetadataKey(group_id=group_id), value)


def tombstone(group_id: str) -> LogRecord:
    return record.encode(record.GroupMetadataKey(group_id=group_id), None)


def decode(value: record.GroupMetadataValue) -> StoredGeneration:
    return StoredGeneration(
        protocol_type=value.protocol_type or None,
        generation=value.generation,
        protocol_name=value.protocol,
        leader=value.leader,
        state_since_ms=value.current_state_timestamp,
        members=[
            ClassicMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=(
                    member.rebalance_timeout_ms
                    if member.rebalance_timeout_ms >= 0
                    else member.session_timeout_ms
                ),
                protocols=((value.protocol or "", member.subscription),),
                assignment=member.assignment,
            )
            for member in value.members
        ],
    )
