"""The file `partition.metadata` in a log's directory, which says whose log it is.

File: the lines `version: 0` and `topic_id: <22 characters>`. A topic that was deleted and made
again under the same name has another id, so the old directory is not taken for the new topic's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millstream.env.disk import Disk
from millstream.model.topic import TopicId, format_topic_id, parse_topic_id

PARTITION_METADATA: Final = "partition.metadata"


def encode_topic_id(topic_id: TopicId) -> bytes:
    return f"version: 0\ntopic_id: {format_topic_id(topic_id)}".encode()


def read_topic_id(disk: Disk, directory: Path) -> TopicId | None:
    """Whose log is in `directory`; None if the file is missing or cut short by a crash."""
    try:
        text = disk.read(directory / PARTITION_METADATA).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(": ")
        if name == "topic_id":
            try:
                return parse_topic_id(value.strip())
            except ValueError:
                return None
    return None
