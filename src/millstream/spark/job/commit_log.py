"""A log of commits in a folder. A commit makes the files of a batch part of a table, atomically.

    FOLDER/_millstream/00000000000000000007.json   commit 7
    FOLDER/_millstream/lock                        locked by the present run

A commit is a JSON object; its `job` names the job that made it. It is written to a temporary file,
synced, and then linked to its number. Linking fails if the number exists. A commit is therefore
complete or absent, and of two runs that make the same commit one fails. Spark ignores names that
start with an underscore, so any tool can read the rest of the folder as a table.

The driver must see the folder on a file system with links and locks: a disk, or NFS.
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
    """The commits of one folder and job. Appending requires `lock`."""

    def __init__(self, root: Path, job: str) -> None:
        self.root = root
        self.job = job
        self._folder = root / FOLDER

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against other runs. The lock ends with the process."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobError(
                    Failure.CONFLICT, f"another run works on {self.root}: wait for its end."
                ) from None
            for leftover in self._folder.glob("*.tmp"):
                leftover.unlink()
            yield

    def numbers(self) -> list[int]:
        """Return the numbers of all commits in ascending order."""
        if not self._folder.is_dir():
            return []
        names = (_NAME.match(name) for name in os.listdir(self._folder))
        return sorted(int(match[1]) for match in names if match)

    def read(self, number: int) -> dict[str, Any]:
        """Return a commit. Raises JobError if the folder belongs to another job."""
        value: dict[str, Any] = json.loads(self._path(number).read_bytes())
        # Commits of earlier versions do not name their job.
        job = value.get("job", self.job)
        if job != self.job:
            raise usage_error(
                f"{self.root} is a folder of the job {job}, not of {self.job}: use another folder."
            )
        return value

    def last(self) -> tuple[int, dict[str, Any]] | None:
        """Return the number and content of the last commit."""
        numbers = self.numbers()
        return (numbers[-1], self.read(numbers[-1])) if numbers else None

    def append(self, number: int, value: dict[str, Any]) -> None:
        """Append commit `number`. It is on stable storage when this returns."""
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
                Failure.CONFLICT,
                f"another run made commit {number} of {self.root}: run the job again.",
            ) from None
        finally:
            temporary.unlink()
        sync(self._folder)

    def remove_before(self, number: int) -> None:
        """Remove the commits before `number`."""
        for each in self.numbers():
            if each < number:
                self._path(each).unlink()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:020}.json"


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a path or `file:` URL. Raises JobError for other kinds of storage."""
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
    """Sync the data of a file, or the names in a folder, to stable storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
