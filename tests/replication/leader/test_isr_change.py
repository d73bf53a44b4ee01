"""ISR proposals of a leader to a store that fails, rejects them, or has a newer record."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from harness.in_process.log_home import UnsyncedDisk
from harness.in_process.replica_set import run, until
from harness.raw.raw_client import values_batch
from millstream.env.clock import SystemClock
from millstream.env.supervisor import Supervisor
from millstream.log.directory.data_directory import LogDirectory
from millstream.metadata.cluster_record import BrokerRecord, PartitionRecord
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.metadata.partition_change import PartitionUpdate
from millstream.metadata.store.port import MetadataStoreError
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.map import Map
from millstream.model.topic import TopicPartition
from millstream.records.batch import check_produced
from millstream.replication.leader.follower_state import FollowerFetch
from millstream.replication.leader.isr import LeaderView
from millstream.replication.leader.isr_change import IsrChanges
from millstream.replication.leader.leadership import Leadership
from millstream.replication.partition import Partition
from millstream.replication.partition_port import Counters, Latency
from millstream.replication.stats import ReplicationStats

RECORD = PartitionRecord(replicas=(1, 2, 3), leader=1, leader_epoch=0, isr=(1,))
EPOCH = 7
LAG_MS = 200


class Host:
    failures = CallbackFailures()

    def wake_later(self, partition: Partition) -> None: ...

    def flush(self, partition: Partition) -> None: ...

    def truncated(self, partition: Partition, offset: int) -> None: ...

    def monotonic(self) -> float:
        return SystemClock().monotonic()

    def counters(self, partition: Partition) -> tuple[Counters, Latency]:
        raise NotImplementedError


class Store:
    """A store of one partition's record. `failures` are raised by the next attempts."""

    def __init__(self) -> None:
        self.record = RECORD
        self.registered = {2: EPOCH, 3: EPOCH}
        #: For each of the next attempts: the error, and whether the change is stored anyway.
        self.failures: list[tuple[Exception, bool]] = []
        self.attempts: list[PartitionRecord] = []
        self.under_way = 0
        self.on_change: Callable[[PartitionRecord], None] = lambda _: None

    async def update(self, update: PartitionUpdate) -> PartitionRecord:
        _, _, record, expected_epoch, registered = update
        self.under_way += 1
        assert self.under_way == 1, "two attempts at a time"
        self.attempts.append(record)
        await asyncio.sleep(0.001)
        self.under_way -= 1
        failure, is_made = self.failures.pop(0) if self.failures else (None, True)
        if expected_epoch != self.record.partition_epoch:
            raise BrokerError(ErrorCode.INVALID_UPDATE_VERSION)
        if any(self.registered.get(each) != epoch for each, epoch in registered.items()):
            raise BrokerError(ErrorCode.INELIGIBLE_REPLICA)
        if is_made:
            self.put(record)
        if failure is not None:
            raise failure
        return self.record

    def put(self, record: PartitionRecord) -> None:
        epoch = self.record.partition_epoch + 1
        self.record = msgspec.structs.replace(record, partition_epoch=epoch)
        self.on_change(self.record)


class Scene:
    def __init__(self, partition: Partition, store: Store) -> None:
        self.partition = partition
        self.store = store
        self.stats = ReplicationStats()
        self.supervisor = Supervisor()
        self.changes = IsrChanges(
            store.update, [partition], SystemClock(), LAG_MS, self.stats, self.supervisor
        )
        store.on_change = lambda record: partition.apply_state(record, partition.high_watermark)

    def append(self) -> None:
        batch = memoryview(values_batch(b"v"))
        self.partition.append(batch, check_produced(batch), acks_all=False)

    def fetch(self, follower: int, offset: int | None = None) -> None:
        """Fetch at `offset`, by default the leader's log end offset."""
        end = self.partition.log.log_end_offset if offset is None else offset
        now = SystemClock().monotonic()
        self.changes.fetched(self.partition, FollowerFetch(follower, EPOCH, end, 0, now))

    async def until_isr(self, *isr: int) -> None:
        await until(lambda: set(self.store.record.isr) == set(isr), f"an ISR of {isr}")

    def brokers_are(self, registered: Mapping[int, int]) -> None:
        """Set the registrations that the leader knows."""
        brokers = {
            each: BrokerRecord(node_id=each, endpoints=(), epoch=epoch)
            for each, epoch in registered.items()
        }
        delta = ImageDelta(brokers=dict(brokers))
        self.changes.apply_delta(ClusterImage(brokers=Map(brokers)), delta)


@asynccontextmanager
async def scene(folder: Path, isr: tuple[int, ...] = (1,)) -> AsyncIterator[Scene]:
    directory = LogDirectory.open(folder, UnsyncedDisk(), SystemClock(), random.Random(1))
    log = directory.log(TopicPartition("t", 0), b"i" * 16, TopicConfig(min_insync_replicas=1))
    store = Store()
    store.record = msgspec.structs.replace(RECORD, isr=isr)
    partition = Partition(1, log, store.record, Host(), flushes_before_ack=False)
    partition.apply_state(store.record, 0)
    found = Scene(partition, store)
    found.changes.start(ClusterImage())
    found.brokers_are(store.registered)
    try:
        yield found
    finally:
        await found.changes.stop()
        directory.close(clean=False)


