"""The Kafka side of one shard: batches of events, each a transaction that holds its own number.

The transactional id is the shard's, so whoever opens a sink fences the one before and ends its
transaction. The number of the batch is committed, in the same transaction, as the position of the
outbox's group in partition `shard` of the topic `PROGRESS_TOPIC`, which holds no records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from millstream.client.outbox.source import Event

PROGRESS_TOPIC: Final = "millstream-outbox"

#: How long one call waits before it is asked whether to go on.
_SLICE_S: Final = 1.0
_ADMIN_TIMEOUT_S: Final = 15.0
#: librdkafka takes "by key" as this number.
_BY_KEY: Final = -1


class SinkError(Exception):
    """Kafka can't be reached, refused an event, or gave the shard to another relay."""


class InterruptedSinkError(Exception):
    """Told to stop before Kafka had answered; what became of the batch is found out next time."""


def prepare(properties: Mapping[str, Any], shards: int) -> None:
    """Make the topic that positions need."""
    try:
        admin = AdminClient({**properties, "log_level": 2})
    except KafkaException as error:
        raise _wrong_properties(error) from error
    try:
        found = admin.list_topics(timeout=_ADMIN_TIMEOUT_S).topics.get(PROGRESS_TOPIC)
        if found is None:
            topic = NewTopic(PROGRESS_TOPIC, shards, config={"cleanup.policy": "compact"})
            asked = admin.create_topics([topic], request_timeout=_ADMIN_TIMEOUT_S)
        elif len(found.partitions) < shards:
            more = NewPartitions(PROGRESS_TOPIC, shards)
            asked = admin.create_partitions([more], request_timeout=_ADMIN_TIMEOUT_S)
        else:
            return
        asked[PROGRESS_TOPIC].result()
    except KafkaException as error:
        # Another relay may have been faster.
        if error.args[0].code() not in (
            KafkaError.TOPIC_ALREADY_EXISTS,
            KafkaError.INVALID_PARTITIONS,
        ):
            raise SinkError(f"preparing topic {PROGRESS_TOPIC!r}: {_reason(error)}") from error


class Sink:
    """See the module's text. `stopping` is asked while Kafka does not answer."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        name: str,
        shard: int,
        stopping: Callable[[], bool],
    ) -> None:
        self._shard = shard
        self._stopping = stopping
        self._refused: list[str] = []
        common = {
            # librdkafka 2.16 may lose its only broker for good where it looks for others.
            "metadata.recovery.strategy": "none",
            "log_level": 2,
            **properties,
        }
        producing = {
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "linger.ms": 5,
            **common,
            "transactional.id": f"{name}-{shard}",
            "error_cb": self._on_error,
        }
        try:
            self._producer = Producer(producing)
            self._group = Consumer({**common, "group.id": name, "enable.auto.commit": False})
        except KafkaException as error:
            raise _wrong_properties(error) from error

    def open(self) -> None:
        """Fence whoever had the shard; its last transaction is committed or aborted after this."""
        self._patiently("init_transactions", self._producer.init_transactions)

    def committed(self) -> int | None:
        """The number of the last batch that is in the topic, if Kafka knows one."""
        place = TopicPartition(PROGRESS_TOPIC, self._shard)
        answer: list[TopicPartition] = []

        def ask(slice_s: float) -> None:
            answer[:] = self._group.committed([place], timeout=slice_s)

        self._patiently("asking for the position", ask)
        (found,) = answer
        if found.error is not None:
            raise SinkError(f"asking for the position: {found.error.str()}")
        return None if found.offset < 0 else found.offset

    def send(self, events: Sequence[Event], batch: int) -> None:
        """Commit all of them and the batch's number, or fail.

        After a failure only a new sink's `committed` tells whether they are in the topic.
        """
        self._refused.clear()
        try:
            self._producer.begin_transaction()
            for event in events:
                self._produce(event)
            while self._producer.flush(_SLICE_S):
                self._check()
        except KafkaException as error:
            raise SinkError(f"producing: {_reason(error)}") from error
        place = [TopicPartition(PROGRESS_TOPIC, self._shard, batch)]
        metadata = self._group.consumer_group_metadata()
        self._patiently(
            "adding the position",
            lambda slice_s: self._producer.send_offsets_to_transaction(place, metadata, slice_s),
        )
        self._patiently("committing", self._producer.commit_transaction)

    def close(self) -> None:
        """Ends it for good. An open transaction is left to whoever is next."""
        # Its own `close` would wait for the broker to abort the transaction.
        self._producer.purge()
        del self._producer
        self._group.close()

    def _produce(self, event: Event) -> None:
        while True:
            try:
                self._producer.produce(
                    event.topic,
                    event.value,
                    event.key,
                    _BY_KEY if event.partition is None else event.partition,
                    timestamp=event.created_ms,
                    headers=None if event.headers is None else decode_headers(event.headers),
                )
            except BufferError:
                self._producer.poll(_SLICE_S)
                self._check()
            except KafkaException as error:
                raise SinkError(f"event {event.id}: {_reason(error)}") from error
            except (TypeError, ValueError) as error:
                raise SinkError(f"event {event.id}: {error}") from error
            else:
                return

    def _patiently(self, what: str, call: Callable[[float], Any]) -> None:
        while True:
            try:
                call(_SLICE_S)
            except KafkaException as error:
                if not _is_worth_a_wait(error.args[0]):
                    raise SinkError(f"{what}: {_reason(error)}") from error
                self._check()
            else:
                return

    def _check(self) -> None:
        if self._refused:
            raise SinkError(self._refused[0])
        if self._stopping():
            raise InterruptedSinkError

    def _on_error(self, error: KafkaError) -> None:
        """Others than fatal ones are for librdkafka to get over."""
        if error.fatal():
            self._refused.append(f"{error.str()} ({error.name()})")


def decode_headers(column: str) -> list[tuple[str, str | bytes | None]]:
    """The column's JSON, an object or a list of pairs, as headers of a record."""
    found = json.loads(column)
    pairs = found.items() if isinstance(found, dict) else found
    return [(name, None if value is None else str(value).encode()) for name, value in pairs]


def _is_worth_a_wait(error: KafkaError) -> bool:
    if error.fatal() or error.txn_requires_abort():
        return False
    waits = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._WAIT_COORD)  # noqa: SLF001
    return bool(error.retriable()) or error.code() in waits


def _wrong_properties(error: KafkaException) -> ValueError:
    return ValueError(f"the client's properties are wrong: {_reason(error)}")


def _reason(exception: KafkaException) -> str:
    error = exception.args[0]
    return f"{error.str()} ({error.name()})"
