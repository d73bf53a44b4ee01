"""The rebalance of a classic group: from a change of members to the next generation.

Owns the join and sync timers, the members that have not sent SyncGroup yet, and the delay of a
group's first rebalance. `classic_state` lists the states.

Timers: ("join", "") ends PREPARING_REBALANCE; ("sync", "") removes members that joined but never
fetched their assignment.
"""

from __future__ import annotations

from typing import Final

from millstream.coordination.effects import Effects, TimerKey
from millstream.groups.classic.classic_member import session_timer
from millstream.groups.classic.classic_settings import ClassicGroupSettings
from millstream.groups.classic.classic_state import ClassicState
from millstream.groups.classic.generation import ClassicGeneration, sync_error
from millstream.model.error import ErrorCode

JOIN_TIMER: Final[TimerKey] = ("join", "")
SYNC_TIMER: Final[TimerKey] = ("sync", "")

_EMPTY, _PREPARING = ClassicState.EMPTY, ClassicState.PREPARING_REBALANCE
_COMPLETING = ClassicState.COMPLETING_REBALANCE


class ClassicRebalance:
    """The rebalance of one group; it works on the group's generation."""

    __slots__ = (
        "_generation",
        "_has_new_member",
        "_initial_left_ms",
        "_settings",
        "_unsynced",
    )

    def __init__(self, generation: ClassicGeneration, settings: ClassicGroupSettings) -> None:
        self._generation = generation
        self._settings = settings
        #: Members of this generation that have not sent SyncGroup yet.
        self._unsynced: set[str] = set()
        #: How much longer the first rebalance of an empty group may be delayed for more members;
        #: None while no first rebalance is in progress.
        self._initial_left_ms: int | None = None
        #: Whether a member was added since the last delay of a first rebalance.
        self._has_new_member = False

    @property
    def unsynced(self) -> list[str]:
        """The members of this generation that have not sent SyncGroup yet, sorted."""
        return sorted(self._unsynced)

    def add_new_member(self) -> None:
        """Note that a member joined for the first time: it may prolong a first rebalance."""
        self._has_new_member = True

    def drop_unsynced(self, member_id: str) -> None:
        """Do not wait for this member's SyncGroup any longer."""
        self._unsynced.discard(member_id)

    def mark_synced(self, member_id: str, effects: Effects) -> None:
        """Note the member's SyncGroup; the last one cancels the sync timer."""
        self._unsynced.discard(member_id)
        if not self._unsynced:
            effects.cancel_timer(SYNC_TIMER)

    def update(self, now_ms: int, effects: Effects) -> None:
        """Begin a rebalance after a change of members, or complete the one in progress."""
        roster = self._generation.roster
        if self._generation.state is not _PREPARING:
            self._begin(now_ms, effects)
            return
        # A first rebalance waits for its timer, unless all members have left again.
        is_delayed = self._initial_left_ms is not None and bool(roster.members)
        if roster.have_all_joined and not is_delayed:
            self._complete_join(now_ms, effects)

    def expire_join(self, now_ms: int, effects: Effects) -> None:
        """Handle the join timer: prolong a first rebalance, or end the join phase."""
        if self._generation.state is not _PREPARING:
            return
        if self._initial_left_ms and self._has_new_member:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self._has_new_member = False
            effects.set_timer(JOIN_TIMER, now_ms + delay_ms)
            return
        self._complete_join(now_ms, effects)

    def _begin(self, now_ms: int, effects: Effects) -> None:
        generation, roster = self._generation, self._generation.roster
        if generation.state is _COMPLETING:
            for member in roster:
                roster.assign(member, b"")
                if member.complete_sync(sync_error(ErrorCode.REBALANCE_IN_PROGRESS), effects):
                    member.restart_session(now_ms, effects)
        self._unsynced.clear()
        effects.cancel_timer(SYNC_TIMER)
        timeout_ms = roster.rebalance_timeout_ms
        if generation.state is _EMPTY:
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._initial_left_ms = max(timeout_ms - delay_ms, 0)
            self._has_new_member = False
            generation.enter(_PREPARING, now_ms)
            effects.set_timer(JOIN_TIMER, now_ms + delay_ms)
            return
        generation.enter(_PREPARING, now_ms)
        if roster.have_all_joined:
            self._complete_join(now_ms, effects)
        else:
            effects.set_timer(JOIN_TIMER, now_ms + timeout_ms)

    def _complete_join(self, now_ms: int, effects: Effects) -> None:
        """End the join phase: the members that have joined form the next generation."""
        generation, roster = self._generation, self._generation.roster
        effects.cancel_timer(JOIN_TIMER)
        self._initial_left_ms = None
        missing = [each for each in roster if each.awaiting_join is None]
        for member in missing:
            # A static member has until its session timeout to come back.
            if member.instance_id is None:
                roster.remove(member.member_id)
                effects.cancel_timer(session_timer(member.member_id))
        if not roster.members:
            generation.become_empty(now_ms)
            generation.append_record(effects)
        elif roster.elect_joined_leader():
            self._begin_generation(now_ms, effects)
        else:
            effects.set_timer(JOIN_TIMER, now_ms + roster.rebalance_timeout_ms)

    def _begin_generation(self, now_ms: int, effects: Effects) -> None:
        generation, roster = self._generation, self._generation.roster
        generation.begin(now_ms)
        for member in roster:
            self._unsynced.add(member.member_id)
            reply = roster.pop_join(member)
            if reply is None:
                continue
            is_leader = member.member_id == roster.leader_id
            effects.deliver(reply, generation.join_response(member, show_members=is_leader))
            member.is_new = False
            member.restart_session(now_ms, effects)
        effects.set_timer(SYNC_TIMER, now_ms + roster.rebalance_timeout_ms)
