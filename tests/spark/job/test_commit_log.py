from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.spark.job.commit_log import CommitLog, local_path
from millstream.spark.job.job_error import Failure, JobError


def test_commits_are_numbered_and_unique(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, "archive")
    assert log.last() is None
    with log.lock():
        log.append(1, {"a": 1})
        log.append(2, {"a": 2})
        with pytest.raises(JobError) as caught:
            log.append(2, {"a": 3})
    assert caught.value.kind is Failure.CONFLICT
    assert log.numbers() == [1, 2]
    last = log.last()
    assert last is not None
    assert (last[0], last[1]["a"]) == (2, 2)
    assert not list(tmp_path.rglob("*.tmp"))


def test_leftovers_of_a_crashed_run_are_not_commits(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, "archive")
    with log.lock():
        log.append(1, {})
    left = tmp_path / "_millstream" / "00.tmp"
    left.write_text('{"half')
    assert log.numbers() == [1]
    with log.lock():
        assert not left.exists()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with (
        CommitLog(tmp_path, "archive").lock(),
        pytest.raises(JobError, match="another run works on"),
        CommitLog(tmp_path, "archive").lock(),
    ):
        pass
    with CommitLog(tmp_path, "archive").lock():
        pass


def test_old_commits_can_be_removed(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, "archive")
    with log.lock():
        for number in (1, 2, 3):
            log.append(number, {})
        log.remove_before(3)
    assert log.numbers() == [3]


def test_folders_that_can_hold_commits(tmp_path: Path) -> None:
    assert local_path(f"file://{tmp_path}") == tmp_path
    assert local_path(f"file:{tmp_path}") == tmp_path
    assert local_path(str(tmp_path)) == tmp_path
    with pytest.raises(JobError, match="s3://bucket/x: commits need a file system"):
        local_path("s3://bucket/x")


def test_folders_of_other_jobs_are_rejected(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, "archive")
    with log.lock():
        log.append(1, {})
    assert log.last() is not None
    with pytest.raises(JobError, match="of the job archive, not of snapshot") as caught:
        CommitLog(tmp_path, "snapshot").last()
    assert caught.value.kind is Failure.USAGE


def test_commits_without_a_job_belong_to_any_job(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, "archive")
    with log.lock():
        log.append(1, {"a": 1})
    (path,) = (tmp_path / "_millstream").glob("*1.json")
    value = json.loads(path.read_bytes())
    assert value.pop("job") == "archive"
    path.write_text(json.dumps(value))
    assert log.read(1)["a"] == 1
