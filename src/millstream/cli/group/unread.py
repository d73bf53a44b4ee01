"""When the first records that a group has not read were written.

No request of the protocol tells the time of an offset, so one record of each partition is fetched,
the smallest amount that a broker gives. What is found is remembered: a group that stays where it is
costs nothing at the next look.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.cli.group.offset_plan import Key
from millstream.cli.support.connection import Connection

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

#: Fetched of a partition at a time; brokers give one batch at the least.
_FETCH_BYTES: Final = 1024
_POLL_S: Final = 0.1
_MESSAGES_PER_POLL: Final = 500


class FirstUnread(NamedTuple):
    """What is to be read at an offset."""

    #: None where the record has no time, or could not be had.
    timestamp_ms: int | None = None
    #: Whether there is nothing: the offsets up to the end were compacted away, or are markers.
    is_nothing: bool = False


class UnreadReader:
    """Looks at records without being in any group. Made when first needed; `close` ends it."""

    __slots__ = ("_connection", "_consumer", "_known")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._consumer: Consumer | None = None
        #: What the last look found, by partition, and at which offset.
        self._known: dict[Key, tuple[int, FirstUnread]] = {}

    def look(self, positions: Mapping[Key, int]) -> dict[Key, FirstUnread]:
        """The first record at or after each position. Takes as long as an answer may take."""
        found = {
            key: first
            for key, (offset, first) in self._known.items()
            if positions.get(key) == offset and first.timestamp_ms is not None
        }
        missing = {key: offset for key, offset in positions.items() if key not in found}
        if missing:
            found |= self._fetch(missing)
        self._known = {key: (positions[key], first) for key, first in found.items()}
        return found

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _fetch(self, positions: Mapping[Key, int]) -> dict[Key, FirstUnread]:
        from confluent_kafka import TopicPartition

        consumer = self._open()
        consumer.assign([TopicPartition(*key, offset) for key, offset in positions.items()])
        found: dict[Key, FirstUnread] = {}
        deadline = time.monotonic() + self._connection.timeout_s
        while len(found) < len(positions) and time.monotonic() < deadline:
            done = []
            for message in consumer.consume(_MESSAGES_PER_POLL, _POLL_S):
                topic, partition = message.topic(), message.partition()
                if topic is None or partition is None or (topic, partition) in found:
                    continue
                found[topic, partition] = _first(message)
                done.append(TopicPartition(topic, partition))
            if done:
                consumer.incremental_unassign(done)
        consumer.unassign()
        return {key: found.get(key, FirstUnread()) for key in positions}

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = self._connection.consumer(
                {
                    # The client library wants one; nothing is joined or committed.
                    "group.id": "millstream-cli",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "fetch.message.max.bytes": _FETCH_BYTES,
                    "queued.min.messages": 1,
                }
            )
        return self._consumer


def _first(message: Message) -> FirstUnread:
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError

    error = message.error()
    if error is not None:
        return FirstUnread(is_nothing=error.code() == KafkaError._PARTITION_EOF)  # noqa: SLF001
    kind, timestamp_ms = message.timestamp()
    return FirstUnread(None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms)
