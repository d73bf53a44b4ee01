"""Expires the session of a group member."""

from __future__ import annotations

from millstream.groups.consumer.membership import SESSION
from millstream.groups.group import Group
from millstream.groups.group_coordinator import GroupCoordinator
from millstream.model.error import BrokerError
from millstream.testing.error import MemberNotFoundError


def expire_member(groups: GroupCoordinator, group_id: str, member_id: str | None) -> str:
    """Expire a member, or without an id the only member; return its id.

    Raises MemberNotFoundError if there is no such member, or if its session cannot expire because
    it waits for the response of the broker in a rebalance."""
    members = _members(groups, group_id)
    if member_id is None:
        if len(members) != 1:
            raise MemberNotFoundError(
                f"group {group_id!r} has {len(members)} members: name the one that expires"
            )
        member_id = members[0]
    elif member_id not in members:
        known = ", ".join(members) or "none"
        raise MemberNotFoundError(
            f"group {group_id!r} has no member {member_id!r}; it has: {known}"
        )
    shards = groups.shards
    shard = shards.of(group_id)
    shard.expire_timer(shards.now_ms, group_id, (SESSION, member_id), shards.topics)
    if member_id in _members(groups, group_id):
        raise MemberNotFoundError(
            f"member {member_id!r} waits for the rebalance of group {group_id!r} to end, "
            "and does not expire meanwhile"
        )
    return member_id


def _members(groups: GroupCoordinator, group_id: str) -> list[str]:
    try:
        group: Group | None = groups.find(group_id)
    except BrokerError as error:
        raise MemberNotFoundError(f"group {group_id!r} cannot be read: {error}") from error
    return [] if group is None else list(group.member_ids)
