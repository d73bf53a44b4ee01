"""Damage in stored batches is logged and never served."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable

import pytest

from harness.in_process.log_home import LogHome, append, make_batch, read_batches
from millstream.log.reading.walk import DamagedLogError
from millstream.model.config import TopicConfig
from millstream.model.error import ErrorCode
from millstream.records.batch import read_header, scan, stamp_crc
from millstream.records.builder import build_batch

NewHome = Callable[..., LogHome]


def _fill(home: LogHome, count: int = 24) -> list[bytes]:
    log = home.open()
    for number in range(count):
        append(log, make_batch(number % 4 + 1, b"%03d" % number * (number % 5 + 1)), epoch=1)
    batches = read_batches(log)
    home.stop(clean=True)
    return batches


def _served(home: LogHome, batches: list[bytes], max_bytes: int) -> tuple[set[int], int]:
    """Read as a client that skips unreadable offsets. Returns the batches and the error count."""
    log = home.open()
    by_base = {read_header(batch).base_offset: number for number, batch in enumerate(batches)}
    served: set[int] = set()
    errors = 0
    offset = 0
    while offset < log.log_end_offset:
        try:
            data = log.read(offset, max_bytes, log.log_end_offset, at_least_one=True).read()
        except DamagedLogError:
            errors += 1
            offset += 1
            continue
        assert data
        for position, header in scan(data):
            number = by_base[header.base_offset]
            stored = data[position : position + header.size]
            # No checksum covers the leader epoch.
            assert stored[:12] + stored[16:] == batches[number][:12] + batches[number][16:]
            served.add(number)
            offset = header.next_offset
    home.stop(clean=False)
    return served, errors


@pytest.mark.parametrize("max_bytes", [1, 400, 1 << 20])
@pytest.mark.parametrize("interval", [150, 100_000])
def test_flipped_bits_in_history(new_home: NewHome, max_bytes: int, interval: int) -> None:
    home = new_home(TopicConfig(segment_bytes=1200, index_interval_bytes=interval))
    batches = _fill(home)
    chance = random.Random(max_bytes)
    first = home.log_path / "00000000000000000000.log"
    data = first.read_bytes()
    for position in range(max_bytes % 9, len(data), 9):
        copy = new_home(home.config)
        shutil.copytree(home.path, copy.path)
        damaged = bytearray(data)
        damaged[position] ^= 1 << chance.randrange(8)
        (copy.log_path / first.name).write_bytes(damaged)
        served, errors = _served(copy, batches, max_bytes)
        hit, start = 0, 0
        while start + len(batches[hit]) <= position:
            start += len(batches[hit])
            hit += 1
        if 12 <= position - start < 16:
            continue
        assert hit not in served
        assert errors > 0
        # Everything before the damage and every other segment is served.
        assert set(range(hit)) <= served
        in_first = sum(1 for batch in batches if batch in data)
        assert set(range(in_first, len(batches))) <= served
        shutil.rmtree(copy.path)


def test_intact_batches_behind_damage_stay_readable(new_home: NewHome) -> None:
    home = new_home(TopicConfig(segment_bytes=1 << 20, index_interval_bytes=150))
    batches = _fill(home)
    path = home.log_path / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    hit = 10
    data[sum(map(len, batches[:hit])) + 70] ^= 4
    path.write_bytes(data)
    served, errors = _served(home, batches, 400)
    assert served == set(range(len(batches))) - {hit}
    assert errors == read_header(batches[hit]).last_offset_delta + 1


def test_damage_is_reported_with_its_position(new_home: NewHome) -> None:
    home = new_home()
    _fill(home)
    path = home.log_path / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    log = home.open()
    with pytest.raises(DamagedLogError, match=r"0\.log is damaged at \d+: ") as caught:
        log.read(1, 1000, log.log_end_offset, at_least_one=True)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_torn_history_is_not_served(new_home: NewHome) -> None:
    home = new_home()
    batches = _fill(home, 60)
    first = home.log_path / "00000000000000000000.log"
    first.write_bytes(first.read_bytes()[:-30])
    served, errors = _served(home, batches, 1000)
    assert errors > 0
    assert len(served) == len(batches) - 1


def test_cold_data_is_checked_once(new_home: NewHome) -> None:
    home = new_home(TopicConfig(segment_bytes=1 << 20))
    batches = _fill(home)
    log = home.open()
    assert read_batches(log) == batches
    segment = log.segments[0]
    assert [(start, end) for start, end, _ in segment.cold_verified] == [(0, segment.size)]
    append(log, make_batch(1, b"hot"))
    assert segment.hot_from < segment.size
    assert len(read_batches(log)) == len(batches) + 1


def test_rebuilt_indexes_leave_emptied_batches_out(new_home: NewHome) -> None:
    home = new_home()
    log = home.open()
    append(log, make_batch(1, b"kept"))
    kept = log.max_timestamp_offset()
    emptied = build_batch([], base_offset=1, last_offset_delta=0, delete_horizon_ms=kept[0] + 9)
    struct.pack_into(">q", emptied, 35, kept[0] + 5)
    stamp_crc(emptied, 0, len(emptied))
    log.append_as_follower(memoryview(emptied))
    home.stop(clean=True)
    for path in home.log_path.parent.glob("*.*index"):
        path.unlink()
    assert home.open().max_timestamp_offset() == kept


def test_a_held_range_outlives_its_descriptor_and_its_name(new_home: NewHome) -> None:
    home = new_home(TopicConfig(segment_bytes=1200))
    log = home.open()
    for number in range(8):
        append(log, make_batch(2, b"%03d" % number))
    found = log.read(2, 300, log.log_end_offset, at_least_one=True)
    stored = found.read()
    held = found.held()
    handle = log.segments[0].log
    handle.close()
    handle.path.unlink()
    assert held.read() == stored
    assert len(held) == len(stored)
    held.release()
    assert handle.file is None
    held.release()
    assert handle.pins == 0


def test_the_end_offset_of_a_range_is_that_of_its_last_batch(new_home: NewHome) -> None:
    home = new_home(TopicConfig(segment_bytes=1200, index_interval_bytes=150))
    log = home.open()
    for number in range(40):
        append(log, make_batch(number % 3 + 1, b"%03d" % number))
    for end_offset in (log.log_end_offset, 24):
        offset = 0
        while offset < end_offset:
            found = log.read(offset, 250, end_offset, at_least_one=True)
            *_, (_, last) = scan(found.read())
            assert found.end_offset == last.next_offset
            offset = found.end_offset
