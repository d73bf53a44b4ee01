"""The partition with a real log, and a host that only records calls."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from harness.in_process.log_home import NOW_MS, StillClock, UnsyncedDisk
from harness.raw.raw_client import values_batch
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.log import AppendResult
from millstream.metadata.cluster_record import PartitionRecord
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.topic import TopicPartition
from millstream.records.batch import check_produced, stamp
from millstream.records.builder import build_batch
from millstream.records.record import Record
from millstream.replication.partition import Partition

ALONE = PartitionRecord(replicas=(1,), leader=1, leader_epoch=3, isr=(1,))
PAIR = PartitionRecord(replicas=(1, 2), leader=1, leader_epoch=3, isr=(1, 2))
HALF = PartitionRecord(replicas=(1, 2), leader=1, leader_epoch=3, isr=(1,))


class Counters:
    bytes_in = bytes_out = messages_in = messages_out = failed_produces = failed_fetches = 0

    def observe(self, value: float) -> None: ...


class Host:
    def __init__(self) -> None:
        self.wakes: list[Partition] = []
        self.flushes = 0
        self.cuts: list[int] = []
        self.failures = CallbackFailures()

    def wake_later(self, partition: Partition) -> None:
        self.wakes.append(partition)

    def flush(self, partition: Partition) -> None:
        self.flushes += 1

    def truncated(self, partition: Partition, offset: int) -> None:
        self.cuts.append(offset)

    def monotonic(self) -> float:
        return 0.0

    def counters(self, partition: Partition) -> tuple[Counters, Counters]:
        return Counters(), Counters()


class Watcher:
    def __init__(self) -> None:
        self.calls = 0

    def more_readable(self) -> None:
        self.calls += 1

    def failed(self, error: Exception) -> None:
        raise AssertionError from error


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    directory = LogDirectory.open(tmp_path, UnsyncedDisk(), StillClock(), random.Random(1))
    yield directory
    directory.close(clean=False)


@pytest.fixture
def host() -> Host:
    return Host()


def make(
    directory: LogDirectory,
    host: Host,
    state: PartitionRecord = ALONE,
    config: TopicConfig | None = None,
    *,
    flushes_before_ack: bool = False,
) -> Partition:
    log = directory.log(TopicPartition("t", 0), b"i" * 16, config or TopicConfig())
    partition = Partition(1, log, state, host, flushes_before_ack=flushes_before_ack)
    partition.apply_state(state, 0)
    return partition


def append(partition: Partition, *values: bytes, acks_all: bool = True) -> int:
    batch = values_batch(*values, timestamp=NOW_MS)
    view = memoryview(batch)
    return partition.append(view, check_produced(view), acks_all=acks_all).base_offset


def test_alone_in_the_isr_an_append_is_committed_at_once(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host)
    assert append(partition, b"a", b"b") == 0
    assert partition.high_watermark == 2
    assert partition.is_acknowledged(2, acks_all=True)
    assert len(partition.read(0, 1 << 20, at_least_one=True)) > 0


def test_with_a_follower_only_acks_one_is_satisfied(directory: LogDirectory, host: Host) -> None:
    partition = make(directory, host, PAIR)
    append(partition, b"a")
    assert partition.high_watermark == 0
    assert partition.is_acknowledged(1, acks_all=False)
    assert not partition.is_acknowledged(1, acks_all=True)
    assert len(partition.read(0, 1 << 20, at_least_one=True)) == 0
    called: list[int] = []
    partition.when_acknowledged(1, lambda: called.append(1), None, acks_all=True)
    partition.apply_state(ALONE, partition.high_watermark)
    assert called == [1]
    assert partition.high_watermark == 1


def test_too_few_in_sync_replicas_reject_acks_all_before_the_append(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host, HALF, TopicConfig(min_insync_replicas=3))
    with pytest.raises(BrokerError) as caught:
        append(partition, b"a")
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "has 1 in-sync replicas; min.insync.replicas requires 2" in (caught.value.message or "")
    assert partition.log.log_end_offset == 0
    assert append(partition, b"a", acks_all=False) == 0


def test_an_invalid_batch_behind_a_batch_that_must_be_retried(
    directory: LogDirectory, host: Host
) -> None:
    """The client retries both batches in order. Only then is the invalid batch rejected for good.
    Later batches are out of order until the client gives them new sequence numbers."""
    config = TopicConfig(min_insync_replicas=2, cleanup_policy=frozenset({"compact"}))
    partition = make(directory, host, PAIR, config)

    def send(sequence: int, key: bytes | None = b"k") -> ErrorCode:
        record = Record(0, NOW_MS, key, b"v", [])
        batch = memoryview(
            build_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence)
        )
        try:
            partition.append(batch, check_produced(batch), acks_all=True)
        except BrokerError as error:
            return error.code
        return ErrorCode.NONE

    assert send(0) == ErrorCode.NONE
    partition.apply_state(msgspec.structs.replace(PAIR, isr=(1,)), 0)
    assert send(1) == ErrorCode.NOT_ENOUGH_REPLICAS
    partition.apply_state(PAIR, 0)
    assert send(2, key=None) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert send(1) == ErrorCode.NONE
    assert send(2, key=None) == ErrorCode.INVALID_RECORD
    assert send(3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(2) == ErrorCode.NONE


def send_to(partition: Partition, sequence: int) -> ErrorCode:
    """Append a batch of producer 7, and return the error code."""
    record = Record(0, NOW_MS, b"k", b"v", [])
    batch = memoryview(
        build_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence)
    )
    try:
        partition.append(batch, check_produced(batch), acks_all=True)
    except BrokerError as error:
        return error.code
    return ErrorCode.NONE


def test_batches_behind_one_that_a_former_follower_rejected_get_the_same_error(
    directory: LogDirectory, host: Host
) -> None:
    """The batches arrive when the broker leads. On an out-of-order error, librdkafka would send
    them in a new epoch. The previous leader may have appended them: they would be duplicates."""
    led = PartitionRecord(replicas=(1, 2), leader=1, leader_epoch=3, isr=(1, 2))
    partition = make(directory, host, led, TopicConfig(min_insync_replicas=1))

    def send(sequence: int) -> ErrorCode:
        return send_to(partition, sequence)

    assert send(0) == ErrorCode.NONE
    partition.apply_state(msgspec.structs.replace(led, leader=2, leader_epoch=4), 0)
    assert send(1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.apply_state(msgspec.structs.replace(led, leader=1, leader_epoch=5), 0)
    assert send(2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [send(sequence) for sequence in (1, 2, 3)] == [ErrorCode.NONE] * 3


def test_the_first_batch_of_a_producer_is_not_overtaken_in_a_new_leader_epoch(
    directory: LogDirectory, host: Host
) -> None:
    """The broker rejects the first batch as a follower, and leads when the second arrives. It does
    not know the producer yet, so it would accept any sequence number."""
    led = PartitionRecord(replicas=(1, 2), leader=2, leader_epoch=3, isr=(1, 2))
    partition = make(directory, host, led, TopicConfig(min_insync_replicas=1))

    def send(sequence: int) -> ErrorCode:
        return send_to(partition, sequence)

    assert send(0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.apply_state(msgspec.structs.replace(led, leader=1, leader_epoch=4), 0)
    assert send(1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [send(sequence) for sequence in (0, 1)] == [ErrorCode.NONE] * 2


def test_the_minimum_is_never_more_than_the_replicas(directory: LogDirectory, host: Host) -> None:
    partition = make(directory, host, ALONE, TopicConfig(min_insync_replicas=2))
    assert append(partition, b"a") == 0
    assert partition.is_acknowledged(1, acks_all=True)
    appended = partition.append_marker(7, 0, commit=True, coordinator_epoch=0)
    assert partition.high_watermark == appended.last_offset + 1


def test_replicas_that_are_being_added_do_not_raise_the_minimum(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host, ALONE, TopicConfig(min_insync_replicas=2))
    growing = PartitionRecord(
        replicas=(1, 2, 3), leader=1, leader_epoch=3, isr=(1,), adding=(2, 3), partition_epoch=1
    )
    partition.apply_state(growing, partition.high_watermark)
    assert append(partition, b"a") == 0
    assert partition.is_acknowledged(1, acks_all=True)
    grown = PartitionRecord(
        replicas=(1, 2, 3), leader=1, leader_epoch=3, isr=(1,), partition_epoch=2
    )
    partition.apply_state(grown, partition.high_watermark)
    with pytest.raises(BrokerError) as caught:
        append(partition, b"b")
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_client_with_another_leader_epoch_is_rejected(
    directory: LogDirectory, host: Host, epoch: int, code: ErrorCode
) -> None:
    partition = make(directory, host)
    partition.check_leader()
    partition.check_leader(3)
    with pytest.raises(BrokerError) as caught:
        partition.check_leader(epoch)
    assert caught.value.code == code


def test_a_deposed_leader_rejects_requests_and_wakes_waiters(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host, PAIR)
    append(partition, b"a")
    called: list[int] = []
    watcher = Watcher()
    partition.when_acknowledged(1, lambda: called.append(1), None, acks_all=True)
    partition.watch(watcher)
    follower = PartitionRecord(replicas=(1, 2), leader=2, leader_epoch=4, isr=(1, 2))
    partition.apply_state(follower, partition.high_watermark)
    assert called == [1]
    assert watcher.calls == 1
    for attempt in (lambda: append(partition, b"b"), partition.check_leader):
        with pytest.raises(BrokerError) as caught:
            attempt()
        assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_many_appends_of_one_turn_wake_a_reader_once(directory: LogDirectory, host: Host) -> None:
    partition = make(directory, host)
    watcher = Watcher()
    partition.watch(watcher)
    for _ in range(5):
        append(partition, b"a")
    assert host.wakes == [partition]
    partition.wake()
    assert watcher.calls == 1
    partition.unwatch(watcher)
    append(partition, b"a")
    assert host.wakes == [partition]


def test_flush_before_ack_delays_acknowledgements_and_readers(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host, flushes_before_ack=True)
    append(partition, b"a", acks_all=False)
    assert host.flushes == 1
    assert not partition.is_acknowledged(1, acks_all=False)
    assert partition.high_watermark == 0
    called: list[int] = []
    partition.when_acknowledged(1, lambda: called.append(1), None, acks_all=False)
    partition.flushed(1)
    assert called == [1]
    assert partition.high_watermark == 1


def test_flush_messages_counts_from_the_last_flush(directory: LogDirectory, host: Host) -> None:
    partition = make(directory, host, config=TopicConfig(flush_messages=3))
    append(partition, b"a", b"b")
    assert (host.flushes, partition.high_watermark) == (0, 2)
    append(partition, b"c")
    assert (host.flushes, partition.high_watermark) == (1, 2)
    partition.log.flush()
    partition.flushed(partition.log.recovery_point)
    assert partition.high_watermark == 3
    append(partition, b"d")
    assert (host.flushes, partition.high_watermark) == (1, 4)


@pytest.mark.parametrize("offset", [-2, 3, 100])
def test_records_past_the_high_watermark_can_not_be_deleted(
    directory: LogDirectory, host: Host, offset: int
) -> None:
    partition = make(directory, host)
    append(partition, b"a", b"b")
    with pytest.raises(BrokerError) as caught:
        partition.delete_records(offset)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert partition.delete_records(1) == 1
    assert partition.delete_records(-1) == 2


# Transactions


def send(partition: Partition, producer_id: int, sequence: int, epoch: int = 0) -> int:
    batch = build_batch(
        [Record(0, NOW_MS, b"key", b"value", [])],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    view = memoryview(batch)
    return partition.append(view, check_produced(view), acks_all=True).base_offset


def test_a_reader_of_committed_records_stops_at_an_open_transaction(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host)
    append(partition, b"a")
    send(partition, 7, 0)
    append(partition, b"b")
    assert (partition.high_watermark, partition.last_stable_offset) == (3, 1)

    def size(offset: int, *, read_committed: bool) -> int:
        return len(
            partition.read(offset, 1 << 20, at_least_one=True, read_committed=read_committed)
        )

    assert 0 < size(0, read_committed=True) < size(0, read_committed=False)
    assert size(1, read_committed=True) == size(2, read_committed=True) == 0
    appended = partition.append_marker(7, 0, commit=True, coordinator_epoch=0)
    assert (appended.base_offset, appended.last_offset, appended.duplicate) == (3, 3, False)
    assert partition.last_stable_offset == partition.high_watermark == 4
    assert size(0, read_committed=True) == size(0, read_committed=False)


def test_a_marker_is_stable_once_every_in_sync_replica_has_it(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host, PAIR)
    send(partition, 7, 0)
    appended = partition.append_marker(7, 0, commit=False, coordinator_epoch=0)
    assert not partition.is_acknowledged(appended.last_offset + 1, acks_all=True)
    assert partition.last_stable_offset == 0
    partition.apply_state(ALONE, partition.high_watermark)
    assert partition.last_stable_offset == 2
    (aborted,) = partition.log.aborted_transactions(0, 2)
    assert (aborted.producer_id, aborted.first_offset) == (7, 0)


def test_a_marker_wakes_readers_that_wait_for_its_transaction(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host)
    send(partition, 7, 0)
    partition.watch(Watcher())
    partition.append_marker(7, 0, commit=True, coordinator_epoch=0)
    assert host.wakes == [partition]


def test_a_repeated_marker_is_acknowledged_and_not_appended(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host)
    send(partition, 7, 0)

    def end(epoch: int, coordinator_epoch: int = 0) -> AppendResult:
        return partition.append_marker(
            7, epoch, commit=True, coordinator_epoch=coordinator_epoch, transaction_version=2
        )

    assert not end(1, coordinator_epoch=4).duplicate
    again = end(1, coordinator_epoch=4)
    assert (again.duplicate, again.last_offset, partition.log.log_end_offset) == (True, 1, 2)
    for late, code in (
        (lambda: end(0), ErrorCode.INVALID_PRODUCER_EPOCH),
        (lambda: end(2, coordinator_epoch=3), ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ):
        with pytest.raises(BrokerError) as caught:
            late()
        assert caught.value.code == code
    assert partition.log.log_end_offset == 2


@pytest.mark.parametrize(
    ("state", "config", "code"),
    [
        (
            PartitionRecord(replicas=(1, 2), leader=2, leader_epoch=4, isr=(1, 2)),
            TopicConfig(),
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ),
        (HALF, TopicConfig(min_insync_replicas=2), ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_a_marker_has_the_conditions_of_an_append_with_acks_all(
    directory: LogDirectory, host: Host, state: PartitionRecord, config: TopicConfig, code: int
) -> None:
    partition = make(directory, host, state, config)
    with pytest.raises(BrokerError) as caught:
        partition.append_marker(7, 0, commit=True, coordinator_epoch=0)
    assert caught.value.code == code


FOLLOWS = PartitionRecord(replicas=(1, 2), leader=2, leader_epoch=4, isr=(1, 2))


def stored(*values: bytes, base_offset: int, epoch: int) -> memoryview:
    """Return a batch as it is in the leader's log."""
    batch = memoryview(values_batch(*values, timestamp=NOW_MS))
    stamp(batch, 0, base_offset, epoch)
    return batch


