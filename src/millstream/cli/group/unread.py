"""The timestamps of the first records that a group has not read.

No request of the protocol returns the timestamp of an offset, so the reader fetches one record of
each partition. It caches timestamps: a group whose offsets have not changed costs no request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.cli.support.connection import Connection

if TYPE_CHECKING:
    from millstream.client.consumer.consumer import Consumer
    from millstream.client.record import Partition

#: The fetch size of a partition. Brokers return at least one batch.
_FETCH_BYTES: Final = 1024
_POLL_S: Final = 0.1
_RECORDS_PER_POLL: Final = 500


class FirstUnread(NamedTuple):
    """The first record at or after an offset."""

    #: None if the record has no timestamp or could not be fetched.
    timestamp_ms: int | None = None
    #: Whether there is no record: the offsets up to the end were compacted away or are markers.
    is_nothing: bool = False


class UnreadReader:
    """Fetches records without a group. It makes a consumer for the topics that it has to read."""

    __slots__ = ("_connection", "_consumer", "_known", "_topics")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._consumer: Consumer | None = None
        self._topics: list[str] = []
        #: The last offset and its result, by partition.
        self._known: dict[Partition, tuple[int, FirstUnread]] = {}

    def first_unread(self, positions: Mapping[Partition, int]) -> dict[Partition, FirstUnread]:
        """Return the first record at or after each position, within the connection's timeout."""
        found = {
            key: first
            for key, (offset, first) in self._known.items()
            if positions.get(key) == offset and first.timestamp_ms is not None
        }
        missing = {key: offset for key, offset in positions.items() if key not in found}
        if missing:
            with self._connection.failing():
                found |= self._fetch(missing)
        self._known = {key: (positions[key], first) for key, first in found.items()}
        return found

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _fetch(self, positions: Mapping[Partition, int]) -> dict[Partition, FirstUnread]:
        consumer = self._open(sorted({each.topic for each in positions}))
        for each in consumer.assignment:
            if each in positions:
                consumer.resume(*each)
                consumer.seek(*each, offset=positions[each])
            else:
                consumer.pause(*each)
        found: dict[Partition, FirstUnread] = {}
        deadline = time.monotonic() + self._connection.timeout_s
        while len(found) < len(positions) and time.monotonic() < deadline:
            for record in consumer.poll(_RECORDS_PER_POLL, _POLL_S):
                found.setdefault(_partition(record), FirstUnread(record.timestamp))
            for each in consumer.ended & positions.keys():
                found.setdefault(each, FirstUnread(is_nothing=True))
        for topic in self._topics:
            consumer.pause(topic)
        return {key: found.get(key, FirstUnread()) for key in positions}

    def _open(self, topics: list[str]) -> Consumer:
        from millstream.client.consumer.consumer import Consumer

        if self._consumer is not None and set(topics) <= set(self._topics):
            return self._consumer
        self.close()
        self._topics = topics
        self._consumer = Consumer(
            self._connection.servers,
            topics=topics,
            # The consumer waits at the end of each partition until `seek` says where to start.
            auto_offset_reset="latest",
            config=self._connection.client_config()
            | {
                "enable.partition.eof": True,
                "fetch.message.max.bytes": _FETCH_BYTES,
                "queued.min.messages": 1,
            },
        )
        return self._consumer


def _partition(record: object) -> Partition:
    from millstream.client.record import Partition, Record

    assert isinstance(record, Record)
    return Partition(record.topic, record.partition)
