from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.in_process.log_home import LogHome, append, make_batch, read_values
from millstream.env.clock import SystemClock
from millstream.env.disk import SystemDisk
from millstream.log.directory.data_directory import (
    CLEAN_MARKER,
    LogDirectory,
    WrongDirectoryError,
)
from millstream.log.directory.lock import DirectoryInUseError
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError
from millstream.model.topic import TopicPartition

NewHome = Callable[..., LogHome]


def _open(path: Path) -> LogDirectory:
    return LogDirectory.open(path, SystemDisk(), SystemClock(), random.Random(1))


def test_a_second_process_is_rejected(tmp_path: Path) -> None:
    program = """
import random, sys
from pathlib import Path
from millstream.env.clock import SystemClock
from millstream.env.disk import SystemDisk
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.directory.lock import DirectoryInUseError
try:
    LogDirectory.open(Path(sys.argv[1]), SystemDisk(), SystemClock(), random.Random(1))
except DirectoryInUseError as error:
    sys.exit(str(error))
"""
    directory = _open(tmp_path)
    run = [sys.executable, "-c", program, str(tmp_path)]
    result = subprocess.run(run, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"{tmp_path} is in use by another process" in result.stderr
    with pytest.raises(DirectoryInUseError):
        _open(tmp_path)
    directory.close()
    assert subprocess.run(run, check=False).returncode == 0


def test_the_folder_has_the_ids_of_its_cluster_and_broker(tmp_path: Path) -> None:
    directory = _open(tmp_path)
    directory.identify("cluster", 1)
    identity = directory.meta["directory.id"]
    directory.close()
    directory = _open(tmp_path)
    directory.identify("cluster", 1)
    assert directory.meta["directory.id"] == identity
    for cluster_id, node_id in (("other", 1), ("cluster", 2)):
        with pytest.raises(WrongDirectoryError, match="says"):
            directory.identify(cluster_id, node_id)
    directory.close()


def test_the_marker_is_there_only_after_a_clean_stop(home: LogHome) -> None:
    marker = home.path / CLEAN_MARKER
    home.open()
    assert not marker.exists()
    home.stop(clean=False)
    assert not marker.exists()
    log = home.open()
    append(log)
    home.stop(clean=True)
    assert marker.exists()
    log = home.open()
    assert not marker.exists()
    assert home.directory is not None
    assert home.directory.was_clean
    assert log.log_end_offset == 1


def test_high_watermarks_come_back(home: LogHome) -> None:
    home.open()
    assert home.directory is not None
    home.directory.checkpoint({home.partition: 17})
    home.stop(clean=False)
    home.open()
    assert home.directory.high_watermarks == {home.partition: 17}


def test_a_deleted_log_is_renamed(home: LogHome) -> None:
    log = home.open()
    append(log)
    assert home.directory is not None
    path = home.directory.delete(home.partition)
    assert path is not None
    assert path.name.endswith("-delete")
    assert path.exists()
    assert not home.log_path.exists()
    with pytest.raises(BrokerError, match="deleted"):
        append(log)
    new = home.directory.log(home.partition, bytes(16), home.config)
    assert append(new).base_offset == 0
    home.stop(clean=True)
    home.open()
    assert home.directory.deleted_paths == [
        each for each in home.path.iterdir() if each.name.endswith("-delete")
    ]


def test_the_log_of_another_topic_id_is_not_used(home: LogHome) -> None:
    append(home.open())
    home.stop(clean=True)
    home.topic_id = bytes(range(1, 17))
    log = home.open()
    assert log.log_end_offset == 0
    assert append(log).base_offset == 0
    assert home.directory is not None
    assert len(home.directory.deleted_paths) == 1


def test_folders_without_a_log_are_set_aside(home: LogHome) -> None:
    home.open()
    assert home.directory is not None
    other = TopicPartition("other-topic", 3)
    append(home.directory.log(other, bytes(16), TopicConfig()))
    home.stop(clean=True)
    home.open()
    home.directory.delete_strays()
    assert not (home.path / "other-topic-3").exists()
    assert len(home.directory.deleted_paths) == 1


def test_a_topic_does_not_begin_with_the_offsets_of_a_deleted_one(home: LogHome) -> None:
    home.open()
    assert home.directory is not None
    other = TopicPartition("other", 0)
    append(home.directory.log(other, bytes(16), TopicConfig()))
    home.stop(clean=True)
    # Killed after a deletion, before the checkpoints are written.
    shutil.rmtree(home.path / "other-0")
    home.open()
    home.directory.delete_strays()
    log = home.directory.log(other, bytes(range(16)), TopicConfig())
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert append(log).base_offset == 0


def test_recovery_reports_progress(home: LogHome) -> None:
    home.open()
    assert home.directory is not None
    partitions = [TopicPartition("t", number) for number in range(5)]
    for partition in partitions:
        append(home.directory.log(partition, bytes(16), TopicConfig()))
    home.stop(clean=False)
    home.directory = LogDirectory.open(
        home.path, home.disk, home.clock, random.Random(1), home.options
    )
    for partition in partitions:
        home.directory.log(partition, bytes(16), TopicConfig())
    seen: list[tuple[int, int, TopicPartition]] = []
    home.directory.recover(lambda *progress: seen.append(progress))
    assert seen == [(number + 1, 5, partition) for number, partition in enumerate(partitions)]
    assert all(log.log_end_offset == 1 for log in home.directory.all_logs)


def test_a_damaged_checkpoint_means_recovery(home: LogHome) -> None:
    log = home.open()
    append(log, make_batch(3))
    home.stop(clean=True)
    (home.path / "recovery-point-offset-checkpoint").write_text("0\n5\nnonsense\n")
    log = home.open()
    assert home.directory is not None
    assert not home.directory.was_clean
    assert len(read_values(log)) == 3


def test_few_descriptors_serve_many_logs(home: LogHome) -> None:
    home.open()
    assert home.directory is not None
    logs = [
        home.directory.log(TopicPartition("t", number), bytes(16), home.config)
        for number in range(60)
    ]
    for round_number in range(3):
        for log in logs:
            assert append(log, make_batch(1, b"v" * 300)).base_offset == round_number
            assert home.directory.storage.files.open_files <= home.options.open_files_max
    for log in logs:
        assert len(read_values(log)) == 3
        log.flush()
    home.stop(clean=True)
    home.open()
    assert home.directory.was_clean