def test_a_caught_up_follower_joins(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as it:
            it.append()
            it.fetch(2)
            it.fetch(3, 0)
            await it.until_isr(1, 2)
            assert (it.stats.isr_expands, it.stats.isr_shrinks) == (1, 0)

    run(scenario())


def test_a_follower_with_another_broker_epoch_does_not_join(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as it:
            it.brokers_are({3: EPOCH})
            it.fetch(2)
            it.fetch(3)
            await it.until_isr(1, 3)
            it.brokers_are({2: EPOCH + 1, 3: EPOCH})
            it.fetch(3)
            assert it.store.record.isr == (1, 3)
            assert not it.changes.is_current(2, EPOCH)
            # The leader's metadata may also be older than the follower's.
            it.brokers_are({2: EPOCH, 3: EPOCH})
            await it.until_isr(1, 2, 3)

    run(scenario())


def test_a_proposal_is_retried_after_a_store_failure(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as it:
            it.store.failures = [(MetadataStoreError("unavailable"), False)] * 2
            it.fetch(2)
            await it.until_isr(1, 2)
            assert len(it.store.attempts) == 3
            assert it.store.attempts[0] == it.store.attempts[2]

    run(scenario())


def test_a_change_whose_response_was_lost_counts_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as it:
            changes: list[PartitionRecord] = []
            it.store.on_change = changes.append
            it.store.failures = [(MetadataStoreError("the response was lost"), True)]
            it.append()
            it.fetch(2)
            await it.until_isr(1, 2)
            # The leader does not know the change yet. The follower counts anyway.
            assert it.partition.state.isr == (1,)
            it.append()
            assert it.partition.high_watermark == 1
            await until(lambda: len(it.store.attempts) > 2, "retries that fail")
            assert it.store.record.partition_epoch == 1
            it.partition.apply_state(changes[0], it.partition.high_watermark)
            assert it.partition.leadership is not None
            assert it.partition.leadership.proposal is None

    run(scenario())


def test_a_stale_proposal_is_decided_again_on_the_new_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as it:
            it.fetch(2)
            # The controller's change comes first: broker 2 is no longer a replica.
            it.store.put(msgspec.structs.replace(RECORD, replicas=(1, 3)))
            it.fetch(3)
            await it.until_isr(1, 3)
            assert it.store.record.replicas == (1, 3)

    run(scenario())


def test_a_follower_with_a_new_registration_is_rejected_and_delays_nothing(tmp_path: Path) -> None:
    """The broker may have lost records. Only the store knows the new registration in time."""

    async def scenario() -> None:
        async with scene(tmp_path) as it:
            it.store.registered[2] = EPOCH + 1
            it.append()
            it.fetch(2)
            await until(lambda: it.stats.isr_retries > 0, "the rejection")
            it.brokers_are({3: EPOCH})
            it.append()
            await until(lambda: it.partition.high_watermark == 2, "the leader to continue alone")
            assert it.store.record.isr == (1,)

    run(scenario())


def test_lagging_replicas_leave_and_the_others_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, isr=(1, 2, 3)) as it:
            it.append()
            it.fetch(2)
            assert it.partition.high_watermark == 0
            await it.until_isr(1, 2)
            assert it.partition.high_watermark == 1
            assert it.stats.isr_shrinks == 1

    run(scenario())


def test_a_member_that_lost_committed_records_leaves_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, isr=(1, 2, 3)) as it:
            it.append()
            it.fetch(2)
            it.fetch(3)
            assert it.partition.high_watermark == 1
            it.fetch(3, 0)
            await it.until_isr(1, 2)
            assert it.partition.high_watermark == 1

    run(scenario())


def test_a_deposed_leader_proposes_no_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as it:
            it.store.failures = [(MetadataStoreError("unavailable"), False)] * 1000
            it.fetch(2)
            await until(lambda: it.store.attempts, "an attempt")
            it.store.put(msgspec.structs.replace(RECORD, leader=3, leader_epoch=1, isr=(3,)))
            it.store.failures = []
            count = len(it.store.attempts)
            await until(lambda: not it.changes._attempts, "the attempts to end")
            assert len(it.store.attempts) <= count + 1
            assert it.store.record.isr == (3,)

    run(scenario())


def test_no_attempt_starts_after_stop(tmp_path: Path) -> None:
    """Connections of followers close later, and their fetches still count."""

    async def scenario() -> None:
        async with scene(tmp_path, isr=(1, 2)) as it:
            await it.changes.stop()
            it.append()
            it.fetch(2)
            it.fetch(3)
            it.brokers_are({2: EPOCH, 3: EPOCH})
            assert it.partition.high_watermark == 1
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert it.store.attempts == []

    run(scenario())


def test_an_attempt_that_raises_is_retried(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as it:
            it.store.failures.append((RuntimeError("a bug"), False))
            it.append()
            it.fetch(2)
            await it.until_isr(1, 2)
            assert it.supervisor.failures["isr-change"] == 1
            await until(lambda: not it.changes._attempts, "the attempt to end")
            it.fetch(3)
            await it.until_isr(1, 2, 3)

    asyncio.run(scenario())


def test_a_review_that_raises_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as it:
            bugs = [RuntimeError("a bug")]
            review = Leadership.review

            def fail(self: Leadership, view: LeaderView) -> None:
                if bugs:
                    raise bugs.pop()
                review(self, view)

            monkeypatch.setattr(Leadership, "review", fail)
            it.append()
            it.fetch(2)
            assert it.supervisor.failures["isr-review"] == 1
            it.fetch(2)
            await it.until_isr(1, 2)

    asyncio.run(scenario())
