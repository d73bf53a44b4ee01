"""A disk that a test can fill up."""

from __future__ import annotations

from harness.in_process.log_home import UnsyncedDisk
from millstream.env.disk import Buffer, File


class FullDisk(UnsyncedDisk):
    """A disk that writes half of the data and then fails."""

    __slots__ = ("is_full",)

    def __init__(self) -> None:
        self.is_full = False

    def open(self, path, *, create=False, readonly=False):  # type: ignore[no-untyped-def]
        return FullFile(self, super().open(path, create=create, readonly=readonly))


class FullFile:
    def __init__(self, disk: FullDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def write(self, data: Buffer, position: int) -> None:
        if self._disk.is_full:
            self._file.write(bytes(data)[: len(data) // 2], position)
            raise OSError(28, "No space left on device")
        self._file.write(data, position)
