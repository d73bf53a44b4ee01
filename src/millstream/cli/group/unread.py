"""The timestamps of the first records that a group has not read.

No request of the protocol returns the timestamp of an offset, so the reader fetches one record of
each partition. It caches timestamps: a group whose offsets have not changed costs no request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.cli.group.offset_plan import Key
from millstream.cli.support.connection import Connection

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

#: The fetch size of a partition. Brokers return at least one batch.
_FETCH_BYTES: Final = 1024
_POLL_S: Final = 0.1
_MESSAGES_PER_POLL: Final = 500


class FirstUnread(NamedTuple):
    """The first record at or after an offset."""

    #: None if the record has no timestamp or could not be fetched.
    timestamp_ms: int | None = None
    #: Whether there is no record: the offsets up to the end were compacted away or are markers.
    is_nothing: bool = False


class UnreadReader:
    """Fetches records without a group. It makes its consumer on first use."""

    __slots__ = ("_connection", "_consumer", "_known")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._consumer: Consumer | None = None
        #: The last offset and its result, by partition.
        self._known: dict[Key, tuple[int, FirstUnread]] = {}

    def first_unread(self, positions: Mapping[Key, int]) -> dict[Key, FirstUnread]:
        """Return the first record at or after each position, within the connection's timeout."""
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
                    # librdkafka requires a group id even if no group is joined.
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
