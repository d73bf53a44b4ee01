"""The DescribeGroups response for a classic group."""

from __future__ import annotations

from millstream.groups.classic.classic_group import ClassicGroup
from millstream.groups.classic.classic_state import ClassicState
from millstream.wire.messages.describe_groups import DescribeGroupsResponse

_Group = DescribeGroupsResponse.Group


def describe_classic_group(group: ClassicGroup) -> _Group:
    """Describe a group. Subscriptions and assignments are included only if the group is stable: in
    any other state they are about to change."""
    is_stable = group.state is ClassicState.STABLE
    return _Group(
        group_id=group.group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=[
            _Group.Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.roster
        ],
    )
