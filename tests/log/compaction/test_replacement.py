"""Replacing segments, with a kill at every step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.in_process.log_home import LogHome, UnsyncedDisk, append, make_batch, read_values
from millstream.log.log import PartitionLog
from millstream.log.reading.slice import LogSlice
from millstream.log.segment import Segment
from millstream.records.batch import scan

NewHome = Callable[..., LogHome]


class KillError(Exception):
    """The process ends here."""


class KillingDisk(UnsyncedDisk):
    """Raises before the n-th rename, removal or directory sync."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = -1

    def _step(self) -> None:
        if self.left == 0:
            raise KillError
        self.left -= 1

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        if self.exists(path):
            self._step()
        super().remove(path)

    def sync_dir(self, path: Path) -> None:
        self._step()
        super().sync_dir(path)


def _fill(home: LogHome) -> PartitionLog:
    log = home.open()
    for number in range(30):
        append(log, make_batch(2, b"%02d" % number * 20))
    log.roll()
    log.flush()
    return log


def _clean(log: PartitionLog, numbers: list[int], keep: Callable[[int], bool]) -> Path:
    """Write one cleaned segment for several, with some of their batches, as the cleaner does."""
    base = log.segments[numbers[0]].base_offset
    data = bytearray()
    for number in numbers:
        segment = log.segments[number]
        stored = LogSlice(segment, 0, segment.size).read()
        for position, header in scan(stored):
            if keep(header.base_offset):
                data += stored[position : position + header.size]
    name = f"{base:020d}"
    directory = log.directory
    (directory / f"{name}.log.cleaned").write_bytes(data)
    files = log.segments[0].log._cache
    cleaned = Segment(files, directory, base, len(data))
    cleaned.start_indexes()
    for position, header in scan(data):
        cleaned.index_batch(position, header.size, header.last_offset, header.max_timestamp, 200)
    cleaned.offset_index.handle.path = directory / f"{name}.index.cleaned"
    cleaned.time_index.handle.path = directory / f"{name}.timeindex.cleaned"
    cleaned.seal()
    cleaned.close_files()
    return directory / f"{name}.log.cleaned"


def _keep(base_offset: int) -> bool:
    return base_offset % 3 == 0


def _expected(values: list[tuple[int, bytes | None]], ends: int) -> list[tuple[int, bytes | None]]:
    return [(o, v) for o, v in values if o >= ends or _keep(o - o % 2)]


def test_replaced_segments_hold_the_remaining_records(home: LogHome) -> None:
    log = _fill(home)
    before = read_values(log)
    bases = [segment.base_offset for segment in log.segments]
    paths = log.replace_segments(bases[:3], [_clean(log, [0, 1, 2], _keep)])
    assert [segment.base_offset for segment in log.segments] == [bases[0], *bases[3:]]
    expected = _expected(before, bases[3])
    assert read_values(log) == expected
    assert (log.log_start_offset, log.log_end_offset) == (0, 60)
    assert all(path.name.endswith(".deleted") and path.exists() for path in paths)
    for clean in (True, False):
        log = home.reopen(clean=clean)
        assert read_values(log) == expected
    assert not any(path.exists() for path in paths)


def test_a_kill_at_any_step_leaves_the_old_or_the_new(new_home: NewHome) -> None:
    outcomes = []
    for step in range(100):
        disk = KillingDisk()
        home = new_home(disk=disk)
        log = _fill(home)
        before = read_values(log)
        bases = [segment.base_offset for segment in log.segments]
        path = _clean(log, [0, 1, 2], _keep)
        disk.left = step
        try:
            log.replace_segments(bases[:3], [path])
        except KillError:
            is_done = False
        else:
            is_done = True
        # Die again during recovery, at another step each time.
        home.stop(clean=False)
        disk.left = step % 4
        try:
            home.open()
        except KillError:
            assert home.directory is not None
        disk.left = -1
        home.stop(clean=False)
        log = home.open()
        after = read_values(log)
        assert after in (before, _expected(before, bases[3]))
        assert log.log_end_offset == 60
        left = [name.name for name in home.log_path.iterdir()]
        assert not [n for n in left if n.endswith((".cleaned", ".swap", ".deleted"))]
        outcomes.append(after == before)
        if is_done:
            break
    else:
        pytest.fail("the replacement never got through")
    assert outcomes[0]
    assert not outcomes[-1]
    assert sorted(outcomes, reverse=True) == outcomes


def test_an_empty_replacement(home: LogHome) -> None:
    log = _fill(home)
    before = read_values(log)
    bases = [segment.base_offset for segment in log.segments]
    log.replace_segments([bases[1]], [_clean(log, [1], lambda _: False)])
    expected = [(o, v) for o, v in before if not bases[1] <= o < bases[2]]
    assert read_values(log) == expected
    assert len(log.read(bases[1], 1000, 60, at_least_one=True)) > 0
    assert read_values(home.reopen(clean=False)) == expected


def test_segments_that_cannot_be_replaced_are_rejected(home: LogHome) -> None:
    log = _fill(home)
    bases = [segment.base_offset for segment in log.segments]
    with pytest.raises(ValueError, match="neighbours"):
        log.replace_segments([bases[0], bases[2]], [bases[0]])
    append(log)
    with pytest.raises(ValueError, match="flushed"):
        log.replace_segments([bases[-1]], [bases[-1]])
