"""Who leads a partition, and who counts as in sync, when brokers come and go. Pure.

Every function takes a partition's record and returns the record that should replace it, or None
where it is right as it is. `leader_epoch` is raised with every change of the leader, also to none;
`partition_epoch` is the store's to raise.

What always holds: the in-sync replicas are never emptied, as the last of them is the only one that
is known to have everything; and a leader is elected from among them, or, only where a topic asks
for it, from the other replicas, which can lose what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from millstream.metadata.record import NO_LEADER, PartitionRecord


def settle(
    record: PartitionRecord,
    alive: Container[int],
    *,
    unclean: bool,
    leaving: Container[int] = (),
) -> PartitionRecord | None:
    """Take brokers that are gone out of the in-sync replicas, and find a leader if there is none.

    Brokers that are leaving stay what they are and get nothing new. With `unclean` a replica that
    is not in sync may lead where no other can.
    """
    present = tuple(replica for replica in record.isr if replica in alive)
    isr = present or record.isr
    leader = record.leader
    if leader not in alive or leader not in isr:
        staying = tuple(replica for replica in record.replicas if replica not in leaving)
        leader = _first(staying, present)
        if unclean and not present:
            leader = _first(staying, alive)
            if leader != NO_LEADER:
                # What the others have and it has not is given up.
                isr = (leader,)
    return _changed(record, leader, isr)


def prefer(record: PartitionRecord, eligible: Container[int]) -> PartitionRecord | None:
    """Let the first replica lead, if it is in sync."""
    preferred = record.replicas[0]
    if preferred not in record.isr or preferred not in eligible:
        return None
    return _changed(record, preferred, record.isr)


def hand_over(
    record: PartitionRecord, broker_id: int, eligible: Container[int]
) -> PartitionRecord | None:
    """Let a broker that is about to stop leave: another one in sync leads, if there is one.

    The last in-sync replica stays in sync and goes on leading: nobody can take its place.
    """
    others = tuple(
        replica for replica in record.isr if replica != broker_id and replica in eligible
    )
    if broker_id not in record.isr or not others:
        return None
    isr = tuple(replica for replica in record.isr if replica != broker_id)
    leader = _first(record.replicas, others) if record.leader == broker_id else record.leader
    return _changed(record, leader, isr)


def distrust(record: PartitionRecord, broker_id: int) -> PartitionRecord | None:
    """Take a broker out that may have lost records: it stopped without flushing its logs.

    Until it has caught up with a leader it is as good as empty. The last in-sync replica stays: its
    log, cut or not, is the most complete one there is.
    """
    isr = tuple(replica for replica in record.isr if replica != broker_id)
    if broker_id not in record.isr or not isr:
        return None
    leader = NO_LEADER if record.leader == broker_id else record.leader
    return _changed(record, leader, isr)


def _first(replicas: tuple[int, ...], among: Container[int]) -> int:
    """The replica that comes first in the order of preference, or NO_LEADER."""
    return next((replica for replica in replicas if replica in among), NO_LEADER)


def _changed(record: PartitionRecord, leader: int, isr: tuple[int, ...]) -> PartitionRecord | None:
    if leader == record.leader and isr == record.isr:
        return None
    epoch = record.leader_epoch + (leader != record.leader)
    return msgspec.structs.replace(record, leader=leader, isr=isr, leader_epoch=epoch)
