"""The persistent state of a consumer group: the contents of its records.

Every change is a record: `write` adds the record to the effects and applies it with `replay`, which
also loads the log. So replaying the log restores the state at any point.

    kind of record                here
    consumer group                `epoch`, `metadata_hash`
    member metadata               `members[id].metadata`
    target assignment's epoch     `target_epoch`, `target_ms`
    member's target assignment    `targets[id]`
    member's current assignment   `members[id].current`
    regular expression            `patterns[text]`

A member is deleted by three tombstones: current assignment, target assignment, then metadata.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.coordination.effects import Effects, LogRecord
from millstream.groups import group_record as record
from millstream.groups.consumer.assignor import Assignment
from millstream.groups.consumer.reconciliation import (
    CurrentAssignment,
    MemberState,
    PartitionEpochs,
)
from millstream.model.topic import TopicId

MemberMetadata = record.ConsumerGroupMemberMetadataValue
_CurrentValue = record.ConsumerGroupCurrentMemberAssignmentValue
_TargetValue = record.ConsumerGroupTargetAssignmentMemberValue


class ResolvedPattern(NamedTuple):
    """The topics that match a pattern in one version of the cluster's metadata."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclass(slots=True)
class ConsumerMember:
    """A member. `metadata` and `current` are replaced as a whole, never modified."""

    member_id: str
    metadata: MemberMetadata = field(default_factory=MemberMetadata)
    current: CurrentAssignment = field(default_factory=CurrentAssignment)

    @property
    def instance_id(self) -> str | None:
        return self.metadata.instance_id

    @property
    def classic(self) -> MemberMetadata.Classic | None:
        """The member's classic protocols; None if it speaks the consumer protocol."""
        return self.metadata.classic_member_metadata


