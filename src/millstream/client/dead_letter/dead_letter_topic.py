"""Reads and deletes the letters of a dead-letter topic."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Unpack

from confluent_kafka import Consumer as RdKafkaConsumer
from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka import TopicPartition as Row
from confluent_kafka.admin import AdminClient

from millstream.client.admin import Admin
from millstream.client.connection import ConnectionOptions, ConnectionSettings
from millstream.client.dead_letter.letter import DeadLetter, LetterId, topic_of
from millstream.client.dead_letter.replayed import ReplayedLetters, replay_topic
from millstream.client.error import (
    BrokerError,
    MillstreamError,
    TimedOut,
    UsageError,
    from_kafka,
    is_missing,
    translated,
)
from millstream.client.record import Partition, Record

_logger = logging.getLogger(__name__)

_BATCH: Final = 500
_RESPONSE_S_MAX: Final = 30.0


class DeadLetterTopic:
    """The letters of one topic.

    `topic` is the original topic or its `<topic>.dlq`. The keywords are those of `Admin`, without
    `timeout`.
    """

    def __init__(
        self,
        topic: str,
        bootstrap_servers: str | Sequence[str] | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        settings = ConnectionSettings.of(options)
        if not isinstance(topic, str):
            raise UsageError(
                f"The topic is {topic!r}: since version 1.0 it is the first argument, and "
                "librdkafka's properties are config=..."
            )
        #: librdkafka's properties, with the servers among them.
        self.properties = settings.connection_properties(bootstrap_servers) | dict(settings.config)
        self.topic = topic_of(topic)

    def letters(self) -> Iterator[DeadLetter]:
        """Yield all letters that the topic has now, in the order of each partition."""
        return map(DeadLetter.of, self._records(self.topic, None))

    def letter(self, letter_id: LetterId) -> DeadLetter | None:
        """Return one letter, or None."""
        for record in self._records(self.topic, letter_id):
            return DeadLetter.of(record) if record.offset == letter_id.offset else None
        return None

    def replayed(self) -> ReplayedLetters:
        """Return which letters were replayed."""
        found = ReplayedLetters(self._topic_id())
        with self._admin() as admin:
            exists = replay_topic(self.topic) in admin.list_topics()
        if exists:
            for record in self._records(replay_topic(self.topic), None):
                found.read(record.raw_value or b"")
        return found

    def create_replay_topic(self) -> None:
        """Create the topic that lists the replayed letters, if it is missing."""
        with self._admin() as admin:
            admin.create_topic(
                replay_topic(self.topic),
                partitions=1,
                config={"retention.ms": "-1", "cleanup.policy": "delete"},
                if_missing=True,
            )

    def delete_before(self, ends: Mapping[int, int]) -> None:
        """Delete all letters before these offsets, by partition."""
        offsets = {Partition(self.topic, number): offset for number, offset in ends.items()}
        with self._admin() as admin:
            for outcome in admin.delete_records(offsets).values():
                if isinstance(outcome, MillstreamError):
                    raise outcome

    def _admin(self) -> Admin:
        return Admin(self.properties["bootstrap.servers"], config=self.properties)

    def _topic_id(self) -> str:
        client = AdminClient(self.properties, logger=_logger)
        response = client.describe_topics(TopicCollection([self.topic]))[self.topic]
        with translated(f"Asking for topic {self.topic!r}"):
            return str(response.result().topic_id)

    def _records(self, topic: str, start: LetterId | None) -> Iterator[Record]:
        """Yield committed records up to the current end, of all partitions or from `start` on."""
        try:
            with self._admin() as admin:
                starts = admin.list_topic_offsets(topic, "earliest")
                found = admin.list_topic_offsets(topic)
        except BrokerError as error:
            if is_missing(error.code):
                # The worker creates the topic later.
                return
            raise
        if start is not None:
            starts = {each: start.offset for each in starts if each.partition == start.partition}
        rows = [Row(*each, first) for each, first in starts.items() if first < found[each]]
        if not rows:
            return
        ends = {each.partition: found[Partition(topic, each.partition)] for each in rows}
        with contextlib.closing(
            RdKafkaConsumer(self._consumer_properties(), logger=_logger)
        ) as handle:
            handle.assign(rows)
            yield from _read_until(ends, handle, topic)

    def _consumer_properties(self) -> dict[str, Any]:
        return self.properties | {
            # librdkafka needs a group name even without a group.
            "group.id": "millstream-dead-letters",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            # librdkafka reports the end of a partition after an empty fetch of this length.
            "fetch.wait.max.ms": 10,
        }


def _read_until(ends: Mapping[int, int], handle: RdKafkaConsumer, topic: str) -> Iterator[Record]:
    """Yield records up to these offsets.

    Letters that arrive meanwhile, perhaps by a replay, are ignored.
    """
    pending = set(ends)
    while pending:
        first = handle.poll(_RESPONSE_S_MAX)
        if first is None:
            raise TimedOut(f"Reading {topic!r}: no record arrived in {_RESPONSE_S_MAX} s.")
        for message in (first, *handle.consume(_BATCH, 0)):
            error = message.error()
            if error is None:
                record = Record(message)
                if record.offset >= ends[record.partition] - 1:
                    pending.discard(record.partition)
                if record.offset < ends[record.partition]:
                    yield record
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                pending.discard(message.partition() or 0)
            elif not error.retriable():
                raise from_kafka(error, f"Reading {topic!r}")
