"""The Kafka side of one shard: sends batches of events, each in a transaction with its number.

The transactional id is the shard's. So a new sink fences the previous one and ends its transaction.
The batch number is committed in the same transaction, as the offset of the outbox's group in
partition `shard` of the topic `PROGRESS_TOPIC`, which has no records.

An isolating sink finds out which events Kafka rejects: it puts each event into a batch of its own,
and checks each delivery report. That is slower, so it is used only after a failure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from millstream.client.admin import Admin
from millstream.client.connection import RECOVERY
from millstream.client.error import (
    BrokerError,
    MillstreamError,
    UsageError,
    error_of,
    is_rejection,
    is_retriable,
    reason_of,
    settings_error,
)
from millstream.client.outbox.source import Event
from millstream.client.tracing.outbox_tracing import SendTracing

PROGRESS_TOPIC: Final = "millstream-outbox"

#: How long one call waits before `stopping` is checked.
_SLICE_S: Final = 1.0
_ADMIN_TIMEOUT_S: Final = 15.0
#: The number with which librdkafka chooses the partition by key.
_BY_KEY: Final = -1
#: The topic limits the size of an event, not the client.
_EVENT_BYTES_MAX: Final = 1_000_000_000
#: How long an isolating sink looks up a topic. The sink before it has looked it up too.
_TOPIC_MS_MAX: Final = 5_000


class SinkError(MillstreamError):
    """Kafka cannot be reached, rejected an event, or gave the shard to another relay."""


class RejectedError(MillstreamError):
    """Kafka rejects these events, by id, each time. Nothing of the batch was sent."""

    def __init__(self, errors: Mapping[int, str]) -> None:
        what = "1 event is" if len(errors) == 1 else f"{len(errors)} events are"
        super().__init__(f"{what} rejected by Kafka and put aside")
        self.errors = dict(errors)


class InterruptedSinkError(MillstreamError):
    """The relay stopped before Kafka responded. The next relay learns the outcome."""


def prepare(properties: Mapping[str, Any], shards: int) -> None:
    """Create the topic for batch numbers, with enough partitions."""
    config = {**properties, "log_level": 2}
    servers = properties.get("bootstrap.servers")
    try:
        with Admin(servers, timeout=_ADMIN_TIMEOUT_S, config=config) as admin:
            topic_config = {"cleanup.policy": "compact"}
            is_new = admin.create_topic(
                PROGRESS_TOPIC, partitions=shards, config=topic_config, if_missing=True
            )
            if not is_new and len(admin.describe_topic(PROGRESS_TOPIC).partitions) < shards:
                admin.create_partitions(PROGRESS_TOPIC, shards)
    except UsageError:
        raise
    except MillstreamError as error:
        # Another relay may have added the partitions meanwhile.
        if not isinstance(error, BrokerError) or error.code != KafkaError.INVALID_PARTITIONS:
            raise SinkError(f"preparing topic {PROGRESS_TOPIC!r}: {error}") from error


class Sink:
    """Sends batches of one shard.

    `stopping` is called while Kafka does not respond. With `isolate` each event has its own batch.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        name: str,
        shard: int,
        stopping: Callable[[], bool],
        *,
        isolate: bool = False,
        tracing: SendTracing | None = None,
    ) -> None:
        self._shard = shard
        self._stopping = stopping
        self._isolate = isolate
        self._tracing = tracing
        self._fatal: list[str] = []
        #: Of an isolating sink: rejected events, and the reasons.
        self._rejected: dict[int, str] = {}
        common = {
            **RECOVERY,
            "log_level": 2,
            **properties,
        }
        producing = {
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "linger.ms": 5,
            "message.max.bytes": _EVENT_BYTES_MAX,
            **({"topic.metadata.propagation.max.ms": _TOPIC_MS_MAX} if isolate else {}),
            **common,
            **({"batch.num.messages": 1} if isolate else {}),
            "transactional.id": f"{name}-{shard}",
            "error_cb": self._on_error,
        }
        try:
            self._producer = Producer(producing)
            self._group = Consumer({**common, "group.id": name, "enable.auto.commit": False})
        except KafkaException as error:
            raise settings_error(error, "outbox relay") from error

    def open(self) -> None:
        """Fence the previous relay of the shard, and end its transaction."""
        self._retry("init_transactions", self._producer.init_transactions)

    def committed(self) -> int | None:
        """Return the number of the last batch in the topic, or None."""
        partition = TopicPartition(PROGRESS_TOPIC, self._shard)
        response: list[TopicPartition] = []

        def ask(slice_s: float) -> None:
            response[:] = self._group.committed([partition], timeout=slice_s)

        self._retry("fetching the committed batch", ask)
        (found,) = response
        if found.error is not None:
            raise SinkError(f"fetching the committed batch: {found.error.str()}")
        return None if found.offset < 0 else found.offset

    def send(self, events: Sequence[Event], batch: int) -> None:
        """Commit all events and the batch number, or fail.

        After a SinkError only `committed` of a new sink tells whether they are in the topic. After
        a RejectedError, which only an isolating sink raises, they are not: nothing was committed.
        """
        if self._tracing is None:
            self._send(events, batch)
            return
        try:
            self._send(events, batch)
        except BaseException as error:
            self._tracing.end(error)
            raise
        self._tracing.end()

    def _send(self, events: Sequence[Event], batch: int) -> None:
        self._fatal.clear()
        self._rejected.clear()
        try:
            self._producer.begin_transaction()
            for event in events:
                if self._rejected:
                    break
                self._produce(event)
            # The commit waits for the records too, but ends as soon as one is rejected.
            while self._isolate and self._producer.flush(_SLICE_S) and not self._rejected:
                self._check()
        except KafkaException as error:
            raise SinkError(f"producing: {reason_of(error)}") from error
        if self._rejected:
            raise RejectedError(self._rejected)
        offsets = [TopicPartition(PROGRESS_TOPIC, self._shard, batch)]
        metadata = self._group.consumer_group_metadata()
        self._retry(
            "adding the batch number",
            lambda slice_s: self._producer.send_offsets_to_transaction(offsets, metadata, slice_s),
        )
        self._retry("committing", self._producer.commit_transaction)

    def close(self) -> None:
        """Close the sink. The next sink ends an open transaction."""
        # `close` of the producer would wait for the broker to abort the transaction.
        self._producer.purge()
        del self._producer
        self._group.close()

    def _produce(self, event: Event) -> None:
        try:
            headers = None if event.headers is None else decode_headers(event.headers)
        except (TypeError, ValueError, AttributeError) as error:
            self._not_accepted(event, str(error), True, error)
            return
        if self._tracing is not None:
            headers = headers or []
            self._tracing.start(event.topic, event.key, headers)
        while True:
            try:
                self._producer.produce(
                    event.topic,
                    event.value,
                    event.key,
                    _BY_KEY if event.partition is None else event.partition,
                    timestamp=event.created_ms,
                    headers=headers,
                    on_delivery=self._reporter(event) if self._isolate else None,
                )
            except BufferError:
                self._producer.poll(_SLICE_S)
                self._check()
            except KafkaException as error:
                self._not_accepted(event, reason_of(error), _is_final(error_of(error)), error)
                return
            except (TypeError, ValueError, AttributeError) as error:
                self._not_accepted(event, str(error), True, error)
                return
            else:
                return

    def _not_accepted(self, event: Event, reason: str, final: bool, error: Exception) -> None:
        """Handle an event that librdkafka did not accept."""
        if not self._isolate or not (final or self._rejected):
            raise SinkError(f"event {event.id}: {reason}") from error
        if final:
            self._rejected[event.id] = reason

    def _reporter(self, event: Event) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, _message: Message) -> None:
            if error is not None and _is_final(error):
                self._rejected[event.id] = reason_of(error)

        return report

    def _retry(self, what: str, call: Callable[[float], Any]) -> None:
        """Call until it succeeds, fails for good, or the relay stops."""
        while True:
            try:
                call(_SLICE_S)
            except KafkaException as error:
                if not is_retriable(error_of(error)):
                    raise SinkError(f"{what}: {reason_of(error)}") from error
                self._check()
            else:
                return

    def _check(self) -> None:
        if self._fatal:
            raise SinkError(self._fatal[0])
        if self._stopping():
            raise InterruptedSinkError

    def _on_error(self, error: KafkaError) -> None:
        """Keep a fatal error. librdkafka recovers from others."""
        if error.fatal():
            self._fatal.append(reason_of(error))


def decode_headers(column: str) -> list[tuple[str, str | bytes | None]]:
    """Return the column's JSON, an object or a list of pairs, as headers of a record."""
    found = json.loads(column)
    pairs = found.items() if isinstance(found, dict) else found
    return [(name, None if value is None else str(value).encode()) for name, value in pairs]


def _is_final(error: KafkaError) -> bool:
    """Whether Kafka rejects the event each time."""
    return is_rejection(error.code()) or error.code() == KafkaError._INVALID_ARG  # noqa: SLF001
