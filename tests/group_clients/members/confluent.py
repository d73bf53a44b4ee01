"""A member that uses confluent-kafka, in either protocol."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from reporting import HOLD_POLL_SECONDS, POLL_SECONDS, EventReporter, Orders


def settings_of(orders: Orders) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": orders.bootstrap,
        "group.id": orders.group,
        "group.protocol": orders.protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 500,
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.max.ms": 200,
    }
    if orders.protocol == "classic":
        settings["session.timeout.ms"] = orders.session_ms
        settings["heartbeat.interval.ms"] = orders.heartbeat_ms
        settings["partition.assignment.strategy"] = orders.assignor or "cooperative-sticky"
    if orders.instance_id is not None:
        settings["group.instance.id"] = orders.instance_id
    return settings


def place_of(message: Message) -> tuple[int, int]:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


class Member:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._reporter = EventReporter()
        self._consumer = Consumer(settings_of(orders))
        #: Records since the last commit, and the offsets to commit. A rejected commit is retried
        #: while the member owns the partition.
        self._received: list[Message] = []
        self._uncommitted: dict[int, int] = {}

    def run(self) -> None:
        self._consumer.subscribe(
            [self._orders.topic],
            on_assign=lambda _, places: self._reporter.assigned(each.partition for each in places),
            on_revoke=self._revoke,
            on_lost=self._lose,
        )
        while not self._orders.is_stopping:
            message = self._consumer.poll(POLL_SECONDS)
            if message is not None:
                self._receive(message)
            if message is None or len(self._received) >= self._orders.records_max:
                self._finish()
        self._finish()
        self._consumer.close()

    def _receive(self, message: Message) -> None:
        if message.error() is not None:
            raise KafkaException(message.error())
        partition, offset = place_of(message)
        self._uncommitted[partition] = offset + 1
        self._received.append(message)
        if self._orders.commit == "after":
            self._process(message)

    def _process(self, message: Message) -> None:
        self._reporter.processed(*place_of(message), message.value())

    def _finish(self) -> None:
        """Process and commit the records, in the order that the options say."""
        if not self._uncommitted:
            return
        received, self._received = self._received, []
        if self._orders.commit == "after":
            self._hold()
            self._commit()
        elif self._commit():
            self._hold()
            for message in received:
                self._process(message)
        else:
            raise SystemExit("a member that commits first cannot continue after a rejected commit")

    def _hold(self) -> None:
        if self._orders.is_held:
            self._reporter.holding()
            while self._orders.is_held:
                time.sleep(HOLD_POLL_SECONDS)

    def _commit(self) -> bool:
        self._reporter.committing(self._uncommitted)
        topic = self._orders.topic
        places = [TopicPartition(topic, *place) for place in self._uncommitted.items()]
        try:
            responses = self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            self._reporter.refused(error)
            return False
        failures = [str(each.error) for each in responses or () if each.error is not None]
        if failures:
            self._reporter.refused(failures)
            return False
        self._reporter.committed()
        self._uncommitted.clear()
        return True

    def _revoke(self, _: Consumer, places: list[TopicPartition]) -> None:
        self._finish()
        self._give_up(places)
        self._reporter.revoked(each.partition for each in places)

    def _lose(self, _: Consumer, places: list[TopicPartition]) -> None:
        self._give_up(places)
        self._reporter.lost(each.partition for each in places)

    def _give_up(self, places: list[TopicPartition]) -> None:
        gone = {each.partition for each in places}
        self._received = [each for each in self._received if each.partition() not in gone]
        for number in gone & self._uncommitted.keys():
            del self._uncommitted[number]


if __name__ == "__main__":
    Member(Orders()).run()
