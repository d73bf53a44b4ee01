"""The replica sets in a partition's record: ISR, ELR, and their data directories. Pure.

Three lists of a `PartitionRecord` describe a replica:

    isr             has every committed record, and every commit waits for it
    elr             has every committed record, because nothing was committed since it left the ISR
    last_known_elr  was in one of the two since then, and may have lost records in an unclean stop.
                    The last member of the ISR comes first.

Nothing is committed while the ISR is below the effective `min.insync.replicas`, nor while the ELR
has members: the leader's high watermark does not move (KIP-966). A leader whose ISR reaches the
minimum first empties the ELR by compare-and-swap. Only then may its high watermark advance.

A replica in `isr` or `elr` has its records in the data directory that `directories` names. A broker
that is registered with another directory does not have these records. The directory id LOST means
that the log was deleted from its directory. Such a replica stays in `elr` although it can't be
elected: the partition must wait for its records, or for an unclean election.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final

import msgspec

from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.min_isr import is_enough
from millstream.model.sentinel import NO_LEADER

#: The directory id of a replica whose log was deleted.
LOST: Final = "lost"


def with_isr(
    record: PartitionRecord, isr: tuple[int, ...], min_isr: int, lost: Container[int] = ()
) -> PartitionRecord:
    """Return the record with another ISR and the ELR that results.

    Replicas in `lost` leave the ISR or ELR because they may lack committed records. Those that
    leave the ISR come first in `last_known_elr`.
    """
    if is_enough(isr, min_isr):
        return msgspec.structs.replace(record, isr=isr, elr=(), last_known_elr=())
    left = tuple(
        replica
        for replica in _distinct((*record.elr, *record.isr))
        if replica not in isr and replica in record.replicas
    )
    elr = tuple(replica for replica in left if replica not in lost)
    newest = (replica for replica in record.isr if replica in lost)
    last_known = tuple(
        replica
        for replica in _distinct((*newest, *record.last_known_elr, *left))
        if replica not in isr and replica not in elr and replica in record.replicas
    )
    return msgspec.structs.replace(record, isr=isr, elr=elr, last_known_elr=last_known)


def resign(
    record: PartitionRecord, min_isr: int, alive: Container[int], registered: Mapping[int, str]
) -> PartitionRecord | None:
    """Return the record without its leader, whose log failed; None if no other replica can lead."""
    leader = record.leader
    isr = tuple(replica for replica in record.isr if replica != leader)
    can_lead = any(
        replica != leader and replica in alive and has_disk(record, replica, registered)
        for replica in (*isr, *record.elr)
    )
    if leader == NO_LEADER or not can_lead:
        return None
    after = with_isr(record, isr, min_isr, lost=(leader,))
    return msgspec.structs.replace(after, leader=NO_LEADER, leader_epoch=record.leader_epoch + 1)


def with_directory(record: PartitionRecord, replica: int, directory: str) -> PartitionRecord:
    """Return the record with a replica's directory id; unchanged if the id is not known."""
    if not directory or record.directory(replica) == directory:
        return record
    others = (pair for pair in record.directories if pair[0] != replica)
    return msgspec.structs.replace(
        record, directories=tuple(sorted((*others, (replica, directory))))
    )


def within_replicas(record: PartitionRecord) -> PartitionRecord:
    """Return the record without entries of brokers that are no longer replicas."""
    return msgspec.structs.replace(
        record,
        elr=tuple(replica for replica in record.elr if replica in record.replicas),
        last_known_elr=tuple(each for each in record.last_known_elr if each in record.replicas),
        directories=tuple(pair for pair in record.directories if pair[0] in record.replicas),
    )


def has_disk(record: PartitionRecord, replica: int, registered: Mapping[int, str]) -> bool:
    """Whether a broker is registered with the data directory that the record names for it.

    An unknown directory counts as the same: a broker corrects its records before it registers."""
    recorded, present = record.directory(replica), registered.get(replica, "")
    return not recorded or recorded == present or (not present and recorded != LOST)


def _distinct(replicas: Iterable[int]) -> Iterable[int]:
    return dict.fromkeys(replicas)
