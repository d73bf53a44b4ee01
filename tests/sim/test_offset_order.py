from __future__ import annotations

import pytest

from millstream.groups.group_record import OffsetCommitKey, OffsetCommitValue, encode
from millstream.records.batch import read_header, stamp
from millstream.records.builder import build_batch
from millstream.records.control import EndMarker, build_marker
from millstream.records.record import Record
from sim.offset_order import OffsetOrder


class _Log:
    """A log of the offsets topic with one group and one partition."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._order = OffsetOrder(self.violations.append)
        self._end = 0

    def commit(self, offset: int | None, producer_id: int = -1) -> None:
        value = None if offset is None else OffsetCommitValue(offset=offset)
        key, encoded = encode(OffsetCommitKey(group_id="g", topic="t", partition=0), value)
        self._take(
            build_batch(
                [Record(0, 0, key, encoded, [])],
                producer_id=producer_id,
                producer_epoch=0,
                is_transactional=producer_id >= 0,
            )
        )

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        self._take(build_marker(EndMarker(is_commit, 0), producer_id, 0, 0))

    def _take(self, batch: bytearray) -> None:
        stamp(batch, 0, self._end, 0)
        self._order.apply(bytes(batch), read_header(batch), 0)
        self._end += 1


@pytest.fixture
def log() -> _Log:
    return _Log()


def test_offsets_may_stay_or_move_forward(log: _Log) -> None:
    for offset in (1, 3, 3, 8):
        log.commit(offset)
    assert log.violations == []


def test_an_offset_that_moves_back_is_a_violation(log: _Log) -> None:
    log.commit(3)
    log.commit(2)
    assert "went from 3 to 2" in log.violations[0]


def test_a_deleted_offset_is_a_violation(log: _Log) -> None:
    log.commit(None)
    assert "was deleted" in log.violations[0]


def test_offsets_of_a_transaction_count_from_its_commit_on(log: _Log) -> None:
    log.commit(2, producer_id=7)
    log.commit(3, producer_id=8)
    log.end(8, is_commit=True)
    log.end(7, is_commit=False)
    log.commit(4, producer_id=7)
    log.end(7, is_commit=True)
    assert log.violations == []
    log.commit(1, producer_id=7)
    log.end(7, is_commit=True)
    assert "went from 4 to 1" in log.violations[0]
