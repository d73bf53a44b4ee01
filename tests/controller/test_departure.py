"""A broker compares its data directory with the metadata before it registers."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from harness.in_process.log_home import UnsyncedDisk
from harness.raw.raw_client import values_batch
from millstream.controller.departure import match_directory
from millstream.env.clock import SystemClock
from millstream.log.directory.data_directory import LogDirectory
from millstream.metadata.cluster_record import PartitionRecord, TopicRecord
from millstream.metadata.replica_set import LOST
from millstream.model.config import TopicConfig
from millstream.model.sentinel import NO_LEADER
from millstream.model.topic import TopicPartition
from millstream.records.batch import read_header

TOPIC_ID = bytes(15) + b"\x07"


def opened(path: Path, *, identify: bool = True) -> LogDirectory:
    directory = LogDirectory.open(path, UnsyncedDisk(), SystemClock(), random.Random())
    if identify:
        directory.identify("cluster", 1)
    return directory


def topic(directory: str, isr: tuple[int, ...] = (1,)) -> TopicRecord:
    record = PartitionRecord(
        replicas=(1, 2),
        leader=1,
        leader_epoch=0,
        isr=isr,
        directories=((1, directory),) if directory else (),
    )
    return TopicRecord("t", TOPIC_ID, (record,))


@pytest.fixture
def used(tmp_path: Path) -> tuple[Path, str]:
    """Return a data directory with one record, after a crash, and its id."""
    directory = opened(tmp_path / "data")
    log = directory.log(TopicPartition("t", 0), TOPIC_ID, TopicConfig())
    directory.delete_strays()
    batch = values_batch(b"kept")
    log.append_as_leader(memoryview(batch), read_header(batch), 0)
    directory.close(clean=False)
    return tmp_path / "data", directory.directory_id


def test_nothing_changes_if_the_log_exists(used: tuple[Path, str]) -> None:
    path, directory_id = used
    folder = opened(path)
    assert match_directory(topic(directory_id), 0, 1, 1, folder) is None
    assert match_directory(topic("other", isr=(2,)), 0, 1, 1, folder) is None


def test_a_log_that_was_never_written_is_not_lost(used: tuple[Path, str]) -> None:
    path, directory_id = used
    other = TopicRecord("u", TOPIC_ID, topic(directory_id).partitions)
    assert match_directory(other, 0, 1, 1, opened(path)) is None


def test_a_broker_with_another_directory_leaves_the_isr(
    used: tuple[Path, str], tmp_path: Path
) -> None:
    for identify in (False, True):
        folder = opened(tmp_path / f"new-{identify}", identify=identify)
        after = match_directory(topic(used[1]), 0, 1, 1, folder)
        assert after is not None
        assert (after.leader, after.isr, after.elr) == (NO_LEADER, (), (1,))
        assert after.directory(1) == used[1]


def test_a_broker_with_a_deleted_log_leaves_the_isr_until_the_log_is_restored(
    used: tuple[Path, str],
) -> None:
    path, directory_id = used
    kept = path.parent / "kept"
    (path / "t-0").rename(kept)
    folder = opened(path)
    after = match_directory(topic(directory_id), 0, 1, 1, folder)
    assert after is not None
    assert (after.isr, after.elr, after.directory(1)) == ((), (1,), LOST)
    gone = TopicRecord("t", TOPIC_ID, (after,))
    folder.log(TopicPartition("t", 0), TOPIC_ID, TopicConfig(), is_only_replica=False)
    folder.delete_strays()
    folder.close(clean=False)
    empty = opened(path)
    assert match_directory(gone, 0, 1, 1, empty) is None
    empty.close(clean=False)
    kept.rename(path / "t-0")
    back = match_directory(gone, 0, 1, 1, opened(path))
    assert back is not None
    assert (back.elr, back.directory(1)) == ((1,), directory_id)


def test_a_recreated_log_does_not_count_as_the_lost_log(used: tuple[Path, str]) -> None:
    path, directory_id = used
    shutil.rmtree(path / "t-0")
    folder = opened(path)
    after = match_directory(topic(directory_id), 0, 1, 1, folder)
    assert after is not None
    log = folder.log(TopicPartition("t", 0), TOPIC_ID, TopicConfig(), is_only_replica=False)
    folder.delete_strays()
    batch = values_batch(b"of the leader")
    log.append_as_follower(memoryview(batch))
    folder.close(clean=False)
    assert match_directory(TopicRecord("t", TOPIC_ID, (after,)), 0, 1, 1, opened(path)) is None


def test_an_unknown_directory_id_is_recorded_once(used: tuple[Path, str], tmp_path: Path) -> None:
    """Records of an earlier release have no directory id."""
    learned = match_directory(topic(""), 0, 1, 1, opened(used[0]))
    assert learned is not None
    assert (learned.isr, learned.directory(1)) == ((1,), used[1])
    new = match_directory(topic(""), 0, 1, 1, opened(tmp_path / "new", identify=False))
    assert new is not None
    assert (new.isr, new.elr, new.directory(1)) == ((), (1,), LOST)
