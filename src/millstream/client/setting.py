"""The options of producers and consumers, and their librdkafka properties. Pure.

Each option is declared twice on purpose: in a TypedDict, so that editors and type checkers know the
keywords of all clients, and in a dataclass with its default. The options that all clients have are
in `connection.py`. `config` sets librdkafka properties that have no option, and overrides the
others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias

from millstream.client.connection import ConnectionOptions, ConnectionSettings, one_of
from millstream.client.error import UsageError
from millstream.client.producer.partitioner import BY_KEY, Partitioner, function_of
from millstream.client.serializer import (
    AnyDeserializer,
    AnySerializer,
    KeyRead,
    KeySent,
    ValueRead,
    ValueSent,
    deserialize_of,
    serialize_of,
)
from millstream.client.statistic import StatisticsCallback, parsing
from millstream.client.tracing.choice import TracingOption
from millstream.model.sentinel import INT32_MAX

Acks: TypeAlias = Literal["all", 0, 1, "0", "1"]
Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
DeliveryMode: TypeAlias = Literal["at_most_once", "at_least_once", "exactly_once"]
AutoOffsetReset: TypeAlias = Literal["earliest", "latest"]
PartitionsCallback: TypeAlias = Callable[[Any, list[Any]], object]

_COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_DELIVERIES: Final = ("at_most_once", "at_least_once", "exactly_once")
_KIB: Final = 1024


class ClientOptions(ConnectionOptions, total=False):
    """The keywords that producers and consumers share; see `ClientSettings`."""

    on_statistics: StatisticsCallback | None
    statistics_interval: float
    tracing: TracingOption


class ProducerOptions(ClientOptions, Generic[KeySent, ValueSent], total=False):
    """The keywords of `Producer` and `AsyncProducer`; see `ProducerSettings`."""

    acks: Acks
    linger_ms: float
    batch_size: int
    compression_type: Compression
    enable_idempotence: bool
    retries: int
    delivery_timeout: float
    buffer_records: int
    buffer_bytes: int
    buffer_timeout: float
    partitioner: Partitioner
    key_serializer: AnySerializer[KeySent] | None
    value_serializer: AnySerializer[ValueSent] | None
    transactional_id: str | None
    transaction_timeout: float


class ConsumerOptions(ClientOptions, Generic[KeyRead, ValueRead], total=False):
    """The keywords of `Consumer` and `AsyncConsumer`; see `ConsumerSettings`."""

    auto_offset_reset: AutoOffsetReset
    delivery: DeliveryMode
    producer: Any
    commit_interval: float
    key_deserializer: AnyDeserializer[KeyRead] | None
    value_deserializer: AnyDeserializer[ValueRead] | None
    on_assign: PartitionsCallback | None
    on_revoke: PartitionsCallback | None
    on_lost: PartitionsCallback | None
    group_protocol: Literal["classic", "consumer"]
    group_instance_id: str | None
    session_timeout: float | None
    buffer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings(ConnectionSettings):
    """The settings that producers and consumers share."""

    #: A plain function, called with librdkafka's statistics as a dict.
    on_statistics: StatisticsCallback | None = None
    statistics_interval: float = 5.0
    #: OpenTelemetry: True, False or a TracerProvider. By default a client is traced if the program
    #: has set a global tracer provider before.
    tracing: TracingOption = None

    def __post_init__(self) -> None:
        ConnectionSettings.__post_init__(self)
        at_least("statistics_interval", self.statistics_interval, 0.001)
        check_callback("on_statistics", self.on_statistics, "It is called with a dict.")

    @property
    def client_name(self) -> str | None:
        """The client id that librdkafka gets, if any is set."""
        found = self.config.get("client.id", self.client_id)
        return None if found is None else str(found)

    def client_properties(self, servers: str | Sequence[str] | None) -> dict[str, Any]:
        """Return librdkafka's properties of these settings, without `config`."""
        found = self.connection_properties(servers)
        if self.on_statistics is not None:
            found["statistics.interval.ms"] = max(1, int(self.statistics_interval * 1000))
            found["stats_cb"] = parsing(self.on_statistics)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(ClientSettings):
    """The settings of a producer.

    The defaults are safe: a record is delivered once every in-sync replica has it, and retries make
    no duplicates and keep the order.
    """

    acks: Acks = "all"
    #: How long a record may wait for others to share its batch.
    linger_ms: float = 5.0
    batch_size: int = 1_000_000
    compression_type: Compression = "none"
    enable_idempotence: bool = True
    retries: int = INT32_MAX
    #: From `send` until the record expires.
    delivery_timeout: float = 120.0
    #: The limits of the buffer. If it is full, `send` waits up to `buffer_timeout`.
    buffer_records: int = 100_000
    buffer_bytes: int = 64 * 1024 * 1024
    buffer_timeout: float = 60.0
    partitioner: Partitioner = "key"
    key_serializer: AnySerializer[Any] | None = None
    value_serializer: AnySerializer[Any] | None = None
    transactional_id: str | None = None
    transaction_timeout: float = 60.0

    def __post_init__(self) -> None:
        ClientSettings.__post_init__(self)
        for name in ("key_serializer", "value_serializer"):
            serialize_of(name, getattr(self, name))
        one_of("compression_type", self.compression_type, _COMPRESSIONS)
        acks_text(self.acks)
        function_of(self.partitioner)
        for name in ("batch_size", "buffer_records", "buffer_bytes", "delivery_timeout"):
            at_least(name, getattr(self, name), 1)
        for name in ("linger_ms", "buffer_timeout", "retries"):
            at_least(name, getattr(self, name), 0)
        if self.transactional_id is not None and not self.enable_idempotence:
            raise UsageError("A producer with a transactional_id needs enable_idempotence=True.")
        if self.transactional_id is not None and acks_text(self.acks) != "all":
            raise UsageError("A producer with a transactional_id needs acks='all'.")

    def properties(self, servers: str | Sequence[str] | None) -> dict[str, Any]:
        """Return librdkafka's properties."""
        acks = acks_text(self.acks)
        found: dict[str, Any] = {
            **self.client_properties(servers),
            "acks": acks,
            "linger.ms": self.linger_ms,
            "batch.size": self.batch_size,
            "compression.type": self.compression_type,
            "enable.idempotence": self.enable_idempotence and acks == "all",
            "message.send.max.retries": self.retries,
            "message.timeout.ms": int(self.delivery_timeout * 1000),
            "queue.buffering.max.messages": self.buffer_records,
            "queue.buffering.max.kbytes": max(1, self.buffer_bytes // _KIB),
            "partitioner": BY_KEY,
        }
        if self.transactional_id is not None:
            timeout_ms = int(self.transaction_timeout * 1000)
            found |= {
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(found["message.timeout.ms"], timeout_ms),
            }
        return found | dict(self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """The settings of a consumer."""

    arguments: ClassVar[tuple[str, ...]] = ("bootstrap_servers", "topics", "pattern", "group_id")

    #: Where to start in a partition without a committed offset.
    auto_offset_reset: AutoOffsetReset = "earliest"
    #: What happens to records that were being processed when the process died.
    delivery: DeliveryMode = "at_least_once"
    #: The transactional producer of `exactly_once`.
    producer: Any = None
    #: The interval of commits while the application polls. 0: only `commit()` commits.
    commit_interval: float = 5.0
    key_deserializer: AnyDeserializer[Any] | None = None
    value_deserializer: AnyDeserializer[Any] | None = None
    #: Plain functions, called with a `Consumer` and a list of partitions, inside `poll` or while a
    #: handler is slow.
    on_assign: PartitionsCallback | None = None
    on_revoke: PartitionsCallback | None = None
    on_lost: PartitionsCallback | None = None
    group_protocol: Literal["classic", "consumer"] = "classic"
    #: A member that rejoins with the same id within its session keeps its partitions.
    group_instance_id: str | None = None
    session_timeout: float | None = None
    #: About how many bytes are fetched ahead.
    buffer_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        ClientSettings.__post_init__(self)
        for name in ("key_deserializer", "value_deserializer"):
            deserialize_of(name, getattr(self, name))
        one_of("delivery", self.delivery, _DELIVERIES)
        one_of("auto_offset_reset", self.auto_offset_reset, ("earliest", "latest"))
        one_of("group_protocol", self.group_protocol, ("classic", "consumer"))
        at_least("buffer_bytes", self.buffer_bytes, _KIB)
        at_least("commit_interval", self.commit_interval, 0)
        for name in ("on_assign", "on_revoke", "on_lost"):
            what = "It is called with a Consumer, whose methods need no await."
            check_callback(name, getattr(self, name), what)
        is_exact = self.delivery == "exactly_once"
        if is_exact and self.producer is None:
            raise UsageError(
                "delivery='exactly_once' needs producer=Producer(transactional_id=...): what it "
                "sends and the offsets are committed together."
            )
        if self.producer is not None and not is_exact:
            raise UsageError("producer=... is for delivery='exactly_once' only.")

    @property
    def is_cooperative(self) -> bool:
        """Whether a rebalance moves single partitions, rather than revoking all."""
        strategy = self.config.get("partition.assignment.strategy", "cooperative-sticky")
        protocol = self.config.get("group.protocol", self.group_protocol)
        return bool(protocol == "consumer" or strategy == "cooperative-sticky")

    def properties(self, servers: str | Sequence[str] | None, group: str | None) -> dict[str, Any]:
        """Return librdkafka's properties."""
        found: dict[str, Any] = {
            **self.client_properties(servers),
            "group.id": group or "millstream-without-a-group",
            "auto.offset.reset": self.auto_offset_reset,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "group.protocol": self.group_protocol,
            "queued.max.messages.kbytes": self.buffer_bytes // _KIB,
            # After fetching enough ahead, librdkafka pauses for a second by default. A fast reader
            # would starve.
            "fetch.queue.backoff.ms": 10,
        }
        if self.config.get("group.protocol", self.group_protocol) == "classic":
            found["partition.assignment.strategy"] = "cooperative-sticky"
            if self.session_timeout is not None:
                session_ms = int(self.session_timeout * 1000)
                found["session.timeout.ms"] = session_ms
                # The default is 3 s for any session timeout: a short session would expire in
                # between.
                found["heartbeat.interval.ms"] = max(1, min(3000, session_ms // 3))
        if self.group_instance_id is not None:
            found["group.instance.id"] = self.group_instance_id
        return found | dict(self.config)


def acks_text(acks: Acks) -> str:
    """Return `acks` as librdkafka's text, or raise."""
    text = str(acks)
    if text not in ("all", "0", "1"):
        raise UsageError(f"acks={acks!r} is unknown: use 'all', 1 or 0.")
    return text


def at_least(name: str, value: object, minimum: float) -> None:
    """Raise if the value is not a number of at least `minimum`."""
    if not isinstance(value, int | float) or value < minimum:
        raise UsageError(f"{name}={value!r} is out of range: use a number of at least {minimum}.")


def check_callback(name: str, callback: object, what: str) -> None:
    """Raise if the callback is not a plain function. `what` says how it is called."""
    if callback is not None and not callable(callback):
        raise UsageError(f"{name}={callback!r} is not callable: pass a plain function.")
    if inspect.iscoroutinefunction(callback):
        raise UsageError(f"{name}={callback!r} is a coroutine function: pass a plain one. {what}")
