"""The letters of a dead-letter topic, read from the brokers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer as Handle
from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka import TopicPartition as Row
from confluent_kafka.admin import AdminClient

from millstream.client.admin import Admin
from millstream.client.dead_letter.letter import DeadLetter, LetterId, topic_of
from millstream.client.dead_letter.replayed import ReplayedLetters, replay_topic
from millstream.client.error import TimedOut, from_kafka, translated
from millstream.client.record import Partition, Record

_logger = logging.getLogger(__name__)

_BATCH: Final = 500
_SILENCE_S_MAX: Final = 30.0


class DeadLetterTopic:
    """`topic` is the one that the letters come from, or its `<topic>.dlq`; `properties` are
    librdkafka's, with the servers among them."""

    def __init__(self, properties: Mapping[str, Any], topic: str) -> None:
        self.properties = dict(properties)
        self.topic = topic_of(topic)

    def letters(self) -> Iterator[DeadLetter]:
        """All that are there now, in the order of each partition."""
        return map(DeadLetter.of, self._records(self.topic, None))

    def letter(self, place: LetterId) -> DeadLetter | None:
        """The one there, if it is."""
        for record in self._records(self.topic, place):
            return DeadLetter.of(record) if record.offset == place.offset else None
        return None

    def replayed(self) -> ReplayedLetters:
        """What was replayed."""
        found = ReplayedLetters(self._topic_id())
        with self._admin() as admin:
            is_there = replay_topic(self.topic) in admin.topics()
        if is_there:
            for record in self._records(replay_topic(self.topic), None):
                found.read(record.raw_value or b"")
        return found

    def create_replay_topic(self) -> None:
        with self._admin() as admin:
            admin.create_topic(
                replay_topic(self.topic),
                partitions=1,
                config={"retention.ms": "-1", "cleanup.policy": "delete"},
                if_missing=True,
            )

    def delete_before(self, ends: Mapping[int, int]) -> None:
        """Delete all letters before these offsets, by partition."""
        rows = [Row(self.topic, partition, offset) for partition, offset in ends.items()]
        if not rows:
            return
        # Answers come only as long as the client lives.
        client = AdminClient(self.properties, logger=_logger)
        with translated(f"Deleting letters of {self.topic!r}"):
            for answer in client.delete_records(rows, request_timeout=_SILENCE_S_MAX).values():
                answer.result()

    def _admin(self) -> Admin:
        return Admin(self.properties["bootstrap.servers"], config=self.properties)

    def _topic_id(self) -> str:
        client = AdminClient(self.properties, logger=_logger)
        answer = client.describe_topics(TopicCollection([self.topic]))[self.topic]
        with translated(f"Asking for topic {self.topic!r}"):
            return str(answer.result().topic_id)

    def _records(self, topic: str, at: LetterId | None) -> Iterator[Record]:
        """Committed records up to the present end; of one partition from an offset on, or all."""
        with self._admin() as admin:
            starts = admin.offsets(topic, end=False)
            found = admin.offsets(topic)
        if at is not None:
            starts = {each: at.offset for each in starts if each.partition == at.partition}
        rows = [Row(*each, start) for each, start in starts.items() if start < found[each]]
        if not rows:
            return
        ends = {each.partition: found[Partition(topic, each.partition)] for each in rows}
        with contextlib.closing(Handle(self._reading(), logger=_logger)) as handle:
            handle.assign(rows)
            yield from _until(ends, handle, topic)

    def _reading(self) -> dict[str, Any]:
        return self.properties | {
            # librdkafka wants a group's name even where no group is joined.
            "group.id": "millstream-dead-letters",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            # The end of a partition is told when a fetch has waited this long in vain.
            "fetch.wait.max.ms": 10,
        }


def _until(ends: Mapping[int, int], handle: Handle, topic: str) -> Iterator[Record]:
    """Up to these offsets: letters that come meanwhile, perhaps because of a replay, are left."""
    pending = set(ends)
    while pending:
        first = handle.poll(_SILENCE_S_MAX)
        if first is None:
            raise TimedOut(f"Reading {topic!r}: nothing came in {_SILENCE_S_MAX} s.")
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
