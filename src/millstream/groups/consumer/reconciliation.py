"""Reconciliation: moves one member from its current assignment to its target, step by step.

    state                   meaning                                 ends when
    STABLE                  the member has its target assignment    there is a newer target, or the
                                                                    member subscribes to less
    UNREVOKED_PARTITIONS    the member must revoke partitions       it reports that it has stopped
    UNRELEASED_PARTITIONS   it waits for partitions of others       the partitions are free

A member first revokes partitions, in its old epoch. Then it advances to the target's epoch and gets
the partitions that are free. Other members are not delayed: they keep their partitions, and a
partition goes to its next owner as soon as its last owner has revoked it. UNKNOWN is a state that a
later version has written.

A member's `CurrentAssignment` holds its partitions. The member still owns the partitions that it is
`revoking`, until it reports that it has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from millstream.model.topic import TopicId

#: Partitions, each with the epoch in which it was assigned.
PartitionEpochs: TypeAlias = Mapping[TopicId, Mapping[int, int]]
#: The partitions that a member reports to own.
OwnedPartitions: TypeAlias = Mapping[TopicId, Collection[int]]

#: The epoch of a static member that left temporarily.
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
    """The partitions and the epoch of a member."""

    epoch: int = 0
    #: The epoch before. A member that missed the response with its new epoch still sends it.
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict)
    revoking: PartitionEpochs = field(default_factory=dict)

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def covers(self, owned: OwnedPartitions | None) -> bool:
        """Whether all owned partitions are assigned to the member. False if `owned` is None."""
        return owned is not None and all(
            partition in self.assigned.get(topic_id, ())
            for topic_id, partitions in owned.items()
            for partition in partitions
        )

    def assignment_epoch(self, topic_id: TopicId, partition: int) -> int | None:
        """Return the epoch in which a partition was assigned; None if the member does not own
        it."""
        found = self.assigned.get(topic_id, {}).get(partition)
        return self.revoking.get(topic_id, {}).get(partition) if found is None else found

    def leave_temporarily(self) -> CurrentAssignment:
        """Return the assignment of a static member that has stopped and will come back."""
        return replace(self, epoch=STATIC_LEAVE_EPOCH, revoking={})

    def reset_epochs(self) -> CurrentAssignment:
        """Return the assignment of a static member that came back without state."""
        return replace(self, epoch=0, previous_epoch=0)


class MemberTarget(NamedTuple):
    """A member's part of the target assignment."""

    #: The epoch of the target assignment.
    epoch: int
    partitions: OwnedPartitions
    #: The topics that the member subscribes to now. Partitions of other topics in an older target
    #: are ignored: consumers fail if they get partitions that they did not subscribe to.
    topics: Collection[TopicId]


def reconcile(
    current: CurrentAssignment,
    goal: MemberTarget,
    is_free: Callable[[TopicId, int], bool],
    owned: OwnedPartitions | None,
) -> CurrentAssignment:
    """Return the member's assignment after its next step; unchanged if no step is possible yet.

    `owned` is the member's report, None if it sent none. `is_free` tells whether no other member
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
    """While a member revokes partitions, also revoke those of unsubscribed topics."""
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
    # A member that still waits has not advanced, so its previous epoch must not change.
    return before if replace(after, previous_epoch=before.previous_epoch) == before else after


def _divide(
    partition_epochs: PartitionEpochs, target: OwnedPartitions
) -> tuple[PartitionEpochs, PartitionEpochs]:
    """Split the partitions into those in the target and the rest."""
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
    """Add the free partitions of the target to the kept ones; return whether that is all of it."""
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
    """Whether a member may still own any of the partitions; without a report it may own all."""
    if not partition_epochs:
        return False
    if owned is None:
        return True
    return any(
        not partition_epochs[each].keys().isdisjoint(owned[each])
        for each in owned.keys() & partition_epochs.keys()
    )
