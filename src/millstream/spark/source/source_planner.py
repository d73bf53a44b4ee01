"""Resolves `SourceOptions` with the cluster: the partitions to read, and their offsets.

The planner reports named offsets outside the log as data loss. Readers detect all other data loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from millstream.model.acl import Operation
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition
from millstream.protocol.cluster_client import ClusterClient, TopicMetadata
from millstream.spark.error import OptionError, UnknownTopic
from millstream.spark.source.data_loss import DataLossPolicy
from millstream.spark.source.offset_position import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    OffsetPosition,
    PositionKind,
)
from millstream.spark.source.offset_range import OffsetRange
from millstream.spark.source.source_options import SourceOptions
from millstream.wire.messages.list_offsets import EARLIEST, LATEST

Offsets = dict[TopicPartition, int]


class SourcePlanner:
    """Finds partitions and offsets for one reader. Holds no state."""

    def __init__(self, cluster: ClusterClient, options: SourceOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._loss = DataLossPolicy(options.fail_on_data_loss)

    def topics(self) -> list[TopicMetadata]:
        """Return the present topics of the query. Raises UnknownTopic if one does not exist."""
        found = self.found_topics()
        for name in self._names():
            if not any(topic.name == name for topic in found):
                raise UnknownTopic(
                    f"{self._option_name()} names topic {name}, which does not exist"
                )
        return found

    def found_topics(self) -> list[TopicMetadata]:
        """Return the topics of the query that exist. Raises BrokerError if the user may not read
        one of them."""
        found = self._existing()
        # The tasks would fail too, but later, each of them, and in other processes.
        for topic in found:
            if not topic.allows(Operation.READ):
                raise BrokerError(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    f"the user may not read topic {topic.name}: it needs an ACL for the operation"
                    " Read",
                )
        return found

    def _existing(self) -> list[TopicMetadata]:
        pattern = self._options.subscription.pattern
        if pattern is None:
            return self._cluster.existing_topics(self._names())
        matches = re.compile(pattern).fullmatch
        found = self._cluster.topics(None)
        return [topic for topic in found if matches(topic.name) and not topic.is_internal]

    def partitions(self, topics: Iterable[TopicMetadata]) -> set[TopicPartition]:
        """Return the partitions to read. Raises OptionError if an assigned one does not exist."""
        there = {
            TopicPartition(topic.name, partition) for topic in topics for partition in topic.leaders
        }
        assigned = set(self._options.subscription.partitions)
        if not assigned:
            return there
        names = {key.topic for key in there}
        for key in sorted(assigned - there):
            if key.topic in names:
                raise OptionError(f"assign names {key}, but {key.topic} has no such partition")
        return assigned & there

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._cluster.list_offsets(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the end offsets that the isolation level allows to read."""
        return self._cluster.list_offsets(
            dict.fromkeys(partitions, LATEST), self._options.fetch.is_committed
        )

    def at_time(self, timestamps: Mapping[TopicPartition, int]) -> Offsets:
        """Return the first offset at or after each timestamp. Partitions without one are absent."""
        found = self._cluster.list_offsets(timestamps, self._options.fetch.is_committed)
        return {key: offset for key, offset in found.items() if offset >= 0}

    def since(self, ranges: list[OffsetRange], timestamp_ms: int) -> list[OffsetRange]:
        """Return the ranges from the first record at or after the timestamp."""
        found = self.at_time({one.key: timestamp_ms for one in ranges})
        moved = [
            replace(one, start=max(one.start, found[one.key])) for one in ranges if one.key in found
        ]
        return [one for one in moved if one.size]

    def start(self, partitions: set[TopicPartition]) -> Offsets:
        """Return the start offsets."""
        return self._resolve(
            self._options.starting, partitions, self._options.is_timestamp_required
        )

    def end(self, partitions: set[TopicPartition]) -> Offsets:
        """Return the end offsets of a batch."""
        return self._resolve(self._options.ending, partitions, is_timestamp_required=False)

    def _names(self) -> list[str]:
        subscription = self._options.subscription
        return sorted(subscription.topics or {key.topic for key in subscription.partitions})

    def _option_name(self) -> str:
        return "assign" if self._options.subscription.partitions else "subscribe"

    def _resolve(
        self, position: OffsetPosition, partitions: set[TopicPartition], is_timestamp_required: bool
    ) -> Offsets:
        position.check_partitions(partitions)
        if position.kind is PositionKind.EARLIEST:
            return self.earliest(partitions)
        if position.kind is PositionKind.LATEST:
            return self.latest(partitions)
        if position.kind is PositionKind.OFFSETS:
            return self._given_offsets(position)
        if position.kind is PositionKind.TIMESTAMP:
            return self._offsets_by_time(
                position, dict.fromkeys(partitions, position.timestamp_ms), is_timestamp_required
            )
        return self._offsets_by_time(position, position.values, is_timestamp_required)

    def _given_offsets(self, position: OffsetPosition) -> Offsets:
        """Return the offsets of the option, limited to the log. Reports offsets outside the log."""
        earliest = self.earliest(position.values)
        latest = self.latest(position.values)
        found = {}
        for key, value in sorted(position.values.items()):
            first, last = earliest[key], latest[key]
            named = {EARLIEST_OFFSET: first, LATEST_OFFSET: last}.get(value, value)
            found[key] = min(max(named, first), last)
            if found[key] != named:
                self._loss.report(
                    f"{position.option} has offset {named} for {key}, but its log has offsets"
                    f" {first} to {last - 1}."
                )
        return found

    def _offsets_by_time(
        self, position: OffsetPosition, timestamps: Mapping[TopicPartition, int], is_required: bool
    ) -> Offsets:
        found = self.at_time(timestamps)
        missing = sorted(set(timestamps) - set(found))
        if missing and is_required:
            key = missing[0]
            raise OptionError(
                f"{position.option}: {key} has no record at or after {timestamps[key]} ms, nor do"
                f" {len(missing) - 1} other partitions; with startingOffsetsByTimestampStrategy"
                " latest they start at the latest offset"
            )
        return found | self.latest(missing)