class ConsumerState:
    """The persistent state of one group."""

    __slots__ = (
        "_has_old_topics",
        "_names",
        "_owners",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "patterns",
        "static",
        "target_epoch",
        "target_ms",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        #: Increases with each change of members, subscriptions or topics.
        self.epoch = 0
        #: The hash of the subscribed topics in this epoch.
        self.metadata_hash = 0
        #: The epoch of `targets`. New targets are due if it is behind `epoch`.
        self.target_epoch = 0
        self.target_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.patterns: dict[str, ResolvedPattern] = {}
        #: Member ids by instance id. Derived from `members`, like the next two.
        self.static: dict[str, str] = {}
        self._owners: dict[TopicId, dict[int, str]] = {}
        self._names: frozenset[str] | None = None
        #: Whether the log has a topics record of Kafka 4.0, which must be deleted too.
        self._has_old_topics = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConsumerState) and all(
            getattr(self, each) == getattr(other, each)
            for each in ConsumerState.__slots__
            if each != "_names"
        )

    __hash__ = None  # type: ignore[assignment]

    # Reading

    def owner(self, topic_id: TopicId, partition: int) -> str | None:
        """Return the member that owns a partition, or is revoking it."""
        return self._owners.get(topic_id, {}).get(partition)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics that a member subscribes to, by name and by pattern. Some may not
        exist."""
        names = frozenset(member.metadata.subscribed_topic_names)
        found = self.patterns.get(member.metadata.subscribed_topic_regex or "")
        return names if found is None else names | found.topics

    @property
    def subscribed(self) -> frozenset[str]:
        """The topics that any member subscribes to."""
        if self._names is None:
            names: set[str] = set()
            for member in self.members.values():
                names |= self.topics_of(member)
            self._names = frozenset(names)
        return self._names

    @property
    def used_patterns(self) -> set[str]:
        found = {member.metadata.subscribed_topic_regex for member in self.members.values()}
        return {each for each in found if each}

    # Changing

    def write(self, effects: Effects, key: record.Key, value: record.Value | None) -> None:
        """Append a record, and apply it."""
        effects.append(*record.encode(key, value))
        self.replay(key, value)

    def write_epoch(self, effects: Effects, epoch: int, metadata_hash: int) -> None:
        value = record.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
        self.write(effects, record.ConsumerGroupMetadataKey(group_id=self.group_id), value)
        if self._has_old_topics:
            # The metadata hash replaces the topics record.
            key = record.ConsumerGroupPartitionMetadataKey(group_id=self.group_id)
            self.write(effects, key, None)

    def write_metadata(self, effects: Effects, member_id: str, metadata: MemberMetadata) -> None:
        key = record.ConsumerGroupMemberMetadataKey(group_id=self.group_id, member_id=member_id)
        self.write(effects, key, metadata)

    def write_current(self, effects: Effects, member_id: str, current: CurrentAssignment) -> None:
        value = _CurrentValue(
            member_epoch=current.epoch,
            previous_member_epoch=current.previous_epoch,
            state=current.state,
            assigned_partitions=_epoch_rows(current.assigned),
            partitions_pending_revocation=_epoch_rows(current.revoking),
        )
        self.write(effects, self._current_key(member_id), value)

    def write_target(self, effects: Effects, member_id: str, target: Assignment) -> None:
        rows = [
            _TargetValue.TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in sorted(target.items())
        ]
        self.write(effects, self._target_key(member_id), _TargetValue(topic_partitions=rows))

    def write_target_epoch(self, effects: Effects, now_ms: int) -> None:
        value = record.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=self.epoch, assignment_timestamp=now_ms
        )
        key = record.ConsumerGroupTargetAssignmentMetadataKey(group_id=self.group_id)
        self.write(effects, key, value)

    def write_pattern(self, effects: Effects, text: str, resolved: ResolvedPattern | None) -> None:
        key = record.ConsumerGroupRegularExpressionKey(
            group_id=self.group_id, regular_expression=text
        )
        value = resolved and record.ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics),
            version=resolved.version,
            timestamp=resolved.timestamp_ms,
        )
        self.write(effects, key, value)

    def erase_member(self, effects: Effects, member_id: str) -> None:
        for key in self._member_keys(member_id):
            self.write(effects, key, None)

    def tombstones(self) -> list[LogRecord]:
        """Return the tombstones of all records, ordered so that every prefix is a valid log. The
        state does not change."""
        keys: list[record.Key] = []
        for member_id in self.members:
            keys += self._member_keys(member_id)
        group_id = self.group_id
        keys += [
            record.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=text)
            for text in self.patterns
        ]
        keys.append(record.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id))
        if self._has_old_topics:
            keys.append(record.ConsumerGroupPartitionMetadataKey(group_id=group_id))
        keys.append(record.ConsumerGroupMetadataKey(group_id=group_id))
        return [record.encode(key, None) for key in keys]

    def _member_keys(self, member_id: str) -> Iterable[record.Key]:
        group_id = self.group_id
        metadata = record.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
        return self._current_key(member_id), self._target_key(member_id), metadata

    def _current_key(self, member_id: str) -> record.ConsumerGroupCurrentMemberAssignmentKey:
        return record.ConsumerGroupCurrentMemberAssignmentKey(
            group_id=self.group_id, member_id=member_id
        )

    def _target_key(self, member_id: str) -> record.ConsumerGroupTargetAssignmentMemberKey:
        return record.ConsumerGroupTargetAssignmentMemberKey(
            group_id=self.group_id, member_id=member_id
        )

    # Replaying. In a compacted log a record may refer to a later one.

    def replay(self, key: record.Key, value: record.Value | None) -> None:
        """Apply a record of this group, other than an offset or a classic group's record."""
        match key, value:
            case record.ConsumerGroupMetadataKey(), _:
                self._replay_epoch(value)
            case record.ConsumerGroupMemberMetadataKey(member_id=member_id), _:
                self._replay_metadata(member_id, value)
            case record.ConsumerGroupTargetAssignmentMetadataKey(), _:
                self._replay_target_epoch(value)
            case record.ConsumerGroupTargetAssignmentMemberKey(member_id=member_id), _:
                self._replay_target(member_id, value)
            case record.ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id), _:
                self._replay_current(member_id, value)
            case record.ConsumerGroupRegularExpressionKey(regular_expression=text), _:
                self._replay_pattern(text, value)
            case record.ConsumerGroupPartitionMetadataKey(), _:
                self._has_old_topics = value is not None
            case _:
                raise TypeError(f"{type(key).__name__} is not a record of a consumer group")

    def _replay_epoch(self, value: record.Value | None) -> None:
        found = value if isinstance(value, record.ConsumerGroupMetadataValue) else None
        self.epoch = 0 if found is None else found.epoch
        self.metadata_hash = 0 if found is None else found.metadata_hash

    def _replay_target_epoch(self, value: record.Value | None) -> None:
        shape = record.ConsumerGroupTargetAssignmentMetadataValue
        found = value if isinstance(value, shape) else None
        self.target_epoch = 0 if found is None else found.assignment_epoch
        self.target_ms = 0 if found is None else found.assignment_timestamp

    def _replay_target(self, member_id: str, value: record.Value | None) -> None:
        if not isinstance(value, _TargetValue):
            self.targets.pop(member_id, None)
            return
        self.targets[member_id] = {
            row.topic_id: frozenset(row.partitions) for row in value.topic_partitions
        }

    def _replay_pattern(self, text: str, value: record.Value | None) -> None:
        self._names = None
        if not isinstance(value, record.ConsumerGroupRegularExpressionValue):
            self.patterns.pop(text, None)
            return
        self.patterns[text] = ResolvedPattern(
            frozenset(value.topics), value.version, value.timestamp
        )

    def _replay_metadata(self, member_id: str, value: record.Value | None) -> None:
        self._names = None
        if isinstance(value, MemberMetadata):
            member = self._member(member_id)
            self._forget_instance(member)
            member.metadata = value
            if value.instance_id is not None:
                self.static[value.instance_id] = member_id
        elif member_id in self.members:
            self._hold(self.members[member_id], CurrentAssignment())
            self._forget_instance(self.members.pop(member_id))

    def _replay_current(self, member_id: str, value: record.Value | None) -> None:
        if isinstance(value, _CurrentValue):
            self._hold(self._member(member_id), _current(value))
        elif member_id in self.members:
            self._hold(self.members[member_id], CurrentAssignment())

    def _member(self, member_id: str) -> ConsumerMember:
        return self.members.setdefault(member_id, ConsumerMember(member_id))

    def _forget_instance(self, member: ConsumerMember) -> None:
        instance_id = member.instance_id
        if instance_id is not None and self.static.get(instance_id) == member.member_id:
            del self.static[instance_id]

    def _hold(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        """Replace a member's current assignment, and update the owners of partitions."""
        before, member.current = member.current, current
        for partition_epochs in (before.assigned, before.revoking):
            for topic_id, partitions in partition_epochs.items():
                owners = self._owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self._owners.pop(topic_id, None)
        for partition_epochs in (current.assigned, current.revoking):
            for topic_id, partitions in partition_epochs.items():
                owners = self._owners.setdefault(topic_id, {})
                owners.update(dict.fromkeys(partitions, member.member_id))


def _epoch_rows(partition_epochs: PartitionEpochs) -> list[_CurrentValue.TopicPartitions]:
    return [
        _CurrentValue.TopicPartitions(
            topic_id=topic_id,
            partitions=sorted(partitions),
            assignment_epochs=[partitions[each] for each in sorted(partitions)],
        )
        for topic_id, partitions in sorted(partition_epochs.items())
    ]


def _current(value: _CurrentValue) -> CurrentAssignment:
    return CurrentAssignment(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned=_partition_epochs(value.assigned_partitions, value.member_epoch),
        revoking=_partition_epochs(value.partitions_pending_revocation, value.member_epoch),
    )


def _partition_epochs(rows: list[_CurrentValue.TopicPartitions], epoch: int) -> PartitionEpochs:
    """Decode the partitions of a record. Records before Kafka 4.3 have no assignment epochs."""
    return {
        row.topic_id: dict(
            zip(
                row.partitions,
                row.assignment_epochs or [epoch] * len(row.partitions),
                strict=False,
            )
        )
        for row in rows
        if row.partitions
    }
