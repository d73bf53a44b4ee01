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
    """Fetches records without a group, with a new consumer each time."""

    __slots__ = ("_connection", "_known")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
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

    def _fetch(self, positions: Mapping[Partition, int]) -> dict[Partition, FirstUnread]:
        from millstream.client.record import Partition

        found: dict[Partition, FirstUnread] = {}
        deadline = time.monotonic() + self._connection.timeout_s
        with self._consumer(positions) as consumer:
            for each in consumer.assignment - positions.keys():
                consumer.pause(*each)
            while len(found) < len(positions) and time.monotonic() < deadline:
                for record in consumer.poll(_RECORDS_PER_POLL, _POLL_S):
                    key = Partition(record.topic, record.partition)
                    if key in positions and key not in found:
                        found[key] = FirstUnread(record.timestamp)
                        consumer.pause(*key)
                for each in consumer.ended & positions.keys():
                    found.setdefault(each, FirstUnread(is_nothing=True))
        return {key: found.get(key, FirstUnread()) for key in positions}

    def _consumer(self, positions: Mapping[Partition, int]) -> Consumer:
        from millstream.client.consumer.consumer import Consumer

        def start(consumer: Consumer, partitions: list[Partition]) -> None:
            for each in partitions:
                if each in positions:
                    consumer.seek(*each, offset=positions[each])

        config = {
            "enable.partition.eof": True,
            "fetch.message.max.bytes": _FETCH_BYTES,
            "queued.min.messages": 1,
        }
        return Consumer(
            self._connection.servers,
            topics=sorted({each.topic for each in positions}),
            # Other partitions of the topics start at their end, and are paused then.
            auto_offset_reset="latest",
            on_assign=start,
            config=self._connection.client_config() | config,
        )
