"""Carries out subscriptions: joins the group with them, or assigns all partitions of the topics."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import Consumer as RdKafkaConsumer

from millstream.client.connection_error import ConnectionErrors
from millstream.client.consumer.assignment import Assignment
from millstream.client.consumer.consumer_handle import (
    RESPONSE_S_MAX,
    SLICE_S,
    partitions_of,
    topics_in,
)
from millstream.client.consumer.fetcher import Fetcher
from millstream.client.consumer.subscription import Subscription
from millstream.client.error import TimedOut, UsageError


class Subscriber:
    """The subscription of one consumer. Its caller holds the core's lock.

    `offset` is where partitions start if there is no group: one of librdkafka's numbers for the
    ends.
    """

    def __init__(
        self,
        handle: RdKafkaConsumer,
        assignment: Assignment,
        fetcher: Fetcher,
        errors: ConnectionErrors,
        *,
        offset: int | None,
    ) -> None:
        self._handle = handle
        self._assignment = assignment
        self._fetcher = fetcher
        self._errors = errors
        self._offset = offset

    def check(self) -> None:
        """Raise if the subscription cannot change now."""
        if self._assignment.is_rebalancing:
            raise UsageError(
                "subscribe() and unsubscribe() cannot be called in a callback of a rebalance: call "
                "them after poll()."
            )

    def subscribe(self, subscription: Subscription) -> None:
        """Replace the subscription. Without a group this waits for the brokers."""
        if self._offset is None:
            self._assignment.subscribe(subscription.names)
            return
        topics: Sequence[str] = subscription.topics
        with self._errors.explaining():
            if subscription.pattern is not None:
                topics = subscription.matching(topics_in(self._handle))
            found = partitions_of(self._handle, topics)
        self._assignment.assign_only(found, self._offset)

    def unsubscribe(self) -> None:
        """Give up all partitions, and wait until they are revoked."""
        if self._offset is not None:
            self._assignment.assign_only((), self._offset)
            return
        self._assignment.unsubscribe()
        deadline = time.monotonic() + RESPONSE_S_MAX
        while self._assignment.partitions:
            if time.monotonic() > deadline:
                raise TimedOut("Unsubscribing: the partitions were not revoked in time. Try again.")
            self._fetcher.serve(SLICE_S)
        self._fetcher.raise_pending_error()
