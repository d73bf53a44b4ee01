"""Changes of the members of a consumer group: joining, metadata, target and current assignment.

Events consist of these steps. Each step writes records (see `consumer_state`) and validates
nothing: the caller has done that. An event uses these steps, in this order:

    replace_member     a static member replaces its predecessor
    update_member      a member's metadata changes; a new epoch starts if others are affected
    reconcile_member   the target assignment is computed if due, and the member moves towards it

or `remove_members` alone. State outside `consumer_state` is lost in a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millstream.coordination.effects import Effects
from millstream.env.random import Random
from millstream.groups.consumer.consumer_settings import ConsumerGroupSettings
from millstream.groups.consumer.consumer_state import (
    ConsumerMember,
    ConsumerState,
    MemberMetadata,
    ResolvedPattern,
)
from millstream.groups.consumer.reconciliation import (
    CurrentAssignment,
    MemberState,
    MemberTarget,
    OwnedPartitions,
    reconcile,
)
from millstream.groups.consumer.target_assignment import (
    make_targets,
    metadata_hash,
    preferred_assignor,
)
from millstream.groups.subscription.pattern import compile_pattern
from millstream.groups.subscription.topic_view import TopicView
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import format_topic_id

SESSION: Final = "session"
REBALANCE: Final = "rebalance"
#: For members of the classic protocol: the time to join again, and to send SyncGroup.
JOIN: Final = "join"
SYNC: Final = "sync"


class ConsumerMembership:
    """The members of one group."""

    __slots__ = (
        "_patterns_ms",
        "_patterns_version",
        "_random",
        "_topics_version",
        "awaiting_rejoin",
        "group_id",
        "settings",
        "state",
    )

    def __init__(self, group_id: str, settings: ConsumerGroupSettings, random: Random) -> None:
        self.group_id = group_id
        #: May be replaced at any time; running timers keep their length.
        self.settings = settings
        self._random = random
        self.state = ConsumerState(group_id)
        #: The topics version of the metadata hash; None if the hash must be computed again.
        self._topics_version: int | None = None
        #: The topics version and time of the last resolution of all patterns.
        self._patterns_version: int | None = None
        self._patterns_ms = 0
        #: Members of the classic protocol that must join again and have a join timer.
        self.awaiting_rejoin: set[str] = set()

    @property
    def assignor_name(self) -> str:
        return preferred_assignor(self.state, self.settings.assignors)

    def new_member_id(self, prefix: str = "") -> str:
        """Return an id for a member that does not generate its own."""
        unique = format_topic_id(self._random.randbytes(16))
        return f"{prefix}-{unique}" if prefix else unique

    def check_size(self) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if the group is full."""
        if len(self.state.members) >= self.settings.group_size_max:
            raise BrokerError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the group already has {self.settings.group_size_max} members, the limit",
            )

    # Changes of members

    def update_member(
        self,
        now_ms: int,
        member_id: str,
        metadata: MemberMetadata,
        topics: TopicView,
        effects: Effects,
    ) -> None:
        """Set the metadata of a new or known member. A new epoch starts if its subscription or
        the topics changed."""
        member = self.state.members.get(member_id)
        before = None if member is None else member.metadata
        if before == metadata:
            # Nearly every heartbeat ends here, so this must be cheap in a large group.
            self._refresh_patterns(now_ms, topics, effects, has_new=False)
            self._refresh_epoch(topics, False, effects)
            return
        assignor_name = self.assignor_name
        self.state.write_metadata(effects, member_id, metadata)
        self._refresh_patterns(now_ms, topics, effects, has_new=True)
        is_change = before is None or _subscription(before) != _subscription(metadata)
        self._refresh_epoch(topics, is_change or assignor_name != self.assignor_name, effects)

    def replace_member(self, member: ConsumerMember, member_id: str, effects: Effects) -> None:
        """Give a static member that joined under a new id the assignment of its predecessor."""
        state = self.state
        if member_id in state.members:
            # The id belongs to another member, which becomes this instance.
            self.remove_members([member_id], effects)
        metadata, current = member.metadata, member.current
        target = state.targets.get(member.member_id, {})
        self.cancel_timers(member.member_id, effects)
        state.erase_member(effects, member.member_id)
        state.write_metadata(effects, member_id, metadata)
        state.write_target(effects, member_id, target)
        state.write_current(effects, member_id, current.reset_epochs())

    def remove_members(self, member_ids: Iterable[str], effects: Effects) -> None:
        """Remove members that left or were fenced: their partitions are free, and a new epoch
        starts."""
        for member_id in member_ids:
            self.cancel_timers(member_id, effects)
            self.state.erase_member(effects, member_id)
        for text in sorted(self.state.patterns.keys() - self.state.used_patterns):
            self.state.write_pattern(effects, text, None)
        # The topics are not known here. The next heartbeat computes the hash.
        self._topics_version = None
        self.state.write_epoch(effects, self.state.epoch + 1, self.state.metadata_hash)

    def reconcile_member(
        self,
        now_ms: int,
        member_id: str,
        owned: OwnedPartitions | None,
        topics: TopicView,
        effects: Effects,
    ) -> CurrentAssignment:
        """Compute the target assignment if it is due, and move a member towards it."""
        state = self.state
        if self.reachable_epoch(now_ms) > state.target_epoch:
            self._assign(now_ms, topics, effects)
        member = state.members[member_id]
        before = member.current
        if state.epoch == state.target_epoch and before.is_reconciled(state.target_epoch):
            # Nearly every heartbeat ends here.
            return before
        after = reconcile(
            before,
            self._target_of(member, topics),
            lambda topic_id, partition: state.owner(topic_id, partition) in (None, member_id),
            owned,
        )
        if after != before:
            state.write_current(effects, member_id, after)
            self.set_rebalance_timer(now_ms, member, effects)
        return after

    def _target_of(self, member: ConsumerMember, topics: TopicView) -> MemberTarget:
        state = self.state
        found = (topics.topic(name) for name in state.topics_of(member))
        return MemberTarget(
            epoch=state.target_epoch,
            partitions=state.targets.get(member.member_id, {}),
            topics={topic.topic_id for topic in found if topic is not None},
        )

    def reachable_epoch(self, now_ms: int) -> int:
        """Return the epoch that members can reach: the group's, unless its target assignment is
        delayed."""
        state, settings = self.state, self.settings
        is_small = len(state.members) < settings.large_group_size
        if is_small or now_ms - state.target_ms >= settings.assignment_interval_ms:
            return state.epoch
        return state.target_epoch

    def _assign(self, now_ms: int, topics: TopicView, effects: Effects) -> None:
        state = self.state
        for member_id, target in make_targets(state, self.assignor_name, topics).items():
            if target != state.targets.get(member_id):
                state.write_target(effects, member_id, target)
        state.write_target_epoch(effects, now_ms)

    def _refresh_epoch(self, topics: TopicView, is_change: bool, effects: Effects) -> None:
        """Start a new epoch after a change of members, subscriptions or topics."""
        state = self.state
        if not is_change and self._topics_version == topics.version:
            return
        found = metadata_hash(state.subscribed, topics)
        self._topics_version = topics.version
        if is_change:
            state.write_epoch(effects, state.epoch + 1, found)
        elif found != state.metadata_hash:
            # An epoch without a target assignment suffices: its target will use these topics.
            is_due = state.epoch > state.target_epoch
            state.write_epoch(effects, state.epoch + (not is_due), found)

    # Patterns

    def check_pattern(self, metadata: MemberMetadata, topics: TopicView) -> None:
        """Raise INVALID_REGULAR_EXPRESSION if a member's pattern is not valid."""
        text = metadata.subscribed_topic_regex
        if text and text not in self.state.patterns:
            compile_pattern(text).resolve(topics.names())

    def _refresh_patterns(
        self, now_ms: int, topics: TopicView, effects: Effects, *, has_new: bool
    ) -> None:
        """Resolve all patterns again if topics changed and the refresh interval has passed. With
        `has_new`, also resolve new patterns and drop unused ones."""
        state = self.state
        is_due = (
            bool(state.patterns)
            and self._patterns_version != topics.version
            and now_ms - self._patterns_ms >= self.settings.pattern_refresh_ms
        )
        if not is_due and not has_new:
            return
        used = state.used_patterns
        for text in sorted(state.patterns.keys() - used):
            state.write_pattern(effects, text, None)
        wanted = used if is_due else used - state.patterns.keys()
        if wanted == used:
            # All patterns are up to date after this.
            self._patterns_version, self._patterns_ms = topics.version, now_ms
        for text in sorted(wanted):
            self._resolve(now_ms, text, topics, effects)

    def _resolve(self, now_ms: int, text: str, topics: TopicView, effects: Effects) -> None:
        known = self.state.patterns.get(text)
        try:
            found = compile_pattern(text).resolve(topics.names())
        except BrokerError:
            # The pattern was valid when it was accepted. It takes too many steps for the present
            # topics, or another broker accepted it.
            found = known.topics if known is not None else frozenset()
        if known is None or known.topics != found:
            self.state.write_pattern(effects, text, ResolvedPattern(found, topics.version, now_ms))
            self._topics_version = None

    # Timers

    def set_rebalance_timer(self, now_ms: int, member: ConsumerMember, effects: Effects) -> None:
        """Set the rebalance timer of a member that revokes partitions, or cancel it. Members of
        the classic protocol have a join timer instead (see `classic_protocol`)."""
        if member.classic is not None:
            return
        if member.current.state is MemberState.UNREVOKED_PARTITIONS:
            due_ms = now_ms + member.metadata.rebalance_timeout_ms
            effects.set_timer((REBALANCE, member.member_id), due_ms)
        else:
            effects.cancel_timer((REBALANCE, member.member_id))

    def cancel_timers(self, member_id: str, effects: Effects) -> None:
        self.awaiting_rejoin.discard(member_id)
        for what in (SESSION, REBALANCE, JOIN, SYNC):
            effects.cancel_timer((what, member_id))


def _subscription(metadata: MemberMetadata) -> tuple[list[str], str | None]:
    return metadata.subscribed_topic_names, metadata.subscribed_topic_regex
