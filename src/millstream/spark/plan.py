"""Asks the cluster what options leave open: which partitions there are, and which offsets.

Owns the way from `SourceOptions` to offsets by partition. Whether records are missing is decided
by its callers; here it is only found out that a topic or an offset is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from millstream.model.error import BrokerError, ErrorCode
from millstream.spark.connection.cluster import Cluster, Topic, TopicPartition
from millstream.spark.error import OptionError
from millstream.spark.options import SourceOptions
from millstream.spark.position import EARLIEST_OFFSET, LATEST_OFFSET, Kind, Position
from millstream.wire.messages.list_offsets import EARLIEST, LATEST

Offsets = dict[TopicPartition, int]


class Planner:
    """Finds partitions and offsets for one reader. Remembers nothing."""

    def __init__(self, cluster: Cluster, options: SourceOptions) -> None:
        self._cluster = cluster
        self._options = options

    def topics(self) -> list[Topic]:
        """The topics that are read, as they are now. Raises OptionError for one there is not."""
        subscription = self._options.subscription
        if subscription.pattern is not None:
            matches = re.compile(subscription.pattern).fullmatch
            found = self._cluster.topics(None)
            return [topic for topic in found if matches(topic.name) and not topic.is_internal]
        names = subscription.topics or tuple({key.topic for key in subscription.partitions})
        return [self._topic(name) for name in sorted(names)]

    def partitions(self, topics: Iterable[Topic]) -> set[TopicPartition]:
        """The partitions of `topics` that are read."""
        there = {
            TopicPartition(topic.name, partition) for topic in topics for partition in topic.leaders
        }
        assigned = set(self._options.subscription.partitions)
        if not assigned:
            return there
        for key in sorted(assigned - there):
            raise OptionError(f"assign names {key}, but topic {key.topic} has no such partition")
        return assigned

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._cluster.list_offsets(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The ends of what may be read."""
        return self._cluster.list_offsets(
            dict.fromkeys(partitions, LATEST), self._options.fetch.is_committed
        )

    def at_time(self, timestamps: Mapping[TopicPartition, int]) -> Offsets:
        """The first offset that is at least as late as the timestamp; absent where none is."""
        found = self._cluster.list_offsets(timestamps, self._options.fetch.is_committed)
        return {key: offset for key, offset in found.items() if offset >= 0}

    def start(self, partitions: set[TopicPartition]) -> Offsets:
        """Where reading begins."""
        return self._resolve(
            self._options.starting, partitions, self._options.is_timestamp_required
        )

    def end(self, partitions: set[TopicPartition]) -> Offsets:
        """Where a batch ends."""
        return self._resolve(self._options.ending, partitions, is_timestamp_required=False)

    def _topic(self, name: str) -> Topic:
        try:
            (topic,) = self._cluster.topics([name])
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            way = "assign" if self._options.subscription.partitions else "subscribe"
            raise OptionError(f"{way} names topic {name}, which does not exist") from error
        return topic

    def _resolve(
        self, position: Position, partitions: set[TopicPartition], is_timestamp_required: bool
    ) -> Offsets:
        position.check_partitions(partitions)
        if position.kind is Kind.EARLIEST:
            return self.earliest(partitions)
        if position.kind is Kind.LATEST:
            return self.latest(partitions)
        if position.kind is Kind.OFFSETS:
            return self._named(position.values)
        if position.kind is Kind.TIMESTAMP:
            return self._timed(
                position, dict.fromkeys(partitions, position.timestamp_ms), is_timestamp_required
            )
        return self._timed(position, position.values, is_timestamp_required)

    def _named(self, values: Mapping[TopicPartition, int]) -> Offsets:
        earliest = self.earliest(key for key, value in values.items() if value == EARLIEST_OFFSET)
        latest = self.latest(key for key, value in values.items() if value == LATEST_OFFSET)
        return dict(values) | earliest | latest

    def _timed(
        self, position: Position, timestamps: Mapping[TopicPartition, int], is_required: bool
    ) -> Offsets:
        found = self.at_time(timestamps)
        missing = sorted(set(timestamps) - set(found))
        if missing and is_required:
            key = missing[0]
            raise OptionError(
                f"{position.option}: {key} has no record at or after {timestamps[key]} ms, nor do"
                f" {len(missing) - 1} other partitions; with startingOffsetsByTimestampStrategy"
                " latest they start at their ends"
            )
        return found | self.latest(missing)
