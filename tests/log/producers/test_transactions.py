"""Transactions in a log, by examples and against a plain model (`transaction_model`)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.in_process.log_home import NOW_MS, LogHome, make_batch
from harness.in_process.log_home import append as append_plain
from log.transaction_model import Driver
from millstream.log.index.transaction_index import AbortedTransaction
from millstream.log.log import AppendResult, PartitionLog
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.records.batch import CorruptBatch, read_header, stamp, stamp_crc
from millstream.records.builder import build_batch
from millstream.records.control import EndMarker, build_marker
from millstream.records.record import Record

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["produce"] * 8
            + ["plain", "idempotent"]
            + ["commit", "abort"] * 3
            + ["roll", "flush", "watermark", "truncate", "kill", "stop", "checkpoint"]
        ),
        st.integers(1, 4),  # the producer
        st.floats(0, 1),  # where to cut
    ),
    min_size=10,
    max_size=60,
)


def apply_step(driver: Driver, kind: str, number: int, part: float) -> None:
    """One step of a random history."""
    end = driver.model.end
    match kind:
        case "produce":
            driver.produce(number, number, is_transactional=True)
        case "idempotent":
            driver.produce(number, 1, is_transactional=False)
        case "plain":
            driver.produce_plain(number)
        case "commit" | "abort":
            driver.end(number, is_commit=kind == "commit", is_bumped=part > 0.5)
        case "roll":
            driver.log.roll()
        case "flush":
            driver.log.flush()
        case "checkpoint":
            driver.log.flush()
            assert driver.home.directory is not None
            driver.home.directory.checkpoint()
        case "watermark":
            rest = end - driver.high_watermark
            driver.high_watermark += int(rest * part)
        case "truncate":
            driver.truncate(driver.high_watermark + int((end - driver.high_watermark) * part))
        case "kill":
            driver.kill(int(end * part), int(70 * part))
        case "stop":
            driver.stop_cleanly()


@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS)
def test_a_log_agrees_with_the_model(
    new_home: Callable[..., LogHome], steps: list[tuple[str, int, float]]
) -> None:
    driver = Driver(new_home())
    for kind, number, part in steps:
        apply_step(driver, kind, number, part)
        driver.check()
    driver.check_files()
    driver.home.stop(clean=False)


@pytest.mark.soak
@settings(
    deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS)
def test_many_logs_agree_with_the_model(
    new_home: Callable[..., LogHome], steps: list[tuple[str, int, float]]
) -> None:
    driver = Driver(new_home())
    for kind, number, part in steps:
        apply_step(driver, kind, number, part)
    driver.check()
    driver.check_files()
    driver.home.stop(clean=False)


# Examples


def send(
    log: PartitionLog, producer_id: int, sequence: int, count: int = 1, epoch: int = 0
) -> AppendResult:
    batch = memoryview(
        build_batch(
            [Record(number, NOW_MS, b"key", b"value", []) for number in range(count)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
    )
    return log.append_as_leader(batch, read_header(batch), 0)


def end(
    log: PartitionLog,
    producer_id: int,
    *,
    commit: bool,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    version: int = 1,
) -> AppendResult | None:
    marker = EndMarker(commit, coordinator_epoch)
    batch = log.prepare_marker(marker, producer_id, epoch, version)
    if batch is None:
        return None
    return log.append_as_leader(memoryview(batch), read_header(batch), 0)


def refused(act: Callable[[], object]) -> ErrorCode:
    with pytest.raises(BrokerError) as caught:
        act()
    return ErrorCode(caught.value.code)


def index_bytes(*entries: tuple[int, int, int, int]) -> bytes:
    return b"".join(struct.pack(">hqqqq", 0, *entry) for entry in entries)


def test_without_transactions_the_last_stable_offset_is_the_high_watermark(home: LogHome) -> None:
    log = home.open()
    append_plain(log)
    append_plain(log, make_batch(producer=(1, 0, 0)))
    assert [log.last_stable_offset(offset) for offset in (0, 1, 2)] == [0, 1, 2]
    assert log.aborted_transactions(0, 2) == []
    assert not log.producer_state.has_open_transaction(1, 0)


def test_the_first_open_transaction_holds_readers_back(home: LogHome) -> None:
    log = home.open()
    append_plain(log)
    send(log, 1, 0, count=2)
    send(log, 2, 0)
    assert log.last_stable_offset(4) == 1
    end(log, 1, commit=True)
    assert log.last_stable_offset(5) == 3
    assert log.last_stable_offset(4) == 3
    end(log, 2, commit=False)
    assert log.last_stable_offset(6) == 6
    assert log.aborted_transactions(0, 6) == [AbortedTransaction(2, 3, 5, 6)]
    assert log.aborted_transactions(0, 3) == []


def test_a_marker_counts_once_it_is_below_the_high_watermark(home: LogHome) -> None:
    log = home.open()
    send(log, 1, 0)
    end(log, 1, commit=True)
    assert log.last_stable_offset(0) == 0
    assert log.last_stable_offset(1) == 0
    assert log.last_stable_offset(2) == 2


def test_a_deleted_beginning_of_an_open_transaction_lets_readers_start(home: LogHome) -> None:
    log = home.open()
    send(log, 1, 0, count=3)
    append_plain(log)
    log.advance_start(2)
    assert log.last_stable_offset(4) == 2
    assert len(log.read(2, 1000, log.last_stable_offset(4), at_least_one=True)) == 0


def test_a_transaction_over_several_segments_is_listed_where_it_ended(home: LogHome) -> None:
    log = home.open()
    send(log, 1, 0)
    log.roll()
    send(log, 2, 0)
    send(log, 1, 1)
    log.roll()
    end(log, 1, commit=False)
    log.flush()
    names = sorted(path.name for path in home.log_path.glob("*.txnindex"))
    assert names == ["00000000000000000003.txnindex"]
    assert (home.log_path / names[0]).read_bytes() == index_bytes((1, 0, 3, 1))
    end(log, 2, commit=True)
    assert log.aborted_transactions(0, 1) == [AbortedTransaction(1, 0, 3, 1)]
    assert log.aborted_transactions(2, 5) == [AbortedTransaction(1, 0, 3, 1)]


@pytest.mark.parametrize("damage", ["missing entry byte", "nonsense"])
def test_a_damaged_index_is_rebuilt(home: LogHome, damage: str) -> None:
    log = home.open()
    send(log, 1, 0)
    log.roll()
    end(log, 1, commit=False)
    send(log, 2, 0)
    log.roll()
    end(log, 2, commit=True)
    home.stop(clean=True)
    path = home.log_path / "00000000000000000001.txnindex"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] if damage == "missing entry byte" else b"\xff" * 34)
    log = home.open()
    assert log.aborted_transactions(0, 4) == [AbortedTransaction(1, 0, 1, 2)]
    assert path.read_bytes() == whole


def test_retention_deletes_the_transaction_index(home: LogHome) -> None:
    log = home.open()
    send(log, 1, 0)
    end(log, 1, commit=False)
    log.roll()
    append_plain(log)
    log.advance_start(2)
    paths = log.expire(home.clock.now_ms, 3)
    assert ".txnindex.deleted" in {"".join(path.suffixes[-2:]) for path in paths}
    assert log.aborted_transactions(2, 3) == []


# Fencing and sequences


def test_a_transactional_producer_is_fenced_by_a_marker_of_a_newer_epoch(home: LogHome) -> None:
    log = home.open()
    send(log, 1, 0, epoch=4)
    end(log, 1, commit=False, epoch=5)
    assert refused(lambda: send(log, 1, 1, epoch=4)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(lambda: send(log, 1, 1, epoch=5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(lambda: end(log, 1, commit=True, epoch=4)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(log, 1, 0, epoch=5).base_offset == 2


def test_an_older_coordinator_is_fenced(home: LogHome) -> None:
    log = home.open()
    send(log, 1, 0)
    end(log, 1, commit=True, coordinator_epoch=3)
    send(log, 1, 1)
    late = lambda: end(log, 1, commit=False, coordinator_epoch=2)  # noqa: E731
    assert refused(late) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    log = home.reopen(clean=False)
    assert refused(late) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.last_stable_offset(3) == 2
    assert end(log, 1, commit=False, coordinator_epoch=3) is not None


def test_a_bumped_marker_is_written_once(home: LogHome) -> None:
    log = home.open()
    send(log, 1, 0)
    assert end(log, 1, commit=True, epoch=1, version=2) is not None
    assert end(log, 1, commit=True, epoch=1, version=2) is None
    send(log, 1, 0, epoch=1)
    # The late marker would end the next transaction, which has that epoch.
    again = lambda: end(log, 1, commit=True, epoch=1, version=2)  # noqa: E731
    assert refused(again) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.producer_state.has_open_transaction(1, 1)


def test_a_repeated_classic_marker_changes_nothing(home: LogHome) -> None:
    log = home.open()
    send(log, 1, 0)
    assert end(log, 1, commit=False) is not None
    assert end(log, 1, commit=False) is not None
    assert log.last_stable_offset(3) == 3
    assert log.aborted_transactions(0, 3) == [AbortedTransaction(1, 0, 1, 2)]
    assert send(log, 1, 1).base_offset == 3


def test_a_marker_for_an_unknown_producer_is_recorded(home: LogHome) -> None:
    log = home.open()
    end(log, 1, commit=True, epoch=6, coordinator_epoch=2)
    (producer,) = list(log.producer_state.entries.values())
    assert (producer.epoch, producer.coordinator_epoch, producer.transaction_start) == (6, 2, -1)
    assert refused(lambda: send(log, 1, 0, epoch=5)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.last_stable_offset(1) == 1


def test_a_retry_inside_a_transaction_is_recognised(home: LogHome) -> None:
    log = home.open()
    first = send(log, 1, 0)
    again = send(log, 1, 0)
    assert (again.base_offset, again.duplicate) == (first.base_offset, True)
    assert log.log_end_offset == 1


def test_a_plain_batch_may_not_interrupt_a_transaction(home: LogHome) -> None:
    log = home.open()
    send(log, 1, 0)
    plain = make_batch(producer=(1, 0, 1))
    assert refused(lambda: append_plain(log, plain)) is ErrorCode.INVALID_TXN_STATE


def test_the_first_batch_of_a_second_version_transaction_is_number_zero(home: LogHome) -> None:
    log = home.open()

    def check(sequence: int, epoch: int = 1) -> None:
        batch = make_batch(producer=(1, epoch, sequence))
        log.producer_state.check_first_batch(read_header(batch), log.log_end_offset)

    assert refused(lambda: check(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    check(0)
    send(log, 1, 0, epoch=1)
    end(log, 1, commit=True, epoch=2, version=2)
    assert refused(lambda: check(0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(lambda: check(1, epoch=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    check(0, epoch=2)


def test_batches_of_a_coordinator_need_no_sequence(home: LogHome) -> None:
    log = home.open()
    for offset in range(3):
        assert send(log, 1, -1).base_offset == offset
    log = home.reopen(clean=True)
    assert send(log, 1, -1).base_offset == 3
    assert refused(lambda: send(log, 1, -1, epoch=-1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.last_stable_offset(4) == 0
    end(log, 1, commit=True)
    assert log.last_stable_offset(5) == 5


def test_a_marker_may_exceed_max_message_bytes(
    new_home: Callable[..., LogHome],
) -> None:
    home = new_home()
    log = home.open()
    send(log, 1, 0)
    log.update_config(TopicConfig(max_message_bytes=0))
    assert end(log, 1, commit=True) is not None


# Followers and damage


def test_a_follower_learns_transactions_from_the_batches(new_home: Callable[..., LogHome]) -> None:
    leader, follower = new_home().open(), new_home().open()
    send(leader, 1, 0, count=2)
    send(leader, 2, 0)
    end(leader, 1, commit=False, coordinator_epoch=4)
    data = leader.read(0, 10_000, 4, at_least_one=True).read()
    follower.append_as_follower(memoryview(data))
    assert follower.last_stable_offset(4) == 2
    assert follower.aborted_transactions(0, 2) == [AbortedTransaction(1, 0, 3, 2)]
    assert follower.producer_state.encode() == leader.producer_state.encode()


def test_a_follower_rejects_a_damaged_marker(home: LogHome) -> None:
    log = home.open()
    batch = build_marker(EndMarker(True, 0), 1, 0, NOW_MS)
    batch[65] = 0x7F  # the key's length
    stamp_crc(batch, 0, len(batch))
    with pytest.raises(CorruptBatch):
        log.append_as_follower(memoryview(batch))
    assert log.log_end_offset == 0


def test_a_marker_damaged_on_disk_leaves_its_transaction_open(home: LogHome) -> None:
    log = home.open()
    send(log, 1, 0)
    log.roll()
    end(log, 1, commit=True)
    append_plain(log)
    home.stop(clean=True)
    path: Path = home.log_path / "00000000000000000001.log"
    data = bytearray(path.read_bytes())
    data[65] ^= 0x7F  # the key's length
    path.write_bytes(data)
    for snapshot in home.log_path.glob("*3.snapshot"):
        snapshot.unlink()
    log = home.open()
    assert log.last_stable_offset(3) == 0


def test_index_entries_beyond_the_recovered_end_are_removed(home: LogHome) -> None:
    log = home.open()
    send(log, 1, 0)
    end(log, 1, commit=False)
    log.flush()
    assert home.directory is not None
    home.directory.checkpoint()
    path = home.log_path / "00000000000000000000.txnindex"
    home.stop(clean=False)
    path.write_bytes(path.read_bytes() + index_bytes((2, 3, 4, 5)))
    log = home.open()
    assert log.aborted_transactions(0, 9) == [AbortedTransaction(1, 0, 1, 2)]
    assert path.read_bytes() == index_bytes((1, 0, 1, 2))


def test_an_emptied_marker_still_tells_the_epoch(home: LogHome) -> None:
    log = home.open()
    emptied = build_batch(
        [], producer_id=1, producer_epoch=7, is_transactional=True, is_control=True
    )
    stamp(emptied, 0, 0, 0)
    log.append_as_follower(memoryview(emptied))
    assert refused(lambda: send(log, 1, 0, epoch=6)) is ErrorCode.INVALID_PRODUCER_EPOCH
