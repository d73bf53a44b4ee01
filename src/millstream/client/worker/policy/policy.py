"""The worker's settings, and the next step after each attempt: done, retry or dead letter. Pure.

returned, ack()                       done
nack(), exception, deadline passed    retry: in place where the order of its key is kept, else
                                      through <topic>.retry.N; a dead letter after the last one
reject(), exception in `fatal`        dead letter
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

from millstream.client.connection import ConnectionOptions, ConnectionSettings, one_of
from millstream.client.error import SerializationError, UsageError
from millstream.client.schedule import TOPIC_CONFIG, parked_topic, scheduled_topic
from millstream.client.serializer import (
    AnyDeserializer,
    AnySerializer,
    PartEncoder,
    deserialize_of,
    encoder_of,
    serialize_of,
)
from millstream.client.setting import ConsumerSettings, ProducerSettings, at_least
from millstream.client.tracing.choice import TracingOption
from millstream.client.worker.message.header import dead_letter_topic, retry_topic
from millstream.client.worker.policy.breaker import Breaker
from millstream.client.worker.policy.rate_limit import RateLimit

Order: TypeAlias = Literal["key", "none"]
OnExpired: TypeAlias = Literal["drop", "dead_letter"]
#: Of keys and of values.
Encoders: TypeAlias = tuple[PartEncoder | None, PartEncoder | None]
_LEVELS_MAX: Final = 5
#: Client options that the worker sets itself.
_CONSUMER_OWN: Final = ("delivery", "producer", "commit_interval", "on_revoke", "on_lost")
_PRODUCER_OWN: Final = ("transactional_id",)


class WorkerOptions(ConnectionOptions, total=False):
    """The keywords of `Worker`; see `WorkerSettings`."""

    key_deserializer: AnyDeserializer[Any] | None
    value_deserializer: AnyDeserializer[Any] | None
    key_serializer: AnySerializer[Any] | None
    value_serializer: AnySerializer[Any] | None
    order: Order
    concurrency: int
    attempts_max: int
    backoff: float
    backoff_max: float
    visibility_timeout: float
    fatal: tuple[type[BaseException], ...]
    transactional: bool
    name: str | None
    window: int
    window_bytes: int
    commit_interval: float | None
    drain_timeout: float
    breaker: Breaker | None
    ttl: float | None
    on_expired: OnExpired
    priorities: Mapping[str, float]
    rate_limit: str | None
    create_topics: bool
    tracing: TracingOption
    consumer: dict[str, Any]
    producer: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(ConnectionSettings):
    """The settings of a worker, checked."""

    arguments: ClassVar[tuple[str, ...]] = ("bootstrap_servers", "topics", "group_id", "handler")

    #: Decode the keys and values of the messages.
    key_deserializer: AnyDeserializer[Any] | None = None
    value_deserializer: AnyDeserializer[Any] | None = None
    #: Encode what handlers send. Retried messages and dead letters keep their bytes.
    key_serializer: AnySerializer[Any] | None = None
    value_serializer: AnySerializer[Any] | None = None
    #: `key`: messages of one key run one after the other, and each is done, or a dead letter,
    #: before the next starts. `none`: all run at once, and failed ones wait in retry topics.
    order: Order = "key"
    #: Handlers that run at once: threads, or tasks if a handler is a coroutine function.
    concurrency: int = 16
    attempts_max: int = 5
    #: The delay before the second attempt is random, up to this. The bound doubles with each
    #: attempt.
    backoff: float = 1.0
    backoff_max: float = 300.0
    #: A handler that has not returned by then has failed. `extend()` gives it more time.
    visibility_timeout: float = 300.0
    #: Exceptions that a retry cannot help.
    fatal: tuple[type[BaseException], ...] = (SerializationError,)
    #: Commit the records of `job.send`, moved messages and offsets in one transaction.
    transactional: bool = False
    #: Distinguishes the workers of a group. A worker that restarts with its name ends the
    #: transaction that it left open at once, not after a timeout.
    name: str | None = None
    #: Messages of a partition that are held at once, without those that are not due.
    window: int = 10_000
    #: Bytes of messages that are held at once, divided evenly among the partitions. The consumer
    #: fetches up to its `buffer_bytes` in addition.
    window_bytes: int = 256 * 1024 * 1024
    commit_interval: float | None = None
    #: How long to wait for running handlers at shutdown, and when partitions are revoked.
    drain_timeout: float = 30.0
    breaker: Breaker | None = None
    #: Seconds after its timestamp in which the first attempt at a message must start, and each
    #: further one. The header `millstream.ttl` of a message, in seconds, takes precedence.
    ttl: float | None = None
    #: What happens to a message whose time to live has ended. `drop`: it counts as processed.
    on_expired: OnExpired = "drop"
    #: Weights of topics. While several topics have messages, starts are divided by weight. A topic
    #: that is not named has weight 1.
    priorities: Mapping[str, float] = field(default_factory=dict)
    #: Attempts that may start in this process, for example "100/s". Each process counts by itself.
    rate_limit: str | None = None
    create_topics: bool = True
    #: OpenTelemetry: True, False or a TracerProvider. By default a worker is traced if the program
    #: has set a global tracer provider before.
    tracing: TracingOption = None
    #: Further options of the consumer and the producer. They override the worker's. They may be
    #: secrets.
    consumer: dict[str, Any] = field(default_factory=dict, repr=False)
    producer: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        ConnectionSettings.__post_init__(self)
        for name in ("key_deserializer", "value_deserializer"):
            deserialize_of(name, getattr(self, name))
        for name in ("key_serializer", "value_serializer"):
            serialize_of(name, getattr(self, name))
        one_of("order", self.order, ("key", "none"))
        for name in ("concurrency", "attempts_max", "window", "window_bytes"):
            at_least(name, getattr(self, name), 1)
        for name in ("backoff", "backoff_max", "drain_timeout"):
            at_least(name, getattr(self, name), 0)
        at_least("visibility_timeout", self.visibility_timeout, 0.001)
        if self.breaker is not None and not isinstance(self.breaker, Breaker):
            raise UsageError(f"breaker={self.breaker!r}: pass a Breaker(...).")
        one_of("on_expired", self.on_expired, ("drop", "dead_letter"))
        if self.ttl is not None:
            at_least("ttl", self.ttl, 0.001)
        for topic, weight in self.priorities.items():
            at_least(f"priorities[{topic!r}]", weight, 0.001)
        if self.rate_limit is not None:
            RateLimit(self.rate_limit)
        _reject_options("consumer", self.consumer, _CONSUMER_OWN)
        _reject_options("producer", self.producer, _PRODUCER_OWN)
        ConsumerSettings.of(self.consumer)
        ProducerSettings.of(self.producer)

    def numbered(self, number: int) -> Self:
        """Return the settings of one of several processes: its names end with its number."""
        name = None if self.name is None else f"{self.name}-{number}"
        consumer = dict(self.consumer)
        if consumer.get("group_instance_id") is not None:
            consumer["group_instance_id"] = f"{consumer['group_instance_id']}-{number}"
        return dataclasses.replace(self, name=name, consumer=consumer)

    @property
    def encoders(self) -> Encoders:
        """The encoders of keys and values that handlers send."""
        key = self.producer.get("key_serializer", self.key_serializer)
        value = self.producer.get("value_serializer", self.value_serializer)
        return encoder_of("key", key), encoder_of("value", value)

    @property
    def consumer_options(self) -> dict[str, Any]:
        """The consumer's options."""
        deserializers = {
            "key_deserializer": self.key_deserializer,
            "value_deserializer": self.value_deserializer,
        }
        return self._with_connection(deserializers | self.consumer)

    @property
    def producer_options(self) -> dict[str, Any]:
        """The producer's options without serializers: `Job.send` applies them, and other records
        are bytes already.
        """
        serializers = ("key_serializer", "value_serializer")
        own = {name: option for name, option in self.producer.items() if name not in serializers}
        return self._with_connection(own)

    @property
    def admin_options(self) -> dict[str, Any]:
        """The options of the client that creates topics. It connects as the consumer does."""
        names = {each.name for each in dataclasses.fields(ConnectionSettings)}
        found = self._with_connection(self.consumer)
        return {name: option for name, option in found.items() if name in names}

    def _with_connection(self, options: Mapping[str, Any]) -> dict[str, Any]:
        config = {**self.config, **options.get("config", {})}
        return {**self.connection_options(), **options, "config": config}

    @property
    def interval_s(self) -> float:
        """Seconds between commits. Readers see a transaction's output only after its commit."""
        if self.commit_interval is not None:
            return self.commit_interval
        return 0.1 if self.transactional else 1.0

    @property
    def levels(self) -> int:
        """The number of retry topics per topic."""
        return 0 if self.order == "key" else min(self.attempts_max - 1, _LEVELS_MAX)

    def own_topics(self, topic: str) -> list[str]:
        """Return the topics that a worker reads in addition to `topic`."""
        levels = range(1, self.levels + 1)
        retries = (retry_topic(topic, level) for level in levels)
        return [*retries, scheduled_topic(topic), parked_topic(topic)]

    def topic_config(self, name: str) -> dict[str, str]:
        """Return the config of a topic that the worker creates. Dead letters are kept forever."""
        if name.endswith(dead_letter_topic("")):
            return {"retention.ms": "-1"}
        is_delayed = name.endswith((scheduled_topic(""), parked_topic("")))
        return dict(TOPIC_CONFIG) if is_delayed else {}

    def created_topics(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the topics that the worker creates, each with the topic whose partition count it
        copies.
        """
        return {
            name: topic
            for topic in topics
            for name in (*self.own_topics(topic), dead_letter_topic(topic))
        }


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How an attempt ended."""

    kind: Literal["ack", "nack", "reject"]
    delay_s: float | None = None
    error: BaseException | str | None = None


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do with a message: nothing more, wait in place, move to a topic, dead letter."""

    kind: Literal["done", "wait", "move", "dead_letter"]
    delay_s: float = 0.0
    topic: str = ""


def next_step(
    settings: WorkerSettings, topic: str, attempts: int, result: AttemptResult
) -> NextStep:
    """Return what follows the last of `attempts` attempts at a message of `topic`."""
    if result.kind == "ack":
        return NextStep("done")
    is_fatal = isinstance(result.error, settings.fatal)
    if result.kind == "reject" or is_fatal or attempts >= settings.attempts_max:
        return NextStep("dead_letter")
    delay_s = result.delay_s
    if delay_s is None:
        delay_s = backoff_s(settings, attempts)
    if settings.order == "key":
        return NextStep("wait", delay_s)
    return NextStep("move", delay_s, retry_topic(topic, min(attempts, settings.levels)))


def backoff_s(settings: WorkerSettings, attempts: int) -> float:
    """Return a random delay up to a bound that doubles with each attempt, so that messages that
    failed together spread out.
    """
    bound = min(settings.backoff_max, settings.backoff * 2.0 ** min(attempts - 1, 60))
    return random.uniform(0.0, bound)


def _reject_options(name: str, options: dict[str, Any], own: Sequence[str]) -> None:
    for each in own:
        if each in options:
            raise UsageError(f"{name}={{{each!r}: ...}}: the worker sets {each!r} itself.")
