"""The log against a simple model, and its rules one by one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.in_process.log_home import (
    NOW_MS,
    SMALL,
    LogHome,
    append,
    make_batch,
    read_batches,
    read_values,
)
from log.full_disk import FullDisk
from millstream.log.log import PartitionLog
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.records.batch import read_header, scan

NewHome = Callable[..., LogHome]


@dataclass
class Model:
    """The expected content of a log: batches as (base offset, count, value, epoch)."""

    batches: list[tuple[int, int, bytes, int]] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def append(self, count: int, value: bytes, epoch: int) -> None:
        self.batches.append((self.end, count, value, epoch))
        self.end += count

    def truncate(self, offset: int) -> None:
        while self.batches and self.batches[-1][0] + self.batches[-1][1] > offset:
            self.end = self.batches.pop()[0]
        self.end = min(self.end, offset)
        self.start = min(self.start, self.end)

    def values(self) -> list[tuple[int, bytes]]:
        return [
            (base + i, value)
            for base, count, value, _ in self.batches
            for i in range(count)
            if base + i >= self.start
        ]


operation = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 300)),
    st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 300)),
    st.tuples(st.just("append_as_follower"), st.integers(1, 4), st.integers(0, 200)),
    st.tuples(st.just("truncate"), st.floats(0, 1), st.none()),
    st.tuples(st.just("delete"), st.floats(0, 1), st.none()),
    st.tuples(st.just("expire"), st.none(), st.none()),
    st.tuples(st.just("flush"), st.none(), st.none()),
    st.tuples(st.just("roll"), st.none(), st.none()),
    st.tuples(st.just("restart"), st.booleans(), st.none()),
    st.tuples(st.just("unload"), st.none(), st.none()),
    st.tuples(st.just("epoch"), st.none(), st.none()),
)


class Pair:
    """Applies the same operations to the log and to its model."""

    def __init__(self, home: LogHome) -> None:
        self.home = home
        self.log = home.open()
        self.model = Model()
        self.epoch = 0
        self.number = 0

    def _value(self, size: int) -> bytes:
        self.number += 1
        return b"%d:" % self.number + b"x" * size

    def append(self, count: int, size: int) -> None:
        value = self._value(size)
        assert append(self.log, make_batch(count, value), self.epoch).base_offset == self.model.end
        self.model.append(count, value, self.epoch)

    def append_as_follower(self, count: int, size: int) -> None:
        data = bytearray()
        for number in range(count):
            value = self._value(size)
            batch = make_batch(number + 1, value)
            batch[0:8] = self.model.end.to_bytes(8, "big")
            batch[12:16] = self.epoch.to_bytes(4, "big")
            self.model.append(number + 1, value, self.epoch)
            data += batch
        self.log.append_as_follower(memoryview(data))

    def truncate(self, part: float, _: None) -> None:
        offset = self.model.start + int(part * (self.model.end - self.model.start))
        self.log.truncate_to(offset)
        self.model.truncate(offset)

    def delete(self, part: float, _: None) -> None:
        offset = self.model.start + int(part * (self.model.end - self.model.start))
        self.log.advance_start(offset)
        self.model.start = offset

    def expire(self, _: None, __: None) -> None:
        self.log.expire(NOW_MS, self.log.log_end_offset)

    def flush(self, _: None, __: None) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.log.log_end_offset
        assert self.home.directory is not None
        self.home.directory.checkpoint()

    def roll(self, _: None, __: None) -> None:
        self.log.roll()

    def restart(self, clean: bool, _: None) -> None:
        start = self.model.start
        self.log = self.home.reopen(clean=clean)
        if not clean:
            # The checkpoint of the log start offset may be older than a DeleteRecords.
            assert self.log.log_start_offset <= start
            self.log.advance_start(start)

    def unload(self, _: None, __: None) -> None:
        self.log.unload()

    def epoch_(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch)

    def check(self) -> None:
        log, model = self.log, self.model
        assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        assert read_values(log) == model.values()
        for base, _, _, epoch in model.batches:
            if base >= model.start:
                data = log.read(base, 1, log.log_end_offset, at_least_one=True).read()
                assert read_header(data).leader_epoch == epoch


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(operations=st.lists(operation, max_size=40))
def test_any_history_is_that_of_the_model(
    new_home: NewHome, operations: list[tuple[str, object, object]]
) -> None:
    home = new_home()
    pair = Pair(home)
    for name, first, second in operations:
        if name == "epoch":
            pair.epoch_()
        else:
            getattr(pair, name)(first, second)
    pair.check()
    home.stop(clean=False)
    shutil.rmtree(home.path)


def test_every_offset_can_be_read_from_with_any_limit(home: LogHome) -> None:
    log = home.open()
    for number in range(30):
        append(log, make_batch(number % 4 + 1, b"v" * (number * 7 % 90)))
    everything = read_batches(log, max_bytes=1 << 20)
    for cold in (False, True):
        if cold:
            log = home.reopen(clean=True)
        for offset in range(log.log_end_offset):
            expected = b"".join(b for b in everything if read_header(b).last_offset >= offset)
            for limit in (0, 1, 100, 333, 1000, 100_000):
                data = log.read(offset, limit, log.log_end_offset, at_least_one=True).read()
                assert data
                assert expected.startswith(data)
                first = read_header(data).size
                assert len(data) <= max(limit, first)
                assert sum(header.size for _, header in scan(data)) == len(data)
                strict = log.read(offset, limit, log.log_end_offset, at_least_one=False).read()
                assert strict == (data if first <= limit else b"")


def test_nothing_at_or_above_the_end_offset_is_read(home: LogHome) -> None:
    log = home.open()
    for _ in range(20):
        append(log, make_batch(2, b"v" * 50))
    for end_offset in range(0, 42, 2):
        for offset in range(end_offset):
            data = log.read(offset, 1 << 20, end_offset, at_least_one=True).read()
            assert scan(data)[-1][1].next_offset <= end_offset
        assert len(log.read(end_offset, 1 << 20, end_offset, at_least_one=True)) == 0


def test_offsets_outside_of_the_log_are_rejected(home: LogHome) -> None:
    log = home.open()
    append(log, make_batch(5))
    log.advance_start(2)
    for offset in (-1, 1, 6):
        with pytest.raises(BrokerError) as caught:
            log.read(offset, 100, 5, at_least_one=True)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(log.read(5, 100, 5, at_least_one=True)) == 0


def test_a_batch_over_the_limit_is_rejected(new_home: NewHome) -> None:
    log = new_home(TopicConfig(max_message_bytes=200)).open()
    with pytest.raises(BrokerError) as caught:
        append(log, make_batch(1, b"v" * 200))
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == 0


def test_append_time_replaces_the_producers(new_home: NewHome) -> None:
    log = new_home(TopicConfig(message_timestamp_type="LogAppendTime")).open()
    assert append(log, make_batch(timestamp=5)).append_time_ms == NOW_MS
    [(_, header)] = scan(log.read(0, 1000, 1, at_least_one=True).read())
    assert header.is_append_time
    assert header.max_timestamp == NOW_MS
    assert log.find_by_timestamp(NOW_MS) == (NOW_MS, 0, 0)


def test_segments_roll_by_size_time_and_full_index(new_home: NewHome) -> None:
    log = new_home(
        TopicConfig(
            segment_bytes=1 << 20, segment_ms=1000, segment_index_bytes=24, index_interval_bytes=0
        )
    ).open()
    append(log, make_batch(timestamp=NOW_MS))
    append(log, make_batch(timestamp=NOW_MS + 1000))
    assert len(log.segments) == 1
    append(log, make_batch(timestamp=NOW_MS + 1001))
    assert [s.base_offset for s in log.segments] == [0, 2]
    for _ in range(10):
        append(log, make_batch(timestamp=NOW_MS + 1001))
    assert len(log.segments) > 2
    assert all(s.offset_index.handle.path.stat().st_size <= 24 for s in log.segments[:-1])
    assert log.log_end_offset == 13
    assert len(read_batches(log)) == 13


def test_a_failed_write_leaves_the_log_as_it_was(new_home: NewHome) -> None:
    disk = FullDisk()
    home = new_home(disk=disk)
    log = home.open()
    append(log, make_batch(3, b"before"))
    for _ in range(2):
        disk.is_full = True
        with pytest.raises(BrokerError) as caught:
            append(log, make_batch(2, b"lost", producer=(1, 0, 0)))
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert log.log_end_offset == 3
    disk.is_full = False
    append(log, make_batch(2, b"after", producer=(1, 0, 0)))
    expected = [(0, b"before"), (1, b"before"), (2, b"before"), (3, b"after"), (4, b"after")]
    assert read_values(log) == expected
    assert read_values(home.reopen(clean=False)) == expected


def test_a_full_disk_at_a_roll_leaves_the_log_usable(new_home: NewHome) -> None:
    disk = FullDisk()
    log = new_home(disk=disk).open()
    for _ in range(3):
        append(log, make_batch(1, b"v" * 300))
    disk.is_full = True
    for _ in range(3):
        with pytest.raises(BrokerError):
            log.roll()
    disk.is_full = False
    for _ in range(10):
        append(log, make_batch(1, b"v" * 300))
    assert len(read_batches(log)) == 13


def test_records_are_found_by_time(home: LogHome) -> None:
    log = home.open()
    assert log.max_timestamp_offset() is None
    assert log.find_by_timestamp(0) is None
    times = [NOW_MS + (i * 37) % 100 for i in range(60)]
    for time in times:
        append(log, make_batch(1, b"v" * 30, time))
    for cold in (False, True):
        if cold:
            log = home.reopen(clean=True)
        for wanted in range(NOW_MS - 1, NOW_MS + 101):
            expected = next((i for i, time in enumerate(times) if time >= wanted), None)
            found = log.find_by_timestamp(wanted)
            assert (found and found.offset) == expected
        assert log.max_timestamp_offset() == (max(times), times.index(max(times)), 0)


def test_followers_must_not_go_back(home: LogHome) -> None:
    log = home.open()
    append(log, make_batch(3))
    with pytest.raises(BrokerError) as caught:
        log.append_as_follower(memoryview(make_batch()))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 3


def test_truncating_fully_restarts_the_log(home: LogHome) -> None:
    log = home.open()
    for _ in range(10):
        append(log, make_batch(1, b"v" * 200))
    log.truncate_fully_and_start_at(100)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (100, 100, 100)
    assert append(log).base_offset == 100
    log = home.reopen(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (100, 101)


def test_truncation_below_the_recovery_point_is_on_disk_before_new_appends(home: LogHome) -> None:
    log = home.open()
    for _ in range(10):
        append(log, make_batch(1, b"old"))
    log.flush()
    assert home.directory is not None
    home.directory.checkpoint()
    log.truncate_to(5)
    for _ in range(10):
        append(log, make_batch(1, b"new"))
    with (home.log_path / "00000000000000000000.log").open("r+b") as file:
        file.seek(-20, 2)
        file.write(b"\0" * 20)
    log = home.reopen(clean=False)
    assert [value for _, value in read_values(log)] == [b"old"] * 5 + [b"new"] * 9


def test_an_idle_log_makes_nothing_and_costs_little(new_home: NewHome) -> None:
    home = new_home()
    log = home.open()
    assert len(log.read(0, 100, 0, at_least_one=True)) == 0
    assert log.size_bytes == 0
    assert not home.log_path.exists()
    home.stop(clean=True)
    log = home.open()
    assert not log.is_loaded
    home.stop(clean=True)


def test_offsets_after_a_clean_stop_are_known_without_loading(home: LogHome) -> None:
    log = home.open()
    for _ in range(20):
        append(log, make_batch(2, b"v" * 100))
    log.advance_start(7)
    log = home.reopen(clean=True)
    assert (log.log_start_offset, log.log_end_offset) == (7, 40)
    assert not log.is_loaded
    assert log.size_bytes > 0
    assert not log.is_loaded
    assert read_values(log)[0] == (7, b"v" * 100)


def test_a_config_change_applies_at_once(home: LogHome) -> None:
    log = home.open()
    append(log)
    log.update_config(TopicConfig(max_message_bytes=10))
    with pytest.raises(BrokerError):
        append(log)
    log.update_config(SMALL)
    append(log)


def _epochs(log: PartitionLog) -> list[tuple[int, int]]:
    return list(log.epochs.entries)


@pytest.mark.parametrize("clean", [True, False])
def test_epochs_survive_a_restart(home: LogHome, clean: bool) -> None:
    log = home.open()
    for epoch in (1, 1, 4, 4, 9):
        append(log, make_batch(2, b"v" * 200), epoch)
    assert _epochs(log) == [(1, 0), (4, 4), (9, 8)]
    log = home.reopen(clean=clean)
    assert _epochs(log) == [(1, 0), (4, 4), (9, 8)]
    assert log.epoch_end_offset(1) == (1, 4)
    assert log.epoch_end_offset(3) == (1, 4)
    assert log.epoch_end_offset(9) == (9, 10)
    assert log.epoch_end_offset(10) == (-1, -1)
    log.truncate_to(5)
    assert _epochs(log) == [(1, 0)]
    assert log.log_end_offset == 4
