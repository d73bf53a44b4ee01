"""The roster of a classic group: members, leader, pending ids and running totals."""

from __future__ import annotations

import pytest

from millstream.groups.classic.classic_member import ClassicMember
from millstream.groups.classic.roster import PENDING_MAX, ClassicRoster
from millstream.model.error import BrokerError, ErrorCode


def member(
    member_id: str, *protocols: str, instance_id: str | None = None, timeout_ms: int = 1000
) -> ClassicMember:
    return ClassicMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id="client",
        client_host="/host",
        session_timeout_ms=500,
        rebalance_timeout_ms=timeout_ms,
        protocols=[(name, name.encode()) for name in protocols or ("range",)],
    )


def roster_of(*members: ClassicMember) -> ClassicRoster:
    roster = ClassicRoster()
    for each in members:
        roster.add(each)
    return roster


def test_the_first_member_leads_and_the_next_one_inherits() -> None:
    roster = roster_of(member("a"), member("b"))
    assert roster.leader_id == "a"
    roster.remove("a")
    assert roster.leader_id == "b"
    roster.remove("b")
    assert roster.leader_id is None


def test_totals_return_to_zero_when_all_members_leave() -> None:
    roster = roster_of(member("a", "range", "sticky"), member("b", "sticky"))
    roster.await_join(roster.members["a"], "reply")
    roster.assign(roster.members["b"], b"assignment")
    assert roster.weight > 0
    assert roster.awaiting_join_count == 1
    roster.remove("a")
    roster.remove("b")
    assert (roster.weight, roster.awaiting_join_count) == (0, 0)


def test_a_protocol_must_be_supported_by_all_members() -> None:
    roster = roster_of(member("a", "range", "sticky"), member("b", "sticky"))
    assert roster.supports([("sticky", b"")])
    assert not roster.supports([("range", b"")])
    assert roster.selected_protocol() == "sticky"
    roster.set_protocols(roster.members["b"], [("range", b"")])
    assert roster.supports([("range", b"")])


def test_all_have_joined_only_without_pending_ids() -> None:
    roster = roster_of(member("a"))
    assert not roster.have_all_joined
    roster.await_join(roster.members["a"], "reply")
    assert roster.have_all_joined
    roster.add_pending("b")
    assert not roster.have_all_joined
    roster.remove("b")
    assert roster.have_all_joined


def test_the_oldest_pending_id_is_dropped_beyond_the_limit() -> None:
    roster = ClassicRoster()
    dropped = [roster.add_pending(str(number)) for number in range(PENDING_MAX + 2)]
    assert dropped[-2:] == ["0", "1"]
    assert set(dropped[:-2]) == {None}


def test_a_renamed_static_member_keeps_its_position_and_leadership() -> None:
    roster = roster_of(member("a", instance_id="i"), member("b"))
    roster.rename(roster.members["a"], "a-again")
    assert list(roster.members) == ["a-again", "b"]
    assert roster.leader_id == "a-again"
    assert roster.static == {"i": "a-again"}


@pytest.mark.parametrize(
    ("member_id", "instance_id", "code"),
    [
        ("nobody", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", "other", ErrorCode.UNKNOWN_MEMBER_ID),
        ("b", "i", ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_check_rejects_wrong_identities(
    member_id: str, instance_id: str | None, code: ErrorCode
) -> None:
    roster = roster_of(member("a", instance_id="i"), member("b"))
    assert roster.check("a", "i") is roster.members["a"]
    with pytest.raises(BrokerError) as caught:
        roster.check(member_id, instance_id)
    assert caught.value.code == code


def test_a_leader_that_did_not_join_is_replaced_by_one_that_did() -> None:
    roster = roster_of(member("a"), member("b"))
    assert not roster.elect_joined_leader()
    roster.await_join(roster.members["b"], "reply")
    assert roster.elect_joined_leader()
    assert roster.leader_id == "b"


def test_the_longest_rebalance_timeout_counts() -> None:
    assert ClassicRoster().rebalance_timeout_ms == 0
    assert roster_of(member("a"), member("b", timeout_ms=9000)).rebalance_timeout_ms == 9000
