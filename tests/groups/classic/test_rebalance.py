"""The rebalance of a classic group, without requests: timers, delays and SyncGroup."""

from __future__ import annotations

from groups.classic.test_roster import member
from millstream.coordination.effects import Effects
from millstream.groups.classic.classic_settings import ClassicGroupSettings
from millstream.groups.classic.classic_state import ClassicState
from millstream.groups.classic.generation import ClassicGeneration
from millstream.groups.classic.rebalance import JOIN_TIMER, SYNC_TIMER, ClassicRebalance
from millstream.model.error import ErrorCode

DELAY_MS = 300
REBALANCE_MS = 1000


class Parts:
    """A generation and its rebalance."""

    def __init__(self) -> None:
        self.generation = ClassicGeneration("g")
        self.generation.protocol_type = "consumer"
        settings = ClassicGroupSettings(initial_rebalance_delay_ms=DELAY_MS)
        self.rebalance = ClassicRebalance(self.generation, settings)

    def join(self, now_ms: int, member_id: str, **options: str) -> Effects:
        effects = Effects()
        known = self.generation.roster.members.get(member_id)
        if known is None:
            known = member(member_id, **options)
            self.generation.roster.add(known)
            self.rebalance.add_new_member()
        self.generation.roster.await_join(known, f"join-{member_id}")
        self.rebalance.update(now_ms, effects)
        return effects

    def expire_join(self, now_ms: int) -> Effects:
        effects = Effects()
        self.rebalance.expire_join(now_ms, effects)
        return effects

    def begin_generation(self, *member_ids: str) -> Effects:
        for member_id in member_ids:
            self.join(0, member_id)
        effects = self.expire_join(DELAY_MS)
        return effects if effects.replies else self.expire_join(2 * DELAY_MS)


def test_a_first_rebalance_waits_for_more_members() -> None:
    parts = Parts()
    assert parts.join(0, "a").timers[-1] == (JOIN_TIMER, DELAY_MS)
    parts.join(100, "b")
    assert parts.expire_join(DELAY_MS).timers == [(JOIN_TIMER, 2 * DELAY_MS)]
    done = parts.expire_join(2 * DELAY_MS)
    assert {reply for reply, _ in done.replies} == {"join-a", "join-b"}
    assert parts.generation.state is ClassicState.COMPLETING_REBALANCE


def test_the_delay_of_a_first_rebalance_is_bounded() -> None:
    parts = Parts()
    now_ms = 0
    parts.join(now_ms, "a")
    for number in range(100):
        parts.join(now_ms, f"more-{number}")
        now_ms = min(now_ms + DELAY_MS, REBALANCE_MS)
        if parts.expire_join(now_ms).replies:
            break
    assert (parts.generation.number, now_ms) == (1, REBALANCE_MS)


def test_a_later_rebalance_ends_when_the_last_member_joins() -> None:
    parts = Parts()
    parts.begin_generation("a", "b")
    begun = parts.join(2000, "a")
    assert (JOIN_TIMER, 2000 + REBALANCE_MS) in begun.timers
    done = parts.join(2001, "b")
    assert {reply for reply, _ in done.replies} == {"join-a", "join-b"}
    assert parts.generation.number == 2


def test_members_that_do_not_join_in_time_are_removed_unless_static() -> None:
    parts = Parts()
    parts.join(0, "static", instance_id="i")
    parts.begin_generation("a", "b")
    parts.join(2000, "a")
    parts.expire_join(2000 + REBALANCE_MS)
    assert list(parts.generation.roster.members) == ["static", "a"]
    assert parts.generation.roster.leader_id == "a"


def test_the_group_becomes_empty_when_no_member_joins() -> None:
    parts = Parts()
    parts.begin_generation("a")
    parts.generation.roster.remove("a")
    effects = Effects()
    parts.rebalance.update(2000, effects)
    assert parts.generation.state is ClassicState.EMPTY
    assert len(effects.records) == 1


def test_the_last_sync_cancels_the_sync_timer() -> None:
    parts = Parts()
    parts.begin_generation("a", "b")
    assert parts.rebalance.unsynced == ["a", "b"]
    effects = Effects()
    parts.rebalance.mark_synced("b", effects)
    assert (parts.rebalance.unsynced, effects.timers) == (["a"], [])
    parts.rebalance.mark_synced("a", effects)
    assert effects.timers == [(SYNC_TIMER, None)]


def test_a_new_rebalance_fails_the_sync_requests_that_wait() -> None:
    parts = Parts()
    parts.begin_generation("a", "b")
    parts.generation.roster.members["b"].awaiting_sync = "sync-b"
    effects = parts.join(2000, "c")
    (response,) = [each for reply, each in effects.replies if reply == "sync-b"]
    assert response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert parts.rebalance.unsynced == []
