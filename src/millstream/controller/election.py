"""Elects leaders, and removes dead brokers from the ISR. Pure.

Every function takes a partition's record and returns the record that should replace it, or None if
nothing changes. `leader_epoch` grows with every change of the leader, also to none.
`partition_epoch` grows when the record is stored. `min_isr` is the effective
`min.insync.replicas`, which the ELR depends on (see `metadata.replica_set`).

A leader is elected from the ISR. If no member of the ISR is alive, a leader is elected from the
ELR, whose members have every committed record too. An unclean election chooses another replica and
can lose acknowledged records. It happens only if a topic setting or a person asks for it.

A broker that dies stays in the ISR if it is the last member, because it has every committed record.
The last member leaves only if it lost its disk, or if it may have lost its page cache and another
replica is eligible. The partition then has no leader until a replica with every committed record is
back. If all such replicas restart after an unclean stop, the last member of the ISR leads, because
no other replica has more.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import msgspec

from millstream.metadata import replica_set
from millstream.metadata.cluster_record import PartitionRecord
from millstream.model.sentinel import NO_LEADER

_NO_DIRECTORIES: Mapping[int, str] = {}


def elect(
    record: PartitionRecord,
    alive: Container[int],
    *,
    unclean: bool,
    leaving: Container[int] = (),
    min_isr: int = 1,
    directories: Mapping[int, str] = _NO_DIRECTORIES,
) -> PartitionRecord | None:
    """Remove dead brokers from the ISR, and elect a leader if there is none.

    Brokers in `leaving` are shutting down: they keep their roles and get no new ones. `directories`
    are the directory ids with which brokers are registered. With `unclean` a replica that is not in
    sync may lead if no other replica can.
    """
    present = tuple(replica for replica in record.isr if replica in alive)
    isr = present or record.isr
    leader = record.leader
    if leader in alive and leader in isr:
        return _changed(record, leader, isr, min_isr)
    staying = tuple(replica for replica in record.replicas if replica not in leaving)
    if present:
        return _changed(record, _first(staying, present), isr, min_isr)
    eligible = [
        replica
        for replica in record.elr
        if replica in alive and replica_set.has_disk(record, replica, directories)
    ]
    leader = _first(staying, eligible or _last_resort(record, alive, directories))
    if leader != NO_LEADER:
        return _changed(record, leader, (leader,), min_isr)
    if unclean and not eligible:
        candidates = [replica for replica in staying if replica in alive]
        leader = _best(record, candidates, directories)
        if leader != NO_LEADER:
            return _lead_uncleanly(record, leader, directories.get(leader, ""))
    return _changed(record, NO_LEADER, isr, min_isr)


def _last_resort(
    record: PartitionRecord, alive: Container[int], directories: Mapping[int, str]
) -> tuple[int, ...]:
    """Return the last member of the ISR, if no other replica is known to have more."""
    last = record.last_known_elr[:1]
    if record.isr or record.elr or not last or last[0] not in alive:
        return ()
    return last if replica_set.has_disk(record, last[0], directories) else ()


def _best(
    record: PartitionRecord, candidates: Iterable[int], directories: Mapping[int, str]
) -> int:
    """Return the replica that probably lacks the fewest records: one that still has its disk, and
    among these the last one in sync."""
    ranked = sorted(
        candidates,
        key=lambda replica: (
            not replica_set.has_disk(record, replica, directories),
            _rank(record.last_known_elr, replica),
        ),
    )
    return ranked[0] if ranked else NO_LEADER


def _rank(replicas: tuple[int, ...], replica: int) -> int:
    return replicas.index(replica) if replica in replicas else len(replicas)


def _lead_uncleanly(record: PartitionRecord, leader: int, directory: str) -> PartitionRecord:
    """Elect a leader that may lack records. Records that it lacks are lost."""
    after = msgspec.structs.replace(
        record,
        leader=leader,
        leader_epoch=record.leader_epoch + 1,
        isr=(leader,),
        elr=(),
        last_known_elr=(),
    )
    return replica_set.with_directory(after, leader, directory)


def is_clean(before: PartitionRecord, after: PartitionRecord) -> bool:
    """Whether the new leader has every committed record, by the record `before`."""
    leader = after.leader
    if not before.isr and not before.elr:
        return before.last_known_elr[:1] == (leader,)
    is_known = leader in before.isr or leader in before.elr
    return is_known and after.directory(leader) == before.directory(leader)


def prefer(record: PartitionRecord, eligible: Container[int]) -> PartitionRecord | None:
    """Elect the preferred replica, which is the first one, if it is in sync."""
    preferred = record.replicas[0]
    if preferred not in record.isr or preferred not in eligible or preferred == record.leader:
        return None
    return _led_by(record, preferred)


def hand_over(
    record: PartitionRecord, broker_id: int, eligible: Container[int], min_isr: int = 1
) -> PartitionRecord | None:
    """Remove a broker that shuts down from the ISR, and elect another member as leader.

    The last in-sync replica stays in the ISR and keeps the leadership.
    """
    others = tuple(
        replica for replica in record.isr if replica != broker_id and replica in eligible
    )
    if broker_id not in record.isr or not others:
        return None
    isr = tuple(replica for replica in record.isr if replica != broker_id)
    leader = _first(record.replicas, others) if record.leader == broker_id else record.leader
    return _changed(record, leader, isr, min_isr)


def distrust(
    record: PartitionRecord, broker_id: int, min_isr: int = 1, directory: str = ""
) -> PartitionRecord | None:
    """Remove a broker that may have lost records, because it stopped without flushing its logs.

    It is in sync again once it has caught up with a leader. It stays if it is the only replica in
    the ISR and ELR: its log is the most complete one. `directory` is the broker's directory id. A
    record that names another directory does not change.
    """
    members = {*record.isr, *record.elr}
    if broker_id not in members:
        return None
    if len(members) == 1 and (record.isr or not record.last_known_elr):
        return None
    if directory and record.directory(broker_id) not in ("", directory):
        return None
    return _leave(record, broker_id, min_isr, lost=(broker_id,))


def lose_directory(record: PartitionRecord, broker_id: int, min_isr: int) -> PartitionRecord | None:
    """Remove a broker from the ISR whose data directory is not the one that the record names.

    The replica in the recorded directory stays in the ELR, in case that directory comes back."""
    return _leave(record, broker_id, min_isr) if broker_id in record.isr else None


def lose_log(record: PartitionRecord, broker_id: int, min_isr: int) -> PartitionRecord | None:
    """Remove a broker from the ISR whose log was deleted from its data directory.

    The replica stays in the ELR without a directory, so that no other replica counts as
    complete."""
    if broker_id not in record.isr and broker_id not in record.elr:
        return None
    after = replica_set.with_directory(record, broker_id, replica_set.LOST)
    return _leave(after, broker_id, min_isr)


def _leave(
    record: PartitionRecord, broker_id: int, min_isr: int, lost: tuple[int, ...] = ()
) -> PartitionRecord:
    isr = tuple(replica for replica in record.isr if replica != broker_id)
    after = replica_set.with_isr(record, isr, min_isr, lost)
    return _led_by(after, NO_LEADER) if record.leader == broker_id else after


def _first(replicas: tuple[int, ...], among: Container[int]) -> int:
    """Return the first replica in the order of preference that is in `among`, or NO_LEADER."""
    return next((replica for replica in replicas if replica in among), NO_LEADER)


def _changed(
    record: PartitionRecord, leader: int, isr: tuple[int, ...], min_isr: int
) -> PartitionRecord | None:
    if leader == record.leader and isr == record.isr:
        return None
    after = record if isr == record.isr else replica_set.with_isr(record, isr, min_isr)
    return _led_by(after, leader)


def _led_by(record: PartitionRecord, leader: int) -> PartitionRecord:
    if leader == record.leader:
        return record
    return msgspec.structs.replace(record, leader=leader, leader_epoch=record.leader_epoch + 1)
