"""The lock of a data directory: one process at a time uses it."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Final

from millstream.env.disk import Disk, File

LOCK: Final = ".lock"


class DirectoryInUseError(Exception):
    """Another process uses the data directory."""


def lock_directory(disk: Disk, path: Path) -> File:
    """Lock the data directory until the returned file is closed. Raises DirectoryInUseError."""
    file = disk.open(path / LOCK, create=True)
    descriptor = file.fileno()
    if descriptor >= 0:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise DirectoryInUseError(
                f"{path} is in use by another process: stop that one, or choose another data folder"
            ) from error
    return file
