"""A log of commits in a folder: what makes files of a job count, all of a batch or nothing.

    FOLDER/_millstream/00000000000000000007.json   commit 7
    FOLDER/_millstream/lock                        held by the run at work

A commit is a JSON object; its `job` says by which job it was made. It is written under another
name, synced, and then linked to its number, which fails if the number is taken: a commit is there
whole or not at all, and of two runs that prepare the same one, one fails. Spark skips names that
begin with an underscore, so that the rest of the folder can be read as a table by anything.

The folder must be on a file system with links and locks that the driver sees: a disk, NFS.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from millstream.spark.job.job_error import Failure, JobError, usage_error

FOLDER: Final = "_millstream"
_NAME: Final = re.compile(r"(\d{20})\.json\Z")


class CommitLog:
    """The commits of one folder, made by a job. Only who holds `lock` may append."""

    def __init__(self, root: Path, job: str) -> None:
        self.root = root
        self.job = job
        self._folder = root / FOLDER

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only run at work; it ends with the process, however that ends."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobError(
                    Failure.CONFLICT, f"another run is at work on {self.root}: wait for its end."
                ) from None
            for left in self._folder.glob("*.tmp"):
                left.unlink()
            yield

    def numbers(self) -> list[int]:
        """The commits there are, the oldest first."""
        if not self._folder.is_dir():
            return []
        names = (_NAME.match(name) for name in os.listdir(self._folder))
        return sorted(int(match[1]) for match in names if match)

    def read(self, number: int) -> dict[str, Any]:
        """Raises JobError where the folder is that of something else."""
        value: dict[str, Any] = json.loads(self._path(number).read_bytes())
        # Commits of earlier versions do not name their job.
        job = value.get("job", self.job)
        if job != self.job:
            raise usage_error(
                f"{self.root} is a folder of the job {job}, not of {self.job}: use another one."
            )
        return value

    def last(self) -> tuple[int, dict[str, Any]] | None:
        numbers = self.numbers()
        return (numbers[-1], self.read(numbers[-1])) if numbers else None

    def append(self, number: int, value: dict[str, Any]) -> None:
        """Make this commit `number`; on stable storage when it returns."""
        temporary = self._folder / f"{uuid.uuid4().hex}.tmp"
        body = {"job": self.job, "number": number, "time_ms": int(time.time() * 1000), **value}
        with temporary.open("w") as file:
            json.dump(body, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, self._path(number))
        except FileExistsError:
            raise JobError(
                Failure.CONFLICT, f"another run has made commit {number} of {self.root}: run again."
            ) from None
        finally:
            temporary.unlink()
        sync(self._folder)

    def remove_before(self, number: int) -> None:
        """Forget commits that no reader needs any more."""
        for each in self.numbers():
            if each < number:
                self._path(each).unlink()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:020}.json"


def local_path(path: str | os.PathLike[str]) -> Path:
    """The folder that a path or a `file:` address names. Raises for other kinds of storage."""
    text = os.fspath(path)
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "file":
        return Path("/" + rest.lstrip("/"))
    if colon and "/" not in scheme and rest.startswith("//"):
        raise usage_error(
            f"{text}: commits need a file system with links and locks: name a folder on a disk"
            " or on a share that the driver and all executors have mounted."
        )
    return Path(text).absolute()


def sync(path: Path) -> None:
    """Have a file's data, or a folder's names, on stable storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
