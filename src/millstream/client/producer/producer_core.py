"""What the producers, sync and asyncio, have in common: lanes, encoding, partitions, transactions.

The fast way of a record is in `Producer.send` and `AsyncProducer.send` themselves; this holds all
that a plain record does not need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from confluent_kafka import KafkaException

from millstream.client.error import SerializationError, UsageError, from_kafka, translated
from millstream.client.producer.delivery import Delivery
from millstream.client.producer.partitioner import PartitionCounts, checked, function_of
from millstream.client.producer.producer_handle import Lane, closed, failure
from millstream.client.producer.transaction import State, TransactionDriver
from millstream.client.serializer import encoded, refused
from millstream.client.setting import Acks, ProducerSettings, acks_text

_METADATA_S_MAX = 30.0


class ProducerCore:
    def __init__(
        self,
        servers: str | None,
        settings: ProducerSettings,
        delivery: type[Delivery],
        lane: type[Lane] = Lane,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._settings = settings
        self._open: Callable[[Acks], Lane] = lambda acks: lane(
            settings.properties(servers, acks), delivery, loop
        )
        self.lane = self._open(settings.acks)
        self._acks = acks_text(settings.acks)
        self._lanes = {self._acks: self.lane}
        self._choose = function_of(settings.partitioner)
        self.counts = PartitionCounts(self._count)
        self.is_closed = False
        #: Whether a record has to pass `prepare`.
        self.is_prepared = (
            self._choose is not None
            or settings.key_serializer is not None
            or settings.value_serializer is not None
        )
        self.driver: TransactionDriver | None = None
        if settings.transactional_id is not None:
            self.driver = TransactionDriver(self.lane.handle, self._allow)

    @property
    def lanes(self) -> list[Lane]:
        return list(self._lanes.values())

    @property
    def settings(self) -> ProducerSettings:
        return self._settings

    def needs_count(self, partition: int | None) -> bool:
        """Whether `prepare` has to know how many partitions the topic has."""
        return partition is None and self._choose is not None

    def prepare(
        self,
        topic: str,
        key: Any,
        value: Any,
        partition: int | None,
        acks: Acks | None,
        count: int | None,
    ) -> tuple[Lane, Any, Any, int | None]:
        """The lane, and key, value and partition as librdkafka takes them. Never waits: `count`,
        the number of partitions, is there if `needs_count`."""
        lane = self.lane if acks is None else self._lane_of(acks)
        settings = self._settings
        if settings.key_serializer is not None:
            key = encoded(settings.key_serializer, key, "key", topic)
        if settings.value_serializer is not None:
            value = encoded(settings.value_serializer, value, "value", topic)
        if partition is None and self._choose is not None:
            assert count is not None
            key = key.encode() if isinstance(key, str) else key
            partition = checked(self._choose(key, count), topic, count)
        return lane, key, value, partition

    def explain(self, error: Exception, topic: Any, key: Any, value: Any) -> NoReturn:
        """Raise what librdkafka's refusal to take a record means."""
        if isinstance(error, KafkaException):
            raise failure(error, f"The record for topic {topic!r} was not taken") from error
        if not isinstance(topic, str):
            raise UsageError(f"The topic is {topic!r}: give its name, a string.") from error
        for part, given in (("key", key), ("value", value)):
            if not isinstance(given, str | bytes | None):
                raise refused(part, given, topic) from error
        raise SerializationError(
            f"The record for topic {topic!r} was not taken: {error}. Headers are pairs of a string "
            "and bytes, partition and timestamp are integers."
        ) from error

    def begin(self) -> TransactionDriver:
        if self.driver is None:
            raise UsageError("Transactions need a producer made with transactional_id='...'.")
        if self.is_closed:
            raise closed()
        self.driver.begin()
        return self.driver

    def close(self) -> None:
        self.begin_closing()
        self.finish_closing()

    def begin_closing(self) -> None:
        """Refuse to send more."""
        self.is_closed = True
        for lane in self.lanes:
            lane.begin_closing()

    def finish_closing(self) -> None:
        """Give up what was not delivered. Waits for librdkafka."""
        is_broken = self.driver is not None and self.driver.state is State.BROKEN
        for lane in self.lanes:
            lane.close(is_broken=is_broken)

    def _lane_of(self, acks: Acks) -> Lane:
        text = acks_text(acks)
        lane = self._lanes.get(text)
        if lane is None:
            if self.is_closed:
                raise closed()
            if self.driver is not None:
                raise UsageError("Records of a transaction have acks='all'.")
            lane = self._lanes[text] = self._open(acks)
        return lane

    def _allow(self, is_allowed: bool) -> None:
        if is_allowed:
            self.lane.produce = self.lane.handle.produce
        else:
            self.lane.refuse(_outside)

    def refresh(self, topic: str) -> None:
        """librdkafka takes what the brokers say of the topic into account, for all its records."""
        with translated(f"Asking for topic {topic!r}"):
            self.lane.handle.list_topics(topic, timeout=_METADATA_S_MAX)

    def _count(self, topic: str) -> int:
        what = f"Asking for the partitions of {topic!r}"
        with translated(what):
            found = self.lane.handle.list_topics(topic, timeout=_METADATA_S_MAX).topics[topic]
        if found.error is not None:
            raise from_kafka(found.error, what)
        return len(found.partitions)


def _outside() -> UsageError:
    return UsageError(
        "This producer is transactional and has no open transaction: send inside `with "
        "producer.transaction():`. If it belongs to an exactly-once consumer, send before "
        "commit(): the consumer's next record begins a transaction."
    )
