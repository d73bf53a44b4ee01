"""Dead letters in the metrics: how many the topics named `*.dlq` hold, and the age of the oldest.

Derived from offsets and the header of each partition's first batch; no record is read. So a letter
that was replayed counts until it is purged, and a transaction marker counts as a letter. Only
partitions led here are counted. Topics beyond `TOPICS_MAX` have no rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millstream.broker.metrics.broker_metrics import Metrics
from millstream.broker.metrics.exposition import LabelValues
from millstream.broker.metrics.label_budget import LabelBudget
from millstream.env.clock import Clock
from millstream.log.reading import backlog
from millstream.model.error import BrokerError
from millstream.replication.partition import Partition
from millstream.replication.replicas import Replicas

_logger = logging.getLogger(__name__)

SUFFIX: Final = ".dlq"
TOPICS_MAX: Final = 500
_PARTITIONS_PER_TURN: Final = 1000


@dataclass(slots=True)
class Letters:
    """The dead letters of one topic, in its partitions led here."""

    count: int = 0
    #: When the oldest was written; None if there is none, or its timestamp is unknown.
    since_ms: int | None = None

    def add(self, count: int, since_ms: int | None) -> None:
        self.count += count
        if since_ms is not None:
            self.since_ms = since_ms if self.since_ms is None else min(self.since_ms, since_ms)


class DeadLetters:
    """The dead letters of each topic as of the last `refresh`. Event loop only."""

    __slots__ = ("_budget", "_clock", "_replicas", "failures", "topics")

    def __init__(self, replicas: Replicas, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock
        self._budget = LabelBudget(TOPICS_MAX)
        self.topics: dict[str, Letters] = {}
        self.failures = 0

    async def refresh(self) -> None:
        """Count the letters of all dead-letter topics, in slices that yield to the loop."""
        found: dict[str, Letters] = {}
        for number, partition in enumerate(list(self._replicas), 1):
            topic = partition.topic_partition.topic
            if topic.endswith(SUFFIX) and partition.is_leader and self._budget.reserve(topic):
                found.setdefault(topic, Letters()).add(*self._letters_in(partition))
            if number % _PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._budget.end_round()
        self.topics = found

    def _letters_in(self, partition: Partition) -> tuple[int, int | None]:
        log = partition.log
        start, end = log.log_start_offset, partition.high_watermark
        if start >= end:
            return 0, None
        was_loaded = log.is_loaded
        try:
            first = backlog.first_unread_batch(log, start, end)
        except (BrokerError, OSError) as error:
            self.failures += 1
            _logger.warning(
                "cannot read the age of the dead letters in %s: %s",
                partition.topic_partition,
                error,
            )
            return end - start, None
        finally:
            if not was_loaded:
                log.unload()
        return (0, None) if first is None else (end - start, first.timestamp_ms)

    def counts(self) -> Iterator[tuple[LabelValues, float]]:
        """Yield the number of letters of each topic."""
        for topic, letters in self.topics.items():
            yield (topic,), letters.count

    def ages(self) -> Iterator[tuple[LabelValues, float]]:
        """Yield the age of the oldest letter: zero without letters, no row if it is unknown."""
        now_ms = self._clock.wall_ms()
        for topic, letters in self.topics.items():
            if letters.since_ms is not None:
                yield (topic,), max(now_ms - letters.since_ms, 0) / 1000
            elif not letters.count:
                yield (topic,), 0.0


def show_dead_letters(metrics: Metrics, letters: DeadLetters) -> None:
    metrics.add_rows(
        "dead_letters",
        "gauge",
        "Letters in a dead-letter topic, including letters that were replayed and not purged.",
        ("topic",),
        letters.counts,
    )
    metrics.add_rows(
        "dead_letters_oldest_age_seconds",
        "gauge",
        "Time since the oldest letter of a dead-letter topic was written.",
        ("topic",),
        letters.ages,
    )
