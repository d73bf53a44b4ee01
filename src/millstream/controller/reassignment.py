"""Moving a partition's replicas from some brokers to others. Pure.

While it lasts, `replicas` holds the wanted ones and the present ones; `adding` those that are not
there yet, `removing` those that will go. It is complete when every wanted replica is in sync; then
the others go at once, and leadership with them if one of them has it.

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
    """Start, or aim anew; None if the partition is where it should be and stays there.

    INVALID_REPLICA_ASSIGNMENT if the wanted replicas can't be."""
    aim = tuple(wanted)
    _check(aim, record, eligible)
    original = _original(record)
    adding = tuple(replica for replica in aim if replica not in original)
    removing = tuple(replica for replica in original if replica not in aim)
    kept = tuple(replica for replica in original if replica not in aim)
    # A replica that an earlier plan was adding and this one does not want has no claim to be here.
    isr = tuple(replica for replica in record.isr if replica in aim or replica in original)
    if record.isr and not isr:
        raise _refused(_ONLY_NEW)
    changed = msgspec.structs.replace(
        record, replicas=aim + kept, adding=adding, removing=removing, isr=isr
    )
    changed = _with_leader_inside(replica_set.within_replicas(changed))
    finished = complete(changed, eligible) or changed
    return None if finished == record else finished


def complete(record: PartitionRecord, eligible: Container[int]) -> PartitionRecord | None:
    """The end of it, once every wanted replica is in sync and one of them can lead; None before."""
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
    # All replicas are in sync, so none needs to be eligible besides.
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
    """Go back to where the partition was.

    NO_REASSIGNMENT_IN_PROGRESS if it is not under way, and INVALID_REPLICA_ASSIGNMENT if only
    replicas that came with it are in sync: going back would lose what they have."""
    if not record.adding and not record.removing:
        raise BrokerError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not being reassigned"
        )
    original = _original(record)
    isr = tuple(replica for replica in record.isr if replica in original)
    if record.isr and not isr:
        raise _refused(_ONLY_NEW)
    changed = msgspec.structs.replace(record, replicas=original, adding=(), removing=(), isr=isr)
    return _with_leader_inside(replica_set.within_replicas(changed))


def target(record: PartitionRecord) -> tuple[int, ...]:
    """The replicas as they will be; as they are, where nothing is under way."""
    return tuple(replica for replica in record.replicas if replica not in record.removing)


def is_under_way(record: PartitionRecord) -> bool:
    return bool(record.adding or record.removing)


def _original(record: PartitionRecord) -> tuple[int, ...]:
    """The replicas before the reassignment, preferred leader first as far as that is known."""
    return tuple(replica for replica in record.replicas if replica not in record.adding)


def _with_leader_inside(record: PartitionRecord) -> PartitionRecord:
    """Without a leader where the present one is no longer in sync or a replica; one is elected."""
    if record.leader == NO_LEADER or record.leader in record.isr:
        return record
    return msgspec.structs.replace(record, leader=NO_LEADER, leader_epoch=record.leader_epoch + 1)


def _check(aim: tuple[int, ...], record: PartitionRecord, eligible: Collection[int]) -> None:
    if not aim:
        raise _refused("a partition needs at least one replica")
    if len(set(aim)) != len(aim):
        raise _refused(f"replicas {list(aim)} name a broker twice")
    negative = [replica for replica in aim if replica < 0]
    if negative:
        raise _refused(f"there can be no broker {negative[0]}")
    unknown = [
        replica for replica in aim if replica not in eligible and replica not in record.replicas
    ]
    if unknown:
        raise _refused(
            f"broker {unknown[0]} is not alive, or about to stop, so it can't take a replica"
        )


def _refused(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
