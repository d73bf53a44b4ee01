"""The folder of one log inside the data directory: `<topic>-<partition>`.

The first append creates it, so an unused partition costs nothing on disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from millstream.log.directory.partition_metadata import PARTITION_METADATA, encode_topic_id
from millstream.log.files import write_small_file
from millstream.model.topic import TopicId, TopicPartition

if TYPE_CHECKING:
    from millstream.log.flush.unsynced import UnsyncedChanges
    from millstream.log.storage import Storage


class LogFolder:
    """Path, owner and existence of one log's folder."""

    __slots__ = ("exists", "storage", "topic_id", "topic_partition")

    def __init__(
        self, storage: Storage, topic_partition: TopicPartition, topic_id: TopicId, *, exists: bool
    ) -> None:
        self.storage = storage
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.exists = exists

    @property
    def path(self) -> Path:
        # Not stored: a broker may have 100,000 idle logs.
        return self.storage.path / str(self.topic_partition)

    def create(self, unsynced: UnsyncedChanges) -> None:
        """Create the folder with its `partition.metadata`. Raises OSError."""
        storage, path = self.storage, self.path
        # From the first record on, a missing folder means a lost log.
        storage.replica_folders.add(path.name, self.topic_id)
        storage.disk.mkdir(path)
        unsynced.paths.append(storage.replica_folders.path)
        metadata = path / PARTITION_METADATA
        write_small_file(storage.disk, metadata, encode_topic_id(self.topic_id))
        unsynced.add_file(metadata)
        self.exists = True
