from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness.in_process.log_home import NOW_MS, SMALL, LogHome, append, make_batch
from millstream.broker.metrics.growth_rate import GrowthRates
from millstream.log.log import PartitionLog


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return LogHome(tmp_path, dataclasses.replace(SMALL, retention_bytes=3000)).open()


def add(log: PartitionLog, size: int) -> int:
    """Append at least so many bytes, in several segments if necessary; return their number."""
    added = 0
    while added < size:
        batch = make_batch(value=b"x" * 100)
        append(log, batch)
        added += len(batch)
    return added


def test_a_steady_rate_is_found_at_the_second_look(log: PartitionLog) -> None:
    rates = GrowthRates()
    add(log, 100)
    rates.sample(log, 0.0)
    assert rates.bytes_per_second(log.topic_partition) == 0
    added = add(log, 5000)
    assert len(log.segments) > 2
    rates.sample(log, 10.0)
    assert rates.bytes_per_second(log.topic_partition) == pytest.approx(added / 10)
    assert rates.hottest(5) == [(log.topic_partition, pytest.approx(added / 10))]


def test_the_rate_decays_without_appends(log: PartitionLog) -> None:
    rates = GrowthRates()
    add(log, 100)
    rates.sample(log, 0.0)
    added = add(log, 1000)
    rates.sample(log, 1.0)
    rates.sample(log, 61.0)
    assert rates.bytes_per_second(log.topic_partition) == pytest.approx(added / 2.718, rel=0.01)
    rates.sample(log, 10_000.0)
    assert rates.hottest(5) == []


def test_deleted_segments_are_not_negative_growth(log: PartitionLog) -> None:
    rates = GrowthRates()
    add(log, 9000)
    rates.sample(log, 0.0)
    assert log.expire(NOW_MS, log.log_end_offset)
    added = add(log, 1000)
    rates.sample(log, 10.0)
    assert rates.bytes_per_second(log.topic_partition) == pytest.approx(added / 10)
    log.truncate_fully_and_start_at(log.log_end_offset)
    rates.sample(log, 20.0)
    assert 0 < rates.bytes_per_second(log.topic_partition) < added / 10


def test_removed_partitions_are_no_longer_tracked(log: PartitionLog) -> None:
    rates = GrowthRates()
    for now in range(3):
        add(log, 500)
        rates.sample(log, float(now))
    rates.forget_others(lambda key: key == log.topic_partition)
    assert rates.bytes_per_second(log.topic_partition) > 0
    rates.forget_others(lambda _: False)
    assert rates.hottest(5) == []


def test_idle_logs_are_no_longer_tracked(tmp_path: Path) -> None:
    home = LogHome(tmp_path)
    log = home.open()
    rates = GrowthRates()
    rates.sample(log, 0.0)
    add(log, 500)
    rates.sample(log, 1.0)
    add(log, 500)
    rates.sample(log, 2.0)
    assert rates.bytes_per_second(log.topic_partition) > 0
    log = home.reopen(clean=True)
    assert not log.is_loaded
    rates.sample(log, 3.0)
    assert rates.bytes_per_second(log.topic_partition) == 0
    assert not log.is_loaded
