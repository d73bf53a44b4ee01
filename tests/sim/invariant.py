"""Invariants of a run, checked from outside the brokers.

one leader        a leader epoch has one leader, in the store and in the state of brokers
epochs            a partition's leader epoch never decreases, and its record always names a replica
                  that is in sync, eligible, or last known to be eligible
equal logs        below any replica's high watermark, all replicas have the same batches, without
                  gaps
never back        neither a leader's high watermark nor a group's committed offset moves back

They hold for all topics, internal topics included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.metadata.cluster_record import (
    PARTITIONS,
    PartitionRecord,
    broker_key,
    decode_partition,
    partition_key,
)
from millstream.model.sentinel import NO_LEADER
from millstream.records.batch import scan
from millstream.replication.partition import Partition
from sim.cluster import Cluster, Machine
from sim.offset_order import OffsetOrder

#: Interval and maximum number of checks of whether a fault may continue.
_LOOK_S: Final = 0.1
_LOOKS_MAX: Final = 200


class _Batch(NamedTuple):
    next_offset: int
    leader_epoch: int
    crc: int


@dataclass(slots=True)
class _Suspect:
    """A broker that stopped uncleanly."""

    #: Number of starts of its machine before the stop.
    starts: int = 0
    #: Whether it left the ISR after its restart.
    has_left: bool = False
    #: Whether it may lack committed records: it lost power or its disk.
    has_lost: bool = False


class Monitor:
    """Remembers earlier states and compares the current one with them."""

    def __init__(self, cluster: Cluster, violated: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._violated = violated
        # A partition is identified by its key in the store.
        #: Leaders, by partition and leader epoch.
        self._leaders: dict[tuple[str, int], int] = {}
        #: Committed batches, by partition and base offset.
        self._committed: dict[tuple[str, int], _Batch] = {}
        #: Offset up to which a log was compared, by process name and partition.
        self._compared: dict[tuple[str, str], int] = {}
        #: High watermark of leaders, by process name, partition and epoch.
        self._high_watermarks: dict[tuple[str, str, int], int] = {}
        self._offset_orders: dict[str, OffsetOrder] = {}
        self._epochs: dict[str, int] = {}
        self._isrs: dict[str, tuple[int, ...]] = {}
        #: By partition and broker, until the broker is ready and in the ISR.
        self._suspects: dict[tuple[str, int], _Suspect] = {}
        #: Directory ids of the disks that machines got back, by node id.
        self._returned: dict[int, str] = {}

    # Metadata store

    async def watch_store(self) -> None:
        """Check every change of a partition's record."""
        connection = self._cluster.store.connect()
        async for found in connection.watch(PARTITIONS, 1):
            for event in found.events:
                if event.value is not None:
                    self._check_record(event.key, decode_partition(event.value))

    def _check_record(self, key: str, record: PartitionRecord) -> None:
        self._cluster.loop.note(
            f"store {key} {record.leader} {record.leader_epoch} {record.isr}"
            f" {record.elr} {record.last_known_elr} {record.replicas}"
        )
        if record.leader_epoch < self._epochs.get(key, 0):
            self._violated(f"{key}: the leader epoch decreased to {record.leader_epoch}")
        self._epochs[key] = record.leader_epoch
        if not (record.isr or record.elr or record.last_known_elr):
            self._violated(f"{key}: no replica is in sync, eligible or last known to be eligible")
        if record.leader != NO_LEADER:
            self._leads(key, record.leader_epoch, record.leader)
        before, self._isrs[key] = self._isrs.get(key, ()), record.isr
        for machine in self._cluster:
            suspect = self._suspects.get((key, machine.node_id))
            if suspect is None:
                continue
            # A leader can add the replica on the other disk to the ISR after that disk is gone.
            returned = self._returned.get(machine.node_id)
            if returned is not None and _is_elsewhere(record, machine, returned):
                suspect.has_lost = True
            if machine.node_id not in record.isr:
                # While the previous process is registered, leaders may add it to the ISR again.
                is_started = machine.starts > suspect.starts and not self._is_registered(machine)
                suspect.has_left |= machine.node_id in before and is_started
            elif machine.is_ready or (suspect.has_left and self._is_elected(machine, record)):
                del self._suspects[key, machine.node_id]
            elif suspect.has_left:
                self._violated(f"{key}: {machine.host} joins the ISR again before it is ready")

    def _is_elected(self, machine: Machine, record: PartitionRecord) -> bool:
        """Whether a registered machine leads. A broker can be elected while it starts, but joins
        the ISR of another leader only after it has fetched."""
        return record.leader == machine.node_id and self._is_registered(machine)

    def _is_registered(self, machine: Machine) -> bool:
        return self._cluster.store.get(broker_key(machine.node_id)) is not None

    def _leads(self, key: str, epoch: int, broker_id: int) -> None:
        leader = self._leaders.setdefault((key, epoch), broker_id)
        if leader != broker_id:
            self._violated(f"{key}: brokers {leader} and {broker_id} lead in epoch {epoch}")

    # Faults that are allowed

    def may_lose_power(self, machine: Machine) -> bool:
        """Whether another in-sync replica of each partition has all records.

        With a flush before each acknowledgement, no other replica is needed."""
        return self.may_leave(machine) and (
            self._cluster.flushes_before_ack
            or all(
                self._has_sound_member(key, record.isr, machine.node_id)
                for key, record in self._cluster.records().items()
            )
        )

    def may_lose_disk(self, machine: Machine, key: str | None = None) -> bool:
        """Whether another electable replica has all records, of one partition or of each."""
        return self.may_leave(machine) and all(
            self._has_sound_member(each, record.isr + record.elr, machine.node_id)
            for each, record in self._cluster.records().items()
            if key in (None, each)
            and machine.node_id in record.isr + record.elr + record.last_known_elr
        )

    def may_leave(self, machine: Machine) -> bool:
        """Whether no partition is left with only replicas that lost power or their disk.

        A killed broker still has all records, but it leaves the ISR because it can't know that.
        Leaders remove a broker from the ISR that does not fetch."""
        return all(
            self._has_sound_member(key, record.isr, machine.node_id)
            for key, record in self._cluster.records().items()
            if any(self._has_lost(key, member) for member in record.isr + record.elr)
        )

    async def until_may_leave(self, machine: Machine) -> None:
        """Wait until `may_leave` allows this machine to stop.

        For faults that end with a restart: because of faults since then, this machine may be the
        only one with all records. The wait is bounded."""
        for _ in range(_LOOKS_MAX):
            if self.may_leave(machine):
                return
            await asyncio.sleep(_LOOK_S)

    @property
    def has_any_lost(self) -> bool:
        """Whether a broker that lost power or its disk is not yet in sync in all partitions."""
        return any(suspect.has_lost for suspect in self._suspects.values())

    def _has_lost(self, key: str, broker_id: int) -> bool:
        suspect = self._suspects.get((key, broker_id))
        return suspect is not None and suspect.has_lost

    def _has_sound_member(self, key: str, members: tuple[int, ...], but: int) -> bool:
        return any(
            member != but
            and (key, member) not in self._suspects
            and not self._cluster.machines[member].impairments
            and self._cluster.machines[member].is_ready
            for member in members
        )

    def stopped(
        self, machine: Machine, *, lost_power: bool = False, lost_disk: bool = False
    ) -> None:
        """Record an unclean stop."""
        for key in self._cluster.records():
            suspect = self._suspects.setdefault((key, machine.node_id), _Suspect())
            suspect.starts = machine.starts
            suspect.has_left = False
            suspect.has_lost |= lost_disk or (lost_power and not self._cluster.flushes_before_ack)

    def may_return(self, machine: Machine, directory: str) -> bool:
        """Whether a machine may replace its current disk by the one with this directory id."""
        return all(
            self._has_sound_member(key, record.isr + record.elr, machine.node_id)
            for key, record in self._cluster.records().items()
            if _is_elsewhere(record, machine, directory)
        )

    def disk_returned(self, machine: Machine, directory: str) -> None:
        """Record that a machine has its lost disk again."""
        self._returned[machine.node_id] = directory
        for key, record in self._cluster.records().items():
            suspect = self._suspects.get((key, machine.node_id))
            if suspect is not None:
                suspect.has_lost = _is_elsewhere(record, machine, directory)

    # Brokers

    async def check_regularly(self, interval_s: float) -> None:
        while True:
            self.check()
            await asyncio.sleep(interval_s)

    def check(self) -> None:
        for machine in self._cluster:
            if machine.is_alive and machine.server is not None and machine.is_ready:
                self._check_machine(machine)

    def _check_machine(self, machine: Machine) -> None:
        assert machine.process is not None
        for partition in partitions_of(machine):
            if partition.log.failure is not None or machine.volume.unreadable:
                continue
            key = partition_key(partition.log.topic_id, partition.topic_partition.partition)
            self._check_leader(machine.process.name, key, partition)
            self._check_log(machine.process.name, key, partition)

    def _check_leader(self, process: str, key: str, partition: Partition) -> None:
        if not partition.is_leader:
            return
        epoch = partition.leader_epoch
        self._leads(key, epoch, partition.broker_id)
        before = self._high_watermarks.get((process, key, epoch), 0)
        if partition.high_watermark < before:
            self._violated(
                f"{key}: the high watermark of the leader {process} went from "
                f"{before} to {partition.high_watermark}"
            )
        self._high_watermarks[process, key, epoch] = partition.high_watermark

    def _check_log(self, process: str, key: str, partition: Partition) -> None:
        log = partition.log
        start = self._compared.get((process, key), 0)
        end = partition.high_watermark
        if end <= start or not log.is_loaded:
            return
        data = log.read(start, 1 << 30, end, at_least_one=True).read()
        for position, header in scan(data):
            found = _Batch(header.next_offset, header.leader_epoch, header.crc)
            if header.base_offset > start:
                self._violated(f"{key}: {process} lacks [{start}, {header.base_offset})")
            known = self._committed.get((key, header.base_offset))
            if known is None:
                self._committed[key, header.base_offset] = found
                if partition.topic_partition.topic == OFFSETS_TOPIC:
                    order = self._offset_orders.setdefault(key, OffsetOrder(self._violated))
                    order.apply(data, header, position)
            elif known != found:
                self._violated(
                    f"{key}: {process} has {found} at {header.base_offset}, below its "
                    f"high watermark of {end}, where {known} was committed"
                )
            start = self._compared[process, key] = header.next_offset


def _is_elsewhere(record: PartitionRecord, machine: Machine, directory: str) -> bool:
    """Whether a record names the machine as a replica, but with another disk."""
    members = record.isr + record.elr + record.last_known_elr
    return machine.node_id in members and record.directory(machine.node_id) != directory


def partitions_of(machine: Machine) -> list[Partition]:
    """Return all replicas of a machine."""
    assert machine.server is not None
    services = machine.server.services
    return [] if services is None else list(services.replicas)