def test_a_follower_applies_the_leaders_offsets_up_to_its_log_end(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host, FOLLOWS)
    partition.append_as_follower(stored(b"a", b"b", base_offset=0, epoch=4), 9, 0)
    assert (partition.log.log_end_offset, partition.high_watermark) == (2, 2)
    # A new leader may know a lower high watermark. The follower's does not go back.
    partition.append_as_follower(stored(b"c", base_offset=2, epoch=5), 1, 1)
    assert (partition.log.log_end_offset, partition.high_watermark) == (3, 2)
    assert partition.log.log_start_offset == 1


def test_a_truncation_lowers_the_high_watermark_and_notifies_the_host(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host, FOLLOWS)
    for offset in range(4):
        partition.append_as_follower(stored(b"v", base_offset=offset, epoch=4), 3, 0)
    partition.truncate(3)
    assert (partition.log.log_end_offset, partition.high_watermark) == (3, 3)
    partition.truncate(1)
    assert (partition.log.log_end_offset, partition.high_watermark) == (1, 1)
    assert host.cuts == [3, 1]
    partition.restart_at(7)
    log = partition.log
    assert (log.log_start_offset, log.log_end_offset, partition.high_watermark) == (7, 7, 7)
    partition.truncate(5)
    assert (log.log_start_offset, log.log_end_offset, partition.high_watermark) == (5, 5, 5)
    assert host.cuts == [3, 1, 7, 5]


