"""Damage in the middle of a log is reported and never served."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from crash.stored_log import Placed, append, copy_of, make_log, opened, sample_batch
from harness.seed import choose_seed
from millstream.log.log import PartitionLog
from millstream.model.error import BrokerError, ErrorCode

BATCHES = 40
_EPOCH_BYTES = range(12, 16)


@pytest.fixture(scope="module", params=["stopped", "killed"])
def stored(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Placed]]:
    """A log in which at most the last batches are above the recovery point."""
    path: Path = tmp_path_factory.mktemp("template")
    placed = make_log(path, BATCHES, durable=BATCHES - 2, clean=request.param == "stopped")
    return path, placed


def served(log: PartitionLog, offset: int, max_bytes: int) -> bytes | None:
    """Return what a consumer gets at `offset`; None if the broker reports the damage."""
    try:
        data = log.read(offset, max_bytes, log.log_end_offset, at_least_one=True).read()
    except BrokerError as error:
        if error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR):
            return None
        raise
    return bytes(data)


def check_reads(log: PartitionLog, placed: list[Placed], damaged: Placed) -> None:
    for max_bytes in (1, 350, 1 << 20):
        for number, each in enumerate(placed):
            data = served(log, each.base_offset, max_bytes)
            if each is damaged:
                assert data is None, "damage was served"
            elif data is not None:
                wanted = b"".join(other.data for other in placed[number:])
                assert data, "a consumer would wait here for ever"
                assert wanted.startswith(data), "damage was served"
                if is_before(each, damaged):
                    whole = [other for other in placed[number:] if is_before(other, damaged)]
                    assert len(data) <= sum(len(other.data) for other in whole)
            else:
                assert each.path == damaged.path, "intact history can't be read"
                assert not is_before(each, damaged) or max_bytes > 1


def is_before(each: Placed, damaged: Placed) -> bool:
    return each.base_offset < damaged.base_offset


def test_a_bit_flipped_anywhere_in_old_batches(
    stored: tuple[Path, list[Placed]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    template, placed = stored
    chance = random.Random(choose_seed("CRASH_SEED"))
    segments = sorted({each.path for each in placed})
    for path_of in segments[:2]:
        inside = [each for each in placed if each.path == path_of]
        for batch in (inside[0], inside[len(inside) // 2], inside[-1]):
            for position in range(batch.start, batch.end, 1 if batch.start else 3):
                if position - batch.start in _EPOCH_BYTES:
                    continue
                path = copy_of(template, tmp_path / "data")
                content = bytearray((path / batch.path).read_bytes())
                content[position] ^= 1 << chance.randrange(8)
                (path / batch.path).write_bytes(content)
                caplog.clear()
                with caplog.at_level(logging.WARNING), opened(path) as (_, log):
                    check_reads(log, placed, batch)
                    assert log.log_end_offset == placed[-1].next_offset
                assert any(record.levelno >= logging.ERROR for record in caplog.records), position


def test_the_rest_of_the_log_stays_usable(
    stored: tuple[Path, list[Placed]], tmp_path: Path
) -> None:
    template, placed = stored
    batch = placed[3]
    path = copy_of(template, tmp_path / "data")
    content = bytearray((path / batch.path).read_bytes())
    content[batch.end - 1] ^= 1
    (path / batch.path).write_bytes(content)
    for _ in range(2):
        with opened(path, clean=True) as (_, log):
            check_reads(log, placed, batch)
            assert served(log, placed[4].base_offset, 1) == placed[4].data
            end = log.log_end_offset
            assert append(log, sample_batch(0, end)).base_offset == end
            assert served(log, end, 1) is not None


def test_the_torn_batch_of_an_old_segment_is_never_served(
    stored: tuple[Path, list[Placed]], tmp_path: Path
) -> None:
    template, placed = stored
    first = [each for each in placed if each.path == placed[0].path]
    path = copy_of(template, tmp_path / "data")
    with (path / first[-1].path).open("r+b") as file:
        file.truncate(first[-1].end - 5)
    with opened(path) as (_, log):
        data = served(log, first[-1].base_offset, 1)
        follower = placed[len(first)]
        # An error, or the batches after the damage: never bytes of the torn batch.
        assert data is None or data == follower.data
        assert served(log, follower.base_offset, 1) == follower.data
        assert log.log_end_offset == placed[-1].next_offset
