"""Reassigns a partition's replicas to other brokers. Pure.

While a reassignment is in progress, `replicas` has the wanted and the present replicas, `adding`
the new ones, and `removing` those that will be removed. It completes when every wanted replica is
in sync. The others are then removed, and if the leader is one of them, a wanted replica leads.

    begin     replicas 1 2 3, wanted 1 4   ->  replicas 1 4 2 3, adding 4, removing 2 3
    complete  isr holds 1 and 4            ->  replicas 1 4
    cancel    at any time before           ->  replicas 1 2 3
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from typing import Final

import msgspec

from millstream.metadata import replica_set
from millstream.metadata.cluster_record import PartitionRecord
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_LEADER

_ONLY_NEW: Final = "only replicas that the reassignment added are in sync; bring another one back"


def begin(
    record: PartitionRecord, wanted: Sequence[int], eligible: Collection[int]
) -> PartitionRecord | None:
    """Start a reassignment, or change the target of the one in progress; None if nothing changes.

    INVALID_REPLICA_ASSIGNMENT if the wanted replicas are not allowed."""
    aim = tuple(wanted)
    _check(aim, record, eligible)
    original = _original(record)
    adding = tuple(replica for replica in aim if replica not in original)
    removing = tuple(replica for replica in original if replica not in aim)
    kept = tuple(replica for replica in original if replica not in aim)
    # Drop replicas that an earlier reassignment added and this one does not want.
    isr = tuple(replica for replica in record.isr if replica in aim or replica in original)
    if record.isr and not isr:
        raise _invalid(_ONLY_NEW)
    changed = msgspec.structs.replace(
        record, replicas=aim + kept, adding=adding, removing=removing, isr=isr
    )
    changed = _with_leader_inside(replica_set.within_replicas(changed))
    finished = complete(changed, eligible) or changed
    return None if finished == record else finished


def complete(record: PartitionRecord, eligible: Container[int]) -> PartitionRecord | None:
    """Return the final record if every wanted replica is in sync and one of them can lead."""
    if not record.adding and not record.removing:
        return None
    wanted = target(record)
    if any(replica not in record.isr for replica in wanted):
        return None
    isr = tuple(replica for replica in record.isr if replica in wanted)
    leader, epoch = record.leader, record.leader_epoch
    if leader not in wanted:
        leader = next((replica for replica in wanted if replica in eligible), NO_LEADER)
        if leader == NO_LEADER:
            return None
        epoch += 1
    # All replicas are in sync, so the ELR is empty.
    finished = msgspec.structs.replace(
        record,
        replicas=wanted,
        adding=(),
        removing=(),
        isr=isr,
        leader=leader,
        leader_epoch=epoch,
        elr=(),
        last_known_elr=(),
    )
    return replica_set.within_replicas(finished)


def cancel(record: PartitionRecord) -> PartitionRecord:
    """Return to the original replicas.

    NO_REASSIGNMENT_IN_PROGRESS if there is no reassignment. INVALID_REPLICA_ASSIGNMENT if only
    added replicas are in sync: removing them would lose records."""
    if not record.adding and not record.removing:
        raise BrokerError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not being reassigned"
        )
    original = _original(record)
    isr = tuple(replica for replica in record.isr if replica in original)
    if record.isr and not isr:
        raise _invalid(_ONLY_NEW)
    changed = msgspec.structs.replace(record, replicas=original, adding=(), removing=(), isr=isr)
    return _with_leader_inside(replica_set.within_replicas(changed))


def target(record: PartitionRecord) -> tuple[int, ...]:
    """Return the replicas after the reassignment; the present ones if there is none."""
    return tuple(replica for replica in record.replicas if replica not in record.removing)


def is_in_progress(record: PartitionRecord) -> bool:
    """Whether the partition is being reassigned."""
    return bool(record.adding or record.removing)


def _original(record: PartitionRecord) -> tuple[int, ...]:
    """Return the replicas before the reassignment, the preferred leader first if it is known."""
    return tuple(replica for replica in record.replicas if replica not in record.adding)


def _with_leader_inside(record: PartitionRecord) -> PartitionRecord:
    """Remove a leader that is no longer in the ISR; the controller elects another one."""
    if record.leader == NO_LEADER or record.leader in record.isr:
        return record
    return msgspec.structs.replace(record, leader=NO_LEADER, leader_epoch=record.leader_epoch + 1)


def _check(aim: tuple[int, ...], record: PartitionRecord, eligible: Collection[int]) -> None:
    if not aim:
        raise _invalid("a partition needs at least one replica")
    if len(set(aim)) != len(aim):
        raise _invalid(f"replicas {list(aim)} name a broker twice")
    negative = [replica for replica in aim if replica < 0]
    if negative:
        raise _invalid(f"{negative[0]} is not a broker id")
    unknown = [
        replica for replica in aim if replica not in eligible and replica not in record.replicas
    ]
    if unknown:
        raise _invalid(
            f"broker {unknown[0]} is not alive or is shutting down, so it can't get a replica"
        )


def _invalid(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
