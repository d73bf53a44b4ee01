"""The file that names the log folders of a data folder, so that a missing one is noticed.

A log's folder is made by its first append. Without this file, a folder that was deleted can't be
told from one that was never made. File `replica-folders`, one line for each change:

    + <topic>-<partition> <topic id>             the folder is there, durably
    + <topic>-<partition> <topic id> <boot id>   the folder was made since the machine was started
    - <topic>-<partition>                        the folder was deleted on purpose

A line is appended before the first record is. It stays in the page cache, as the records do, and is
synced with them. After a power failure the file may name a folder that was never synced. The boot
id shows that: a line of an earlier boot proves nothing. A line that a crash cut short is ignored.
`rewrite` leaves one durable line for each folder.

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

    __slots__ = (
        "_boot_id",
        "_disk",
        "_folder",
        "_made",
        "_size",
        "_unproven",
        "is_missing",
        "path",
    )

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._boot_id = disk.boot_id()
        self.path = folder / LEDGER
        #: Folder names with the text form of the topic id for which each was made.
        self._made: dict[str, str] = {}
        #: Names whose folder was made under an earlier boot, and perhaps never synced.
        self._unproven: dict[str, None] = {}
        self._size = 0
        self.is_missing = not disk.exists(self.path)
        if not self.is_missing:
            self._read()

    def _read(self) -> None:
        data = self._disk.read(self.path)
        self._size = len(data)
        # What follows the last line end was cut short.
        for line in data.decode("utf-8", "replace").split("\n")[:-1]:
            match line.split(" "):
                case ["+", name, topic_id, *boot_ids]:
                    self._made[name] = topic_id
                    self._unproven.pop(name, None)
                    if boot_ids and boot_ids != [self._boot_id]:
                        self._unproven[name] = None
                case ["-", name]:
                    self._made.pop(name, None)

    def has(self, name: str, topic_id: TopicId, *, durably: bool = False) -> bool:
        """Whether a folder of that name was made for that topic, and can't have gone by itself.

        `durably`: the caller knows that the folder was synced."""
        is_proven = durably or name not in self._unproven
        return is_proven and self._made.get(name) == format_topic_id(topic_id)

    def has_name(self, name: str) -> bool:
        return name in self._made

    def made(self, name: str, topic_id: TopicId) -> None:
        """Note that a folder is made. Raises OSError."""
        text = format_topic_id(topic_id)
        self._append(f"+ {name} {text} {self._boot_id}".rstrip() + "\n")
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

    def rewrite(self, made: Mapping[str, TopicId]) -> None:
        """Let the file name exactly these folders, durably. Raises OSError. Blocks."""
        text = "".join(f"+ {name} {format_topic_id(made[name])}\n" for name in sorted(made))
        data = text.encode()
        if not self.is_missing and self._disk.read(self.path) == data:
            return
        self._disk.sync_dir(self._folder)
        self._disk.write_atomic(self.path, data)
        self._made = {name: format_topic_id(topic_id) for name, topic_id in made.items()}
        self._unproven.clear()
        self._size = len(data)
        self.is_missing = False