def test_a_new_leader_starts_its_epoch_at_its_log_end_offset(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host, FOLLOWS)
    partition.append_as_follower(stored(b"a", b"b", base_offset=0, epoch=4), 1, 0)
    partition.apply_state(
        PartitionRecord(replicas=(1, 2), leader=1, leader_epoch=5, isr=(1, 2)),
        partition.high_watermark,
    )
    assert partition.log.epoch_end_offset(4) == (4, 2)
    assert (partition.high_watermark, partition.durable_offset) == (1, 2)
    assert partition.leadership is not None
    assert partition.leadership.epoch_start_offset == 2
    assert partition.is_end_uncertain
    # Deposed before the first append: the log has no record of its epoch.
    partition.apply_state(FOLLOWS, partition.high_watermark)
    assert partition.log.latest_epoch == 4
    assert partition.leadership is None


def test_a_high_watermark_beyond_the_log_is_lowered_to_the_log_end(
    directory: LogDirectory, host: Host
) -> None:
    partition = make(directory, host, FOLLOWS)
    partition.append_as_follower(stored(b"a", base_offset=0, epoch=4), 0, 0)
    partition.apply_state(FOLLOWS, 50)
    assert partition.high_watermark == 1


def test_under_min_isr_nothing_is_committed_and_waiters_are_notified(
    directory: LogDirectory, host: Host
) -> None:
    config = TopicConfig(min_insync_replicas=2)
    partition = make(directory, host, PAIR, config)
    append(partition, b"a")
    called: list[int] = []
    partition.when_acknowledged(1, lambda: called.append(1), None, acks_all=True)
    alone = PartitionRecord(replicas=(1, 2), leader=1, leader_epoch=3, isr=(1,), partition_epoch=1)
    partition.apply_state(alone, partition.high_watermark)
    assert called == [1]
    assert partition.is_under_min_isr
    assert partition.high_watermark == 0
    assert not partition.is_acknowledged(1, acks_all=True)
