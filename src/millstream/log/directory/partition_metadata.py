"""The file `partition.metadata` in a log's folder, which names the topic id.

File: the lines `version: 0` and `topic_id: <22 characters>`. A topic that was deleted and created
again under the same name has another id, so the new topic does not use the old folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millstream.env.disk import Disk
from millstream.model.topic import TopicId, format_topic_id, parse_topic_id

PARTITION_METADATA: Final = "partition.metadata"


def encode_topic_id(topic_id: TopicId) -> bytes:
    """Return the content of the file."""
    return f"version: 0\ntopic_id: {format_topic_id(topic_id)}".encode()


def read_topic_id(disk: Disk, directory: Path) -> TopicId | None:
    """Return the topic id in a log's folder; None if the file is missing or torn."""
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
