"""What becomes of a message after an attempt. Pure.

returned, ack()                       done
nack(), exception, deadline passed    again: in place where the order of its key is kept, else
                                      through <topic>.retry.N; as a dead letter after the last
reject(), exception in `fatal`        dead letter
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypedDict

from millstream.client.error import SerializationError, UsageError
from millstream.client.schedule import TOPIC_CONFIG, parked_topic, scheduled_topic
from millstream.client.serializer import Serializer
from millstream.client.setting import (
    Checked,
    ConsumerSettings,
    ProducerSettings,
    at_least,
    one_of,
)
from millstream.client.worker.breaker import Breaker
from millstream.client.worker.header import dead_letter_topic, retry_topic

Order: TypeAlias = Literal["key", "none"]
Serializers: TypeAlias = tuple[Serializer | None, Serializer | None]
_LEVELS_MAX: Final = 5
#: Options of the clients that the worker sets itself.
_CONSUMER_OWN: Final = ("delivery", "producer", "commit_interval_s", "on_revoke", "on_lost")
_PRODUCER_OWN: Final = ("transactional_id",)


class WorkerOptions(TypedDict, total=False):
    """The keywords of `Worker`; see `WorkerSettings`."""

    order: Order
    concurrency: int
    attempts_max: int
    backoff_s: float
    backoff_s_max: float
    visibility_s: float
    fatal: tuple[type[BaseException], ...]
    transactional: bool
    name: str | None
    window: int
    window_bytes: int
    commit_interval_s: float | None
    drain_s: float
    breaker: Breaker | None
    create_topics: bool
    consumer: dict[str, Any]
    producer: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(Checked):
    #: `key`: messages of one key one after the other, each finished, failed ones included, before
    #: the next. `none`: all at once, failed ones wait in retry topics.
    order: Order = "key"
    #: Handlers that run at once: threads, or tasks if the handler is a coroutine function.
    concurrency: int = 16
    attempts_max: int = 5
    #: The wait before the second attempt is random, up to this; the bound doubles each time.
    backoff_s: float = 1.0
    backoff_s_max: float = 300.0
    #: A handler that has not come back by then has failed; `extend()` gives it more time.
    visibility_s: float = 300.0
    #: Trying again would not help.
    fatal: tuple[type[BaseException], ...] = (SerializationError,)
    #: What handlers send with `job.send`, moves and commits are one transaction.
    transactional: bool = False
    #: Tells workers of a group apart. One that comes back under its name ends the transaction that
    #: it left at once, and not after a timeout.
    name: str | None = None
    #: Messages of a partition that are held at once, those that wait for a time not counted.
    window: int = 10_000
    #: Bytes of messages that are held at once, divided evenly among the partitions. The consumer
    #: fetches up to its `buffer_bytes` beyond that.
    window_bytes: int = 256 * 1024 * 1024
    commit_interval_s: float | None = None
    #: How long running handlers are waited for at the end, and when partitions are given away.
    drain_s: float = 30.0
    breaker: Breaker | None = None
    create_topics: bool = True
    #: Further options of the consumer and the producer. The producer's serializers are for what
    #: handlers send; messages that are retried, and dead letters, keep their bytes.
    consumer: dict[str, Any] = field(default_factory=dict)
    producer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one_of("order", self.order, ("key", "none"))
        for name in ("concurrency", "attempts_max", "window", "window_bytes"):
            at_least(name, getattr(self, name), 1)
        for name in ("backoff_s", "backoff_s_max", "drain_s"):
            at_least(name, getattr(self, name), 0)
        at_least("visibility_s", self.visibility_s, 0.001)
        if self.breaker is not None and not isinstance(self.breaker, Breaker):
            raise UsageError(f"breaker={self.breaker!r}: give a Breaker(...).")
        _refuse("consumer", self.consumer, _CONSUMER_OWN)
        _refuse("producer", self.producer, _PRODUCER_OWN)
        ConsumerSettings.of(self.consumer)
        ProducerSettings.of(self.producer)

    @property
    def serializers(self) -> Serializers:
        """Of the keys and values that handlers send."""
        return self.producer.get("key_serializer"), self.producer.get("value_serializer")

    @property
    def producer_options(self) -> dict[str, Any]:
        """Without serializers: `Job.send` applies them, and moved messages are bytes already."""
        taken = ("key_serializer", "value_serializer")
        return {name: option for name, option in self.producer.items() if name not in taken}

    @property
    def interval_s(self) -> float:
        """Between commits. A transaction's output is seen only after its commit."""
        if self.commit_interval_s is not None:
            return self.commit_interval_s
        return 0.1 if self.transactional else 1.0

    @property
    def levels(self) -> int:
        """Retry topics of each topic."""
        return 0 if self.order == "key" else min(self.attempts_max - 1, _LEVELS_MAX)

    def topics_beside(self, topic: str) -> list[str]:
        """What a worker reads beside a topic."""
        levels = range(1, self.levels + 1)
        retries = (retry_topic(topic, level) for level in levels)
        return [*retries, scheduled_topic(topic), parked_topic(topic)]

    def topic_config(self, made: str) -> dict[str, str]:
        """Of a topic that the worker makes. Dead letters are kept for good."""
        if made.endswith(dead_letter_topic("")):
            return {"retention.ms": "-1"}
        is_later = made.endswith((scheduled_topic(""), parked_topic("")))
        return dict(TOPIC_CONFIG) if is_later else {}

    def topics_made(self, topics: Sequence[str]) -> dict[str, str]:
        """The topics that have to be there, each with the one whose partitions it takes after."""
        return {
            made: topic
            for topic in topics
            for made in (*self.topics_beside(topic), dead_letter_topic(topic))
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended."""

    kind: Literal["ack", "nack", "reject"]
    delay_s: float | None = None
    error: BaseException | str | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """What to do with a message: nothing more, wait in place, move to a topic, bury."""

    kind: Literal["done", "wait", "move", "bury"]
    delay_s: float = 0.0
    topic: str = ""


def next_of(settings: WorkerSettings, topic: str, attempts: int, verdict: Verdict) -> Next:
    """`attempts` have been made of a message of `topic`, the last ended with `verdict`."""
    if verdict.kind == "ack":
        return Next("done")
    is_fatal = isinstance(verdict.error, settings.fatal)
    if verdict.kind == "reject" or is_fatal or attempts >= settings.attempts_max:
        return Next("bury")
    delay_s = verdict.delay_s
    if delay_s is None:
        delay_s = backoff_s(settings, attempts)
    if settings.order == "key":
        return Next("wait", delay_s)
    return Next("move", delay_s, retry_topic(topic, min(attempts, settings.levels)))


def backoff_s(settings: WorkerSettings, attempts: int) -> float:
    """Full jitter: anywhere up to a bound that doubles, so that what failed together parts."""
    bound = min(settings.backoff_s_max, settings.backoff_s * 2.0 ** min(attempts - 1, 60))
    return random.uniform(0.0, bound)


def _refuse(name: str, options: dict[str, Any], own: Sequence[str]) -> None:
    for each in own:
        if each in options:
            raise UsageError(f"{name}={{{each!r}: ...}}: the worker sets {each!r} itself.")
