"""The file that names the log folders of a data folder, so that a missing one is noticed.

A log's folder is made by its first append. Without this file, a folder that was deleted can't be
told from one that was never made. File `replica-folders`, one line for each change:

    + <topic>-<partition> <topic id>      the folder was made
    - <topic>-<partition>                 the folder was deleted on purpose

Lines are appended before the first record is, in the page cache as the records are, and are synced
with them. A line that a crash cut short is ignored: the folder was not synced either then. `rewrite`
leaves one line for each folder that is known.

A data folder of an earlier release has no such file: `is_missing` until the first `rewrite`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from millstream.env.disk import Disk
from millstream.model.topic import TopicId, format_topic_id

LEDGER: Final = "replica-folders"


class FolderLedger:
    """Event loop only."""

    __slots__ = ("_disk", "_lines", "_made", "_size", "is_missing", "path")

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self.path = folder / LEDGER
        #: Folder names with the text form of the topic id for which each was made.
        self._made: dict[str, str] = {}
        #: Lines and bytes of the file.
        self._lines = self._size = 0
        self.is_missing = not disk.exists(self.path)
        if not self.is_missing:
            self._read()

    def _read(self) -> None:
        data = self._disk.read(self.path)
        self._size = len(data)
        lines = data.decode("utf-8", "replace").split("\n")
        self._lines = len(lines)
        # What follows the last line end was cut short.
        for line in lines[:-1]:
            match line.split(" "):
                case ["+", name, topic_id]:
                    self._made[name] = topic_id
                case ["-", name]:
                    self._made.pop(name, None)

    def has(self, name: str, topic_id: TopicId) -> bool:
        """Whether a folder of that name was made for that topic, and not deleted on purpose."""
        return self._made.get(name) == format_topic_id(topic_id)

    def made(self, name: str, topic_id: TopicId) -> None:
        """Note that a folder was made. Raises OSError."""
        text = format_topic_id(topic_id)
        self._append(f"+ {name} {text}\n")
        self._made[name] = text

    def deleted(self, name: str) -> None:
        """Note that a folder is being deleted. Raises OSError."""
        if name in self._made:
            self._append(f"- {name}\n")
            del self._made[name]

    def _append(self, line: str) -> None:
        data = line.encode()
        file = self._disk.open(self.path, create=True)
        try:
            file.write(data, self._size)
        finally:
            file.close()
        self._size += len(data)
        self._lines += 1

    def rewrite(self, made: Mapping[str, TopicId]) -> None:
        """Let the file name exactly these folders, durably. Raises OSError. Blocks."""
        wanted = {name: format_topic_id(topic_id) for name, topic_id in made.items()}
        if wanted == self._made and self._lines <= 2 * len(wanted) + 1 and not self.is_missing:
            return
        data = "".join(f"+ {name} {text}\n" for name, text in wanted.items()).encode()
        self._disk.write_atomic(self.path, data)
        self._made, self._lines, self._size = wanted, len(wanted), len(data)
        self.is_missing = False
