"""A member that uses kafka-python, which supports the classic protocol only."""

from __future__ import annotations

import time
from collections.abc import Iterable

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition
from reporting import HOLD_POLL_SECONDS, EventReporter, Orders

#: Longer than a rebalance; a poll returns at once if there are records. kafka-python 3.0 never
#: applies its assignment if a poll of the leader ends before the response to its SyncGroup.
POLL_MS = 5000


class Listener(ConsumerRebalanceListener):
    def __init__(self, reporter: EventReporter) -> None:
        self._reporter = reporter

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._reporter.assigned(each.partition for each in assigned)

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._reporter.revoked(each.partition for each in revoked)

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._reporter.lost(each.partition for each in lost)


def commit(
    consumer: KafkaConsumer, reporter: EventReporter, offsets: dict[TopicPartition, int]
) -> None:
    reporter.committing({place.partition: offset for place, offset in offsets.items()})
    try:
        consumer.commit({place: OffsetAndMetadata(each, "", -1) for place, each in offsets.items()})
    except KafkaError as error:
        reporter.refused(repr(error))
    else:
        reporter.committed()


def main() -> None:
    orders, reporter = Orders(), EventReporter()
    consumer = KafkaConsumer(
        bootstrap_servers=orders.bootstrap,
        group_id=orders.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=orders.session_ms,
        heartbeat_interval_ms=orders.heartbeat_ms,
        metadata_max_age_ms=500,
        fetch_max_wait_ms=100,
        max_poll_records=orders.records_max,
    )
    consumer.subscribe([orders.topic], listener=Listener(reporter))
    while not orders.is_stopping:
        found = consumer.poll(timeout_ms=POLL_MS)
        for place, records in found.items():
            for record in records:
                reporter.processed(place.partition, record.offset, record.value)
        if not found:
            continue
        if orders.is_held:
            reporter.holding()
            while orders.is_held:
                time.sleep(HOLD_POLL_SECONDS)
        commit(consumer, reporter, {place: each[-1].offset + 1 for place, each in found.items()})
    consumer.close()


if __name__ == "__main__":
    main()
