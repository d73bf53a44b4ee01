"""Bringing one member from what it has to what it is meant to have, step by step.

    state                   what the member does                       left when
    STABLE                  has its target                             there is a newer target,
                                                                       or it subscribes to less
    UNREVOKED_PARTITIONS    gives up what is no longer its own         it says that it has
    UNRELEASED_PARTITIONS   waits for partitions that others still have  they are free

A member first gives up, in its old epoch, then moves on to the target's epoch and is given what is
free. Nobody else is held up: members that keep what they have go on, and a partition goes to its
next owner as soon as its last one is rid of it. UNKNOWN is a state of a later version's making.

A member's `CurrentAssignment` holds its partitions. The member still owns the partitions that it is
`revoking`, until it reports that it has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from millstream.model.topic import TopicId

#: Partitions, each with the epoch in which its owner was given it.
PartitionEpochs: TypeAlias = Mapping[TopicId, Mapping[int, int]]
#: What a member says that it owns.
OwnedPartitions: TypeAlias = Mapping[TopicId, Collection[int]]

#: The epoch of a static member that is away for a while.
STATIC_LEAVE_EPOCH: Final = -2


class MemberState(IntEnum):
    """The numbers are those in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """What a member has, and in which epoch it is."""

    epoch: int = 0
    #: The one before: a member that did not hear of its new epoch comes back with it.
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict)
    revoking: PartitionEpochs = field(default_factory=dict)

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def covers(self, owned: OwnedPartitions | None) -> bool:
        """Whether what a member says to own is all assigned to it."""
        return owned is not None and all(
            partition in self.assigned.get(topic_id, ())
            for topic_id, partitions in owned.items()
            for partition in partitions
        )

    def assignment_epoch(self, topic_id: TopicId, partition: int) -> int | None:
        """The epoch in which it was given a partition that it still owns."""
        found = self.assigned.get(topic_id, {}).get(partition)
        return self.revoking.get(topic_id, {}).get(partition) if found is None else found

    def leave_temporarily(self) -> CurrentAssignment:
        """A static member goes away for a while: it has stopped, and will come back."""
        return replace(self, epoch=STATIC_LEAVE_EPOCH, revoking={})

    def reset_epochs(self) -> CurrentAssignment:
        """A static member is back, having kept nothing but its claim."""
        return replace(self, epoch=0, previous_epoch=0)


class MemberTarget(NamedTuple):
    """Where a member is to get."""

    #: The target's.
    epoch: int
    #: Its part of the target.
    partitions: OwnedPartitions
    #: What it subscribes to by now. The target may be older, and does not count for other topics:
    #: consumers take it amiss to be given what they don't want.
    topics: Collection[TopicId]


def reconcile(
    current: CurrentAssignment,
    goal: MemberTarget,
    is_free: Callable[[TopicId, int], bool],
    owned: OwnedPartitions | None,
) -> CurrentAssignment:
    """The next step of a member; the same holding if it can't take one yet.

    `owned` is what it says to own, None if it says nothing. `is_free` tells whether no other member
    owns a partition.
    """
    if current.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, current.revoking):
        return _unsubscribed(current, goal.topics)
    wanted = {each: goal.partitions[each] for each in goal.partitions if each in goal.topics}
    kept, surplus = _divide(current.assigned, wanted)
    if _owns_any(owned, surplus):
        return _moved(current, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, surplus)
    assigned, is_complete = _extend(kept, wanted, goal.epoch, is_free)
    state = MemberState.STABLE if is_complete else MemberState.UNRELEASED_PARTITIONS
    return _moved(current, goal.epoch, state, assigned, {})


def _unsubscribed(current: CurrentAssignment, topics: Collection[TopicId]) -> CurrentAssignment:
    """While a member gives up partitions, let it give up those of other topics too."""
    if all(topic_id in topics for topic_id in current.assigned):
        return current
    revoking = {topic_id: dict(each) for topic_id, each in current.revoking.items()}
    for topic_id, partitions in current.assigned.items():
        if topic_id not in topics:
            revoking.setdefault(topic_id, {}).update(partitions)
    kept = {each: current.assigned[each] for each in current.assigned if each in topics}
    return replace(current, assigned=kept, revoking=revoking)


def _moved(
    before: CurrentAssignment,
    epoch: int,
    state: MemberState,
    assigned: PartitionEpochs,
    revoking: PartitionEpochs,
) -> CurrentAssignment:
    after = CurrentAssignment(epoch, before.epoch, state, assigned, revoking)
    # Waiting on is not a step, and must not make the last epoch look like the one before it.
    return before if replace(after, previous_epoch=before.previous_epoch) == before else after


def _divide(
    partition_epochs: PartitionEpochs, target: OwnedPartitions
) -> tuple[PartitionEpochs, PartitionEpochs]:
    """What the target has too, and the rest."""
    both: dict[TopicId, dict[int, int]] = {}
    rest: dict[TopicId, dict[int, int]] = {}
    for topic_id, partitions in partition_epochs.items():
        wanted = target.get(topic_id, ())
        for partition, epoch in partitions.items():
            part = both if partition in wanted else rest
            part.setdefault(topic_id, {})[partition] = epoch
    return both, rest


def _extend(
    kept: PartitionEpochs,
    target: OwnedPartitions,
    target_epoch: int,
    is_free: Callable[[TopicId, int], bool],
) -> tuple[PartitionEpochs, bool]:
    """What is kept with all of the target that is free, and whether that is the whole target."""
    assigned: dict[TopicId, dict[int, int]] = {}
    is_complete = True
    for topic_id, partitions in sorted(target.items()):
        has = kept.get(topic_id, {})
        gets: dict[int, int] = {}
        for partition in sorted(partitions):
            if partition in has:
                gets[partition] = has[partition]
            elif is_free(topic_id, partition):
                gets[partition] = target_epoch
            else:
                is_complete = False
        if gets:
            assigned[topic_id] = gets
    return assigned, is_complete


def _owns_any(owned: OwnedPartitions | None, partition_epochs: PartitionEpochs) -> bool:
    """Whether a member may still own any of these; one that says nothing may own them all."""
    if not partition_epochs:
        return False
    if owned is None:
        return True
    return any(
        not partition_epochs[each].keys().isdisjoint(owned[each])
        for each in owned.keys() & partition_epochs.keys()
    )
