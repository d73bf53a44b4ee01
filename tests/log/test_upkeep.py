from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.in_process.log_home import NOW_MS, LogHome, append, make_batch
from millstream.env.supervisor import Supervisor
from millstream.log.directory.checkpoint import RECOVERY_POINTS, read_offsets
from millstream.log.flush.flusher import Flusher
from millstream.log.log import PartitionLog
from millstream.log.upkeep import LogUpkeep, UpkeepOptions
from millstream.model.config import TopicConfig
from millstream.model.topic import TopicPartition

NewHome = Callable[..., LogHome]

OFTEN = UpkeepOptions(
    flush_check_interval_ms=5,
    recovery_point_interval_ms=5,
    log_start_interval_ms=5,
    high_watermark_interval_ms=5,
    retention_check_interval_ms=5,
    initial_delay_ms=0,
    producer_check_interval_ms=5,
)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def _with_upkeep(
    home: LogHome,
    prepare: Callable[[], None],
    condition: Callable[[], bool],
    supervisor: Supervisor | None = None,
) -> LogUpkeep:
    async def run() -> LogUpkeep:
        assert home.directory is not None
        directory = home.directory
        flusher = Flusher()
        upkeep = LogUpkeep(
            directory,
            OFTEN,
            lambda partition: directory.log(partition, b"", home.config).log_end_offset,
            flusher,
            supervisor or Supervisor(),
        )
        upkeep.start()
        prepare()
        await _until(condition)
        await upkeep.stop()
        await flusher.close()
        return upkeep

    return asyncio.run(run())


def test_logs_are_flushed_after_flush_ms(new_home: NewHome) -> None:
    home = new_home(TopicConfig(flush_ms=1000))
    log = home.open()

    def prepare() -> None:
        append(log)
        home.clock.now_ms += 1000

    def is_done() -> bool:
        points = read_offsets(home.disk, home.path / RECOVERY_POINTS)
        return log.recovery_point == 1 and points == {home.partition: 1}

    _with_upkeep(home, prepare, is_done)


def test_a_closed_segment_is_flushed_soon(home: LogHome) -> None:
    log = home.open()

    def prepare() -> None:
        for _ in range(20):
            append(log, make_batch(1, b"v" * 200))

    _with_upkeep(home, prepare, lambda: log.recovery_point >= log.segments[-1].base_offset > 0)


def test_old_segments_and_deleted_logs_are_removed(new_home: NewHome) -> None:
    home = new_home(TopicConfig(segment_bytes=1000, retention_ms=100, file_delete_delay_ms=1000))
    log = home.open()
    for _ in range(20):
        append(log, make_batch(1, b"v" * 200))
    home.stop(clean=True)
    log = home.open()

    def expired() -> bool:
        home.clock.now_ms += 100
        return log.log_start_offset == 20 and not list(home.log_path.glob("*.deleted"))

    upkeep = _with_upkeep(home, lambda: setattr(home.clock, "now_ms", NOW_MS + 1000), expired)
    assert upkeep.stats.segments_expired > 1
    assert upkeep.stats.failures == 0
    assert home.directory is not None
    assert home.directory.high_watermarks == {home.partition: 20}
    path = home.directory.delete(home.partition)
    assert path is not None
    _with_upkeep(home, lambda: None, lambda: not path.exists())


def test_a_log_that_raises_does_not_affect_the_retention_of_others(
    new_home: NewHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = new_home(TopicConfig(segment_bytes=1000, retention_ms=100))
    good = home.open()
    assert home.directory is not None
    bad = home.directory.log(TopicPartition("bad", 0), bytes(16), home.config)
    for log in (bad, good):
        for _ in range(20):
            append(log, make_batch(1, b"v" * 200))
    expire = PartitionLog.expire

    def fail(self: PartitionLog, now_ms: int, high_watermark: int) -> list[Path]:
        if self is bad:
            raise RuntimeError("a bug")
        return expire(self, now_ms, high_watermark)

    monkeypatch.setattr(PartitionLog, "expire", fail)
    supervisor = Supervisor()
    _with_upkeep(
        home,
        lambda: setattr(home.clock, "now_ms", NOW_MS + 1000),
        lambda: good.log_start_offset == 20 and supervisor.failures["log-retention"] > 0,
        supervisor,
    )
    assert bad.log_start_offset == 0


def test_a_flush_that_was_interrupted_is_made_after_the_restart(
    home: LogHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = home.open()
    bugs = [RuntimeError("a bug")]
    request = Flusher.request

    def fail(self: Flusher, log: PartitionLog) -> asyncio.Future[int]:
        if bugs:
            raise bugs.pop()
        return request(self, log)

    def prepare() -> None:
        for _ in range(20):
            append(log, make_batch(1, b"v" * 200))

    monkeypatch.setattr(Flusher, "request", fail)
    supervisor = Supervisor()
    _with_upkeep(
        home,
        prepare,
        lambda: log.recovery_point >= log.segments[-1].base_offset > 0,
        supervisor,
    )
    assert supervisor.failures["log-flush"] == 1
