"""Planted bugs. The simulator must find each of them.

Each function patches the broker so that it breaks one rule of the design.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from itertools import count
from typing import Final

from millstream.broker.transaction.transaction_queue import (
    QueueKey,
    TransactionalRequest,
    TransactionQueues,
)
from millstream.controller import departure
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.log import PartitionLog
from millstream.log.segment import Segment
from millstream.metadata import cluster_record as records
from millstream.metadata import partition_change, replica_set
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.partition_change import PartitionUpdate
from millstream.metadata.store.port import Put
from millstream.replication.leader import isr
from millstream.replication.leader.follower_state import FollowerState
from millstream.replication.leader.isr import LeaderView
from millstream.replication.partition import Partition


def truncate_by_high_watermark() -> None:
    """A follower truncates its log to its own high watermark, as before KIP-101."""
    become = Partition.apply_state

    def cut(self: Partition, state: PartitionRecord, high_watermark: int) -> None:
        is_new_epoch = state.leader_epoch != self.state.leader_epoch
        become(self, state, high_watermark)
        if is_new_epoch and not self.is_leader and self.high_watermark < self.log.log_end_offset:
            self.truncate(self.high_watermark)

    Partition.apply_state = cut  # type: ignore[method-assign]


def acknowledge_early() -> None:
    """A leader acknowledges batches that only it has."""
    is_acknowledged = Partition.is_acknowledged

    def is_here(self: Partition, offset: int, *, acks_all: bool) -> bool:
        return is_acknowledged(self, offset, acks_all=False)

    Partition.is_acknowledged = is_here  # type: ignore[method-assign]


def accept_stale_leader() -> None:
    """The store accepts an ISR change of a deposed leader."""

    async def replace(catalog: Catalog, update: PartitionUpdate) -> PartitionRecord:
        record = update.record
        key = records.partition_key(update.topic_id, update.partition)
        found = await catalog.store.get(key)
        assert found is not None
        present = records.decode_partition(found.value)
        changed = PartitionRecord(
            replicas=record.replicas,
            leader=record.leader,
            leader_epoch=max(record.leader_epoch, present.leader_epoch),
            isr=record.isr,
            partition_epoch=present.partition_epoch + 1,
        )
        await catalog.transact([], [Put(key, records.encode_partition(changed))])
        return changed

    partition_change.replace_partition = replace


def expand_early() -> None:
    """A replica joins the ISR by records that it has not yet confirmed with its next fetch."""

    def is_in_sync(follower: FollowerState, leader: LeaderView) -> bool:
        if follower.log_end_offset < 0:
            return follower.is_caught_up(leader.log_end_offset, leader.now, leader.lag_s_max)
        is_recent = leader.now - follower._fetched_at <= leader.lag_s_max
        return is_recent and follower._leader_end_offset >= leader.high_watermark

    def may_join(follower: FollowerState, leader: LeaderView) -> bool:
        return (
            follower.log_end_offset >= 0
            and follower._leader_end_offset >= leader.epoch_start_offset
            and isr.is_in_sync(follower, leader)
            and isr.is_registered(follower, leader)
        )

    isr.is_in_sync = is_in_sync
    isr.may_join = may_join


def lose_epoch_at_roll() -> None:
    """Rolling a segment loses the current leader epoch, which then seems to start there."""
    roll = PartitionLog.roll

    def forget(self: PartitionLog) -> Segment:
        segments = len(self.segments)
        segment = roll(self)
        if len(self.segments) > segments and self.epochs.entries:
            self.epochs.entries.pop()
        return segment

    PartitionLog.roll = forget  # type: ignore[method-assign]


def trust_unclean_restart() -> None:
    """A broker stays in the ISR after an unclean stop, in which it may have lost records."""

    async def trust(catalog: Catalog, broker_id: int, directory: str = "") -> int:
        return 0

    departure.distrust = trust


def skip_transaction_queue() -> None:
    """A transactional request does not wait for an earlier request of its producer."""
    may_append = TransactionQueues.may_append
    numbers = count()

    def skip(self: TransactionQueues, key: QueueKey, request: TransactionalRequest) -> bool:
        alone = key._replace(transactional_id=f"{key.transactional_id} {next(numbers)}")
        return may_append(self, alone, request)

    TransactionQueues.may_append = skip  # type: ignore[method-assign]


def elect_the_empty_disk() -> None:
    """A broker that restarts without its disk, or without a log, stays in the ISR."""

    def has_lost(catalog: Catalog, broker_id: int, folder: LogDirectory) -> bool:
        return False

    departure.has_lost = has_lost


def forget_the_eligible() -> None:
    """A replica that leaves an ISR below its minimum does not become an eligible leader replica."""
    with_isr = replica_set.with_isr

    def forget(
        record: PartitionRecord, isr: tuple[int, ...], min_isr: int, lost: Container[int] = ()
    ) -> PartitionRecord:
        return with_isr(record, isr, 0, lost)

    replica_set.with_isr = forget


PLANTED: Final[dict[str, Callable[[], None]]] = {
    "truncate-by-high-watermark": truncate_by_high_watermark,
    "acknowledge-early": acknowledge_early,
    "accept-stale-leader": accept_stale_leader,
    "expand-early": expand_early,
    "lose-epoch-at-roll": lose_epoch_at_roll,
    "trust-unclean-restart": trust_unclean_restart,
    "skip-transaction-queue": skip_transaction_queue,
    "elect-the-empty-disk": elect_the_empty_disk,
    "forget-the-eligible": forget_the_eligible,
}
