"""After a kill the end of a log may be damaged: intact batches stay, the rest is truncated."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from crash.stored_log import (
    PARTITION,
    Placed,
    append,
    as_sent,
    check_kept,
    copy_of,
    make_log,
    opened,
    placed_in,
    read_from,
    sample_batch,
)
from harness.seed import choose_seed
from millstream.model.error import BrokerError, ErrorCode

#: Number of batches at the end of the last segment that tests damage.
TAIL = 3
BATCHES = 40
#: No checksum covers the leader epoch, in Kafka as well.
_EPOCH_BYTES = range(12, 16)


@pytest.fixture(scope="module", params=[0, BATCHES - TAIL - 3], ids=["nothing", "most"])
def stored(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Placed]]:
    """A log after a kill; nothing or most of the log is on stable storage."""
    path: Path = tmp_path_factory.mktemp("template")
    placed = make_log(path, BATCHES, durable=request.param)
    assert len({each.path for each in placed}) >= 4
    tail = [each for each in placed if each.path == placed[-1].path][-TAIL:]
    assert len(tail) == TAIL
    return path, placed


def split(placed: list[Placed], position: int) -> tuple[list[Placed], list[Placed]]:
    """Return the batches before a position in the last segment, and the others."""
    last = placed[-1].path
    lost = [each for each in placed if each.path == last and each.end > position]
    return placed[: len(placed) - len(lost)], lost


def test_a_tail_truncated_at_every_byte(stored: tuple[Path, list[Placed]], tmp_path: Path) -> None:
    template, placed = stored
    last = placed[-1]
    for position in range(placed[-TAIL].start, last.end + 1):
        path = copy_of(template, tmp_path / "data")
        with (path / last.path).open("r+b") as file:
            file.truncate(position)
        check_kept(path, *split(placed, position))


def test_a_bit_flipped_at_every_byte_of_the_tail(
    stored: tuple[Path, list[Placed]], tmp_path: Path
) -> None:
    template, placed = stored
    chance = random.Random(choose_seed("CRASH_SEED"))
    for batch in placed[-TAIL:]:
        for position in range(batch.start, batch.end):
            if position - batch.start in _EPOCH_BYTES:
                continue
            path = copy_of(template, tmp_path / "data")
            damaged = bytearray((path / batch.path).read_bytes())
            damaged[position] ^= 1 << chance.randrange(8)
            (path / batch.path).write_bytes(damaged)
            check_kept(path, *split(placed, batch.start))


def test_a_wrong_leader_epoch_in_the_tail_loses_nothing(
    stored: tuple[Path, list[Placed]], tmp_path: Path
) -> None:
    template, placed = stored
    for position in _EPOCH_BYTES:
        path = copy_of(template, tmp_path / "data")
        damaged = bytearray((path / placed[-1].path).read_bytes())
        damaged[placed[-1].start + position] ^= 0x40
        (path / placed[-1].path).write_bytes(damaged)
        with opened(path) as (_, log):
            assert log.log_end_offset == placed[-1].next_offset
            assert len(read_from(log, 0)) == sum(len(each.data) for each in placed)
            next_sequence = placed[-1].sequence + placed[-1].next_offset - placed[-1].base_offset
            append(log, sample_batch(0, next_sequence))


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(bytes(500), id="zeros"),
        pytest.param(bytes(11), id="few-zeros"),
        pytest.param(b"\xff" * 61, id="ones"),
        pytest.param(b"noise" * 100, id="noise"),
    ],
)
def test_bytes_after_the_last_batch_are_truncated(
    stored: tuple[Path, list[Placed]], tmp_path: Path, rest: bytes
) -> None:
    template, placed = stored
    path = copy_of(template, tmp_path / "data")
    with (path / placed[-1].path).open("ab") as file:
        file.write(rest)
    check_kept(path, placed, [])


def test_an_old_copy_of_a_batch_after_the_end_is_truncated(
    stored: tuple[Path, list[Placed]], tmp_path: Path
) -> None:
    template, placed = stored
    path = copy_of(template, tmp_path / "data")
    with (path / placed[-1].path).open("ab") as file:
        file.write(placed[-2].data)
    check_kept(path, placed, [])


@pytest.mark.parametrize("kinds", [("index",), ("timeindex",), ("index", "timeindex")])
@pytest.mark.parametrize("how", ["removed", "noise", "zeros"])
@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
def test_lost_indexes_are_rebuilt(
    tmp_path: Path, kinds: tuple[str, ...], how: str, clean: bool
) -> None:
    path = tmp_path / "data"
    placed = make_log(path, BATCHES, clean=clean)
    for kind in kinds:
        for file in (path / str(PARTITION)).glob(f"*.{kind}"):
            size = file.stat().st_size
            if how == "removed":
                file.unlink()
            else:
                pattern = b"\xa5\x5a\x77" if how == "noise" else b"\0\0\0"
                file.write_bytes(pattern * (size // 3 + 5))
    with opened(path) as (_, log):
        for each in placed:
            assert read_from(log, each.next_offset - 1).startswith(each.data)
            time_ms = 1_700_000_000_000 + each.sequence
            assert log.find_by_timestamp(time_ms)[1] == each.base_offset  # type: ignore[index]
    check_kept(path, placed, [])


def test_lost_snapshots_are_rebuilt(stored: tuple[Path, list[Placed]], tmp_path: Path) -> None:
    template, placed = stored
    for how in ("removed", "damaged"):
        path = copy_of(template, tmp_path / "data")
        for file in (path / str(PARTITION)).glob("*.snapshot"):
            if how == "removed":
                file.unlink()
            else:
                file.write_bytes(file.read_bytes()[:-3] + b"xyz")
        check_kept(path, placed, [])


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "t-0/leader-epoch-checkpoint",
        "t-0/partition.metadata",
    ],
)
@pytest.mark.parametrize(
    "content", [None, b"", b"0\n1\nnonsense"], ids=["removed", "empty", "nonsense"]
)
def test_lost_checkpoints_lose_no_records(
    stored: tuple[Path, list[Placed]], tmp_path: Path, name: str, content: bytes | None
) -> None:
    template, placed = stored
    path = copy_of(template, tmp_path / "data")
    file = path / name
    if content is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(content)
    check_kept(path, placed, [])


def test_recovery_accepts_an_empty_new_segment(
    stored: tuple[Path, list[Placed]], tmp_path: Path
) -> None:
    template, placed = stored
    path = copy_of(template, tmp_path / "data")
    name = f"{placed[-1].next_offset:020d}"
    for suffix in ("log", "index", "timeindex"):
        (path / str(PARTITION) / f"{name}.{suffix}").touch()
    check_kept(path, placed, [])
    assert placed_in(path)[: len(placed)] == placed


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
def test_retries_of_batches_in_flight_are_recognised(tmp_path: Path, clean: bool) -> None:
    """A producer may have five batches in flight and not know whether any was stored.

    The log knows the offset only of the last batch before a snapshot. It reports older batches as
    duplicates without an offset. It reports none as a gap, from which clients cannot recover.
    """
    for count in range(6, BATCHES):
        path = tmp_path / f"{count}"
        placed = make_log(path, count, clean=clean)
        with opened(path) as (_, log):
            for each in placed[-5:]:
                try:
                    again = append(log, as_sent(each))
                except BrokerError as error:
                    if error.code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                        raise
                    assert each is not placed[-1]
                else:
                    assert (again.duplicate, again.base_offset) == (True, each.base_offset)
            with pytest.raises(BrokerError) as gap:
                append(log, sample_batch(0, placed[-1].next_offset + 1))
            assert gap.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert append(log, sample_batch(0, placed[-1].next_offset)).duplicate is False
