"""Topic names, topic ids and partitions.

Owns Kafka's rules for a legal topic name and the text form of a topic id.
"""

from __future__ import annotations

import base64
import re
from typing import Final, NamedTuple, TypeAlias

from millstream.model.error import BrokerError, ErrorCode

#: A topic's id: 16 bytes, as on the wire. Bytes and not `uuid.UUID`, because ids are decoded on
#: every Fetch and building a UUID object costs more than the rest of the row.
TopicId: TypeAlias = bytes

NO_TOPIC_ID: Final[TopicId] = bytes(16)
TOPIC_NAME_LENGTH_MAX: Final = 249

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


class TopicPartition(NamedTuple):
    """One partition of one topic. Its text form is the name of its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def validate_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless Kafka would accept the topic name."""
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = "it may not be '.' or '..'"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        reason = f"it is longer than {TOPIC_NAME_LENGTH_MAX} characters"
    elif not _LEGAL_NAME.match(name):
        reason = "it may hold only ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    raise BrokerError(
        ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name[:80]!r} is invalid: {reason}"
    )


def format_topic_id(topic_id: TopicId) -> str:
    """Return Kafka's text form of a topic id: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def parse_topic_id(text: str) -> TopicId:
    """Return the topic id of its text form; ValueError if it is invalid."""
    topic_id = base64.urlsafe_b64decode(text + "==")
    if len(topic_id) != 16:
        raise ValueError(f"{text!r} is not a topic id: expected 22 characters of URL-safe base64")
    return topic_id
