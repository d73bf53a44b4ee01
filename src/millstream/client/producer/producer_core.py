"""The parts that `Producer` and `AsyncProducer` share: handle, encoding, partitions, transactions.

`Producer.send` and `AsyncProducer.send` contain the fast path of a record themselves. This module
has everything that a plain record does not need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

from confluent_kafka import KafkaException

from millstream.client.error import SerializationError, UsageError, from_kafka, translated
from millstream.client.producer.delivery import Delivery
from millstream.client.producer.partitioner import PartitionCounts, checked_partition, function_of
from millstream.client.producer.producer_handle import ProducerHandle, closed_error, delivery_error
from millstream.client.producer.transaction import State, TransactionDriver
from millstream.client.serializer import encoded, no_serializer_error, serialize_of
from millstream.client.setting import ProducerSettings

_METADATA_S_MAX = 30.0


class ProducerCore:
    """The handle, partition function and transactions of one producer."""

    def __init__(
        self,
        servers: str | Sequence[str] | None,
        settings: ProducerSettings,
        delivery: type[Delivery],
        handle: type[ProducerHandle] = ProducerHandle,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._settings = settings
        self.handle = handle(settings.properties(servers), delivery, loop)
        self._partition_function = function_of(settings.partitioner)
        self.partition_counts = PartitionCounts(self._partition_count)
        self.fetch_count = self.partition_counts.of
        self.is_closed = False
        #: Whether a record has to pass `prepare`.
        self.needs_prepare = (
            self._partition_function is not None
            or settings.key_serializer is not None
            or settings.value_serializer is not None
        )
        self._serialize_key = serialize_of("key_serializer", settings.key_serializer)
        self._serialize_value = serialize_of("value_serializer", settings.value_serializer)
        if settings.on_statistics is not None:
            self.handle.dispatch_always()
        self.driver: TransactionDriver | None = None
        if settings.transactional_id is not None:
            self.driver = TransactionDriver(self.handle.rdkafka, self._set_open)

    @property
    def settings(self) -> ProducerSettings:
        """The producer's settings."""
        return self._settings

    def needs_count(self, partition: int | None) -> bool:
        """Whether `prepare` needs the number of the topic's partitions."""
        return partition is None and self._partition_function is not None

    def prepare(
        self, topic: str, key: Any, value: Any, partition: int | None, count: int | None
    ) -> tuple[Any, Any, int | None]:
        """Encode key and value, and choose the partition. Never waits: `count` is given if
        `needs_count`.
        """
        if self._serialize_key is not None:
            key = encoded(self._serialize_key, key, "key", topic)
        if self._serialize_value is not None:
            value = encoded(self._serialize_value, value, "value", topic)
        if partition is None and self._partition_function is not None:
            assert count is not None
            key = key.encode() if isinstance(key, str) else key
            partition = checked_partition(self._partition_function(key, count), topic, count)
        return key, value, partition

    def raise_rejected(self, error: Exception, topic: Any, key: Any, value: Any) -> NoReturn:
        """Raise the error for a record that librdkafka did not accept."""
        if isinstance(error, KafkaException):
            raise delivery_error(error, f"The record for topic {topic!r} was rejected") from error
        if not isinstance(topic, str):
            raise UsageError(f"The topic is {topic!r}: pass its name, a string.") from error
        for part, given in (("key", key), ("value", value)):
            if not isinstance(given, str | bytes | None):
                raise no_serializer_error(part, given, topic) from error
        raise SerializationError(
            f"The record for topic {topic!r} was rejected: {error}. Headers are pairs of a string "
            "and bytes, partition and timestamp are integers."
        ) from error

    def begin(self) -> TransactionDriver:
        """Begin a transaction."""
        if self.driver is None:
            raise UsageError("Transactions need a producer with transactional_id='...'.")
        if self.is_closed:
            raise closed_error()
        with self.handle.errors.explaining():
            self.driver.begin()
        return self.driver

    def close(self) -> None:
        """Reject further records, and purge those that were not delivered."""
        self.begin_closing()
        self.finish_closing()

    def begin_closing(self) -> None:
        """Reject further records."""
        self.is_closed = True
        self.handle.begin_closing()

    def finish_closing(self) -> None:
        """Purge records that were not delivered. Waits for librdkafka."""
        is_broken = self.driver is not None and self.driver.state is State.BROKEN
        self.handle.close(is_broken=is_broken)

    def _set_open(self, is_open: bool) -> None:
        if is_open:
            self.handle.produce = self.handle.rdkafka.produce
        else:
            self.handle.reject_sends(_no_transaction_error)

    def refresh(self, topic: str) -> None:
        """Fetch the metadata of a topic. librdkafka applies it to all records of the topic."""
        with self.handle.errors.explaining(), translated(f"Asking for topic {topic!r}"):
            self.handle.rdkafka.list_topics(topic, timeout=_METADATA_S_MAX)

    def _partition_count(self, topic: str) -> int:
        what = f"Asking for the partitions of {topic!r}"
        with self.handle.errors.explaining(), translated(what):
            found = self.handle.rdkafka.list_topics(topic, timeout=_METADATA_S_MAX).topics[topic]
        if found.error is not None:
            raise from_kafka(found.error, what)
        return len(found.partitions)


def _no_transaction_error() -> UsageError:
    return UsageError(
        "This producer is transactional and has no open transaction: send inside `with "
        "producer.transaction():`. If it belongs to an exactly-once consumer, send before "
        "commit(): the consumer's next record begins a transaction."
    )
