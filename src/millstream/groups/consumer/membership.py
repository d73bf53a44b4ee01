"""The members of a consumer group: changes of who they are, what they want and what they have.

These are the steps that events are made of. They write what they change, see `consumer_state`, and
check nothing; that is up to whoever takes them. An event takes these, in this order:

    replace_member    a static member takes the place of its predecessor
    update_member     a member wants something; a new epoch starts if that concerns the others
    step              the target is made if it is due, and the member goes towards it

or `remove_members` alone. What is kept here besides the lasting state is gone after a restart.
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
#: For members of the classic protocol: to join again, and to fetch what they were assigned.
JOIN: Final = "join"
SYNC: Final = "sync"


class ConsumerMembership:
    """See the module's text. `ConsumerGroup` adds the events."""

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
        #: May be replaced at any time; timers that run keep their length.
        self.settings = settings
        self._random = random
        self.state = ConsumerState(group_id)
        #: The version of the topics for which the metadata hash was made; None: make it again.
        self._topics_version: int | None = None
        #: The same for patterns, and when.
        self._patterns_version: int | None = None
        self._patterns_ms = 0
        #: Members of the classic protocol that were told to join again, and have a timer for it.
        self.awaiting_rejoin: set[str] = set()

    @property
    def assignor_name(self) -> str:
        return preferred_assignor(self.state, self.settings.assignors)

    def new_member_id(self, prefix: str = "") -> str:
        """For those that can't make up their own."""
        unique = format_topic_id(self._random.randbytes(16))
        return f"{prefix}-{unique}" if prefix else unique

    def check_size(self) -> None:
        """GROUP_MAX_SIZE_REACHED if there is no room for one more."""
        if len(self.state.members) >= self.settings.group_size_max:
            raise BrokerError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the group has its {self.settings.group_size_max} members already",
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
        """Let a member, new or known, want this; start a new epoch if that is a change to
        others, or if the topics changed."""
        member = self.state.members.get(member_id)
        before = None if member is None else member.metadata
        if before == metadata:
            # As in nearly every heartbeat; it must cost nothing in a large group.
            self._refresh_patterns(now_ms, topics, effects, has_new=False)
            self._refresh_epoch(topics, False, effects)
            return
        assignor_name = self.assignor_name
        self.state.write_metadata(effects, member_id, metadata)
        self._refresh_patterns(now_ms, topics, effects, has_new=True)
        is_change = before is None or _subscription(before) != _subscription(metadata)
        self._refresh_epoch(topics, is_change or assignor_name != self.assignor_name, effects)

    def replace_member(self, member: ConsumerMember, member_id: str, effects: Effects) -> None:
        """A static member is back under a new id: it gets what its predecessor had."""
        state = self.state
        if member_id in state.members:
            # A member turned into this instance: what it was ends here.
            self.remove_members([member_id], effects)
        metadata, current = member.metadata, member.current
        target = state.targets.get(member.member_id, {})
        self.cancel_timers(member.member_id, effects)
        state.erase_member(effects, member.member_id)
        state.write_metadata(effects, member_id, metadata)
        state.write_target(effects, member_id, target)
        state.write_current(effects, member_id, current.reset_epochs())

    def remove_members(self, member_ids: Iterable[str], effects: Effects) -> None:
        """They left or were fenced: what they owned is free, and a new epoch starts."""
        for member_id in member_ids:
            self.cancel_timers(member_id, effects)
            self.state.erase_member(effects, member_id)
        for text in sorted(self.state.patterns.keys() - self.state.used_patterns):
            self.state.write_pattern(effects, text, None)
        # Without a view of the topics the hash stays; the next heartbeat makes it anew.
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
        """Make the target if it is due, and take a member towards it."""
        state = self.state
        if self.reachable_epoch(now_ms) > state.target_epoch:
            self._assign(now_ms, topics, effects)
        member = state.members[member_id]
        before = member.current
        if state.epoch == state.target_epoch and before.is_reconciled(state.target_epoch):
            # As in nearly every heartbeat.
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
        """The epoch that members can get to: the group's, unless its target has to wait."""
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
        """Start a new epoch if something changed, be it only the topics."""
        state = self.state
        if not is_change and self._topics_version == topics.version:
            return
        found = metadata_hash(state.subscribed, topics)
        self._topics_version = topics.version
        if is_change:
            state.write_epoch(effects, state.epoch + 1, found)
        elif found != state.metadata_hash:
            # An epoch that has no target yet will do: its target is made of these topics.
            is_due = state.epoch > state.target_epoch
            state.write_epoch(effects, state.epoch + (not is_due), found)

    # Patterns

    def check_pattern(self, metadata: MemberMetadata, topics: TopicView) -> None:
        """INVALID_REGULAR_EXPRESSION if a member may not want its pattern."""
        text = metadata.subscribed_topic_regex
        if text and text not in self.state.patterns:
            compile_pattern(text).resolve(topics.names())

    def _refresh_patterns(
        self, now_ms: int, topics: TopicView, effects: Effects, *, has_new: bool
    ) -> None:
        """From time to time see if patterns match other topics now. If members may want others
        than before, resolve those that are new, and drop those that nobody uses."""
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
            # All are up to date then.
            self._patterns_version, self._patterns_ms = topics.version, now_ms
        for text in sorted(wanted):
            self._resolve(now_ms, text, topics, effects)

    def _resolve(self, now_ms: int, text: str, topics: TopicView, effects: Effects) -> None:
        known = self.state.patterns.get(text)
        try:
            found = compile_pattern(text).resolve(topics.names())
        except BrokerError:
            # It was fine when it came: too many topics for it now, or another broker let it in.
            found = known.topics if known is not None else frozenset()
        if known is None or known.topics != found:
            self.state.write_pattern(effects, text, ResolvedPattern(found, topics.version, now_ms))
            self._topics_version = None

    # Timers

    def set_rebalance_timer(self, now_ms: int, member: ConsumerMember, effects: Effects) -> None:
        """Members of the classic protocol give up partitions by joining again, see
        `consumer_classic`."""
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
