"""Producer state of one log: when snapshots are written, and which of them stay."""

from __future__ import annotations

from harness.in_process.log_home import LogHome, append, make_batch
from millstream.model.config import TopicConfig


def test_snapshots_stay_at_segment_starts_and_the_last_two(home: LogHome) -> None:
    log = home.open()
    for sequence in range(90):
        append(log, make_batch(producer=(5, 0, sequence)))
    starts = [segment.base_offset for segment in log.segments[1:]]
    assert len(starts) > 3
    assert log.producers.snapshots.offsets == starts
    log.producers.write_snapshot(log.segments, log.log_end_offset)
    assert log.producers.snapshots.offsets == [*starts, 90]


def test_a_long_segment_gets_a_snapshot_at_a_flush(home: LogHome) -> None:
    home.config = TopicConfig()
    log = home.open()
    append(log, make_batch(value=b"x" * 600_000))
    log.flush()
    assert log.producers.snapshots.offsets == []
    append(log, make_batch(value=b"x" * 600_000))
    log.flush()
    assert log.producers.snapshots.offsets == [2]


def test_a_truncation_restores_the_state_at_its_offset(home: LogHome) -> None:
    log = home.open()
    for sequence in range(90):
        append(log, make_batch(producer=(5, 0, sequence)))
    log.truncate_to(33)
    assert log.producer_state.entries[5].last_sequence == 32
    assert max(log.producers.snapshots.offsets) <= 33
    append(log, make_batch(producer=(5, 0, 33)))


def test_a_log_without_snapshots_has_no_producers(home: LogHome) -> None:
    log = home.open()
    append(log)
    log = home.reopen(clean=True)
    assert log.producer_state.entries == {}
    assert log.producers.snapshots.offsets == []
