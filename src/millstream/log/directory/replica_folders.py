"""The file that lists the log folders of a data directory, so that a missing one is noticed.

A log's folder is created by its first append. Without this file, a folder that was deleted cannot
be distinguished from one that was never created. File `replica-folders`, one line for each change:

    + <topic>-<partition> <topic id>             the folder exists, durably
    + <topic>-<partition> <topic id> <boot id>   the folder was created since the machine booted
    - <topic>-<partition>                        the folder was deleted on purpose

A line is appended before the first record. It stays in the page cache, as the record does, and the
same flush syncs both. After a power failure the file may name a folder that was never synced. The
boot id shows that: a line of an earlier boot proves nothing. A line that a crash tore is ignored.
`rewrite` leaves one durable line for each folder.

A data directory of an earlier release has no such file: `is_missing` until the first `rewrite`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from millstream.env.disk import Disk
from millstream.model.topic import TopicId, format_topic_id

REPLICA_FOLDERS: Final = "replica-folders"


class ReplicaFolders:
    """The listed folders of one data directory. Used from the event loop only."""

    __slots__ = (
        "_boot_id",
        "_directory",
        "_disk",
        "_size",
        "_topic_ids",
        "_unproven",
        "is_missing",
        "path",
    )

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._boot_id = disk.boot_id()
        self.path = directory / REPLICA_FOLDERS
        #: Folder name -> text form of the topic id for which the folder was created.
        self._topic_ids: dict[str, str] = {}
        #: Folders that were created under an earlier boot and perhaps never synced.
        self._unproven: dict[str, None] = {}
        self._size = 0
        self.is_missing = not disk.exists(self.path)
        if not self.is_missing:
            self._read()

    def _read(self) -> None:
        data = self._disk.read(self.path)
        self._size = len(data)
        # Text after the last line end is a torn line.
        for line in data.decode("utf-8", "replace").split("\n")[:-1]:
            match line.split(" "):
                case ["+", name, topic_id, *boot_ids]:
                    self._topic_ids[name] = topic_id
                    self._unproven.pop(name, None)
                    if boot_ids and boot_ids != [self._boot_id]:
                        self._unproven[name] = None
                case ["-", name]:
                    self._topic_ids.pop(name, None)

    def has(self, name: str, topic_id: TopicId, *, durably: bool = False) -> bool:
        """Return whether the folder was created for that topic and a crash cannot explain its loss.

        `durably`: the caller knows that the folder was synced."""
        is_proven = durably or name not in self._unproven
        return is_proven and self._topic_ids.get(name) == format_topic_id(topic_id)

    def has_name(self, name: str) -> bool:
        return name in self._topic_ids

    def add(self, name: str, topic_id: TopicId) -> None:
        """Append a line for a folder that is about to be created. Raises OSError."""
        text = format_topic_id(topic_id)
        self._append(f"+ {name} {text} {self._boot_id}".rstrip() + "\n")
        self._topic_ids[name] = text

    def remove(self, name: str) -> None:
        """Append a line for a folder that is about to be deleted. Raises OSError."""
        if name in self._topic_ids:
            self._append(f"- {name}\n")
            del self._topic_ids[name]

    def _append(self, line: str) -> None:
        data = line.encode()
        file = self._disk.open(self.path, create=True)
        try:
            file.write(data, self._size)
        finally:
            file.close()
        self._size += len(data)

    def rewrite(self, topic_ids: Mapping[str, TopicId]) -> None:
        """Replace the file durably: it lists exactly these folders. Raises OSError. Blocks."""
        names = sorted(topic_ids)
        data = "".join(f"+ {name} {format_topic_id(topic_ids[name])}\n" for name in names).encode()
        if not self.is_missing and self._disk.read(self.path) == data:
            return
        self._disk.sync_dir(self._directory)
        self._disk.write_atomic(self.path, data)
        self._topic_ids = {name: format_topic_id(topic_ids[name]) for name in topic_ids}
        self._unproven.clear()
        self._size = len(data)
        self.is_missing = False
