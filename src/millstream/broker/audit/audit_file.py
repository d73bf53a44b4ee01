"""The audit file: one event in JSON on each line, in files of bounded size.

When the file would exceed `bytes_max`, it is renamed to `<name>.1`, the former `.1` to `.2`, and so
on. At most `files_max` files exist. Lines are in the page cache when `write` returns; they are not
synced. A line that a crash or a full disk left incomplete is ended before the next one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millstream.env.disk import Disk, File

_END_OF_LINE: Final = b"\n"


class AuditFile:
    """Appends lines to the audit file. The file is opened at the first write."""

    __slots__ = ("_bytes_max", "_disk", "_file", "_files_max", "_path", "_size")

    def __init__(self, disk: Disk, path: Path, bytes_max: int, files_max: int) -> None:
        self._disk = disk
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._file: File | None = None
        self._size = 0

    def write(self, lines: bytes) -> None:
        """Append whole lines. Raises OSError."""
        if self._file is not None and self._size and self._size + len(lines) > self._bytes_max:
            self.close()
            self._rotate()
        file = self._file or self._open()
        file.write(lines, self._size)
        self._size += len(lines)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> File:
        self._disk.mkdir(self._path.parent)
        self._file = self._disk.open(self._path, create=True)
        self._size = self._file.size()
        if self._size and self._file.pread(1, self._size - 1) != _END_OF_LINE:
            self._file.write(_END_OF_LINE, self._size)
            self._size += len(_END_OF_LINE)
        return self._file

    def _rotate(self) -> None:
        numbered = [self._path.with_name(f"{self._path.name}.{n}") for n in range(self._files_max)]
        numbered[0] = self._path
        for older, newer in zip(reversed(numbered[1:]), reversed(numbered[:-1]), strict=True):
            if self._disk.exists(newer):
                self._disk.rename(newer, older)
        if self._files_max == 1:
            self._disk.remove(self._path)
