"""Consumers whose group's offsets are part of an open transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from harness.process.broker_process import wait_until
from millstream.client import Consumer, Partition, Producer

PARTITIONS = 4
RECORDS = 10


class Reader:
    """Reads in a thread of its own until it is closed."""

    def __init__(self, consumer: Consumer, begun: dict[int, int]) -> None:
        self.consumer = consumer
        self._begun = begun
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self.consumer:
            while not self._is_over.is_set():
                for record in self.consumer.poll(timeout=0.1):
                    known = self._begun.get(record.partition, RECORDS)
                    self._begun[record.partition] = min(known, record.offset)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


def members_of(bootstrap: str, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return len(admin.describe_consumer_groups([group])[group].result(30).members)


@pytest.mark.parametrize(
    ("protocol", "is_commit"), [("classic", False), ("classic", True), ("consumer", True)]
)
def test_a_member_waits_for_offsets_that_may_change(
    bootstrap: str, wide_topic: str, name: Callable[[str], str], protocol: Any, is_commit: bool
) -> None:
    """The group rebalances meanwhile. After a commit, a member that did not wait would have read
    from the earlier offset."""
    group = name("group")
    #: The first offset that was read, by partition.
    begun: dict[int, int] = {}

    def reader() -> Reader:
        return Reader(
            Consumer(
                bootstrap,
                group_id=group,
                topics=[wide_topic],
                group_protocol=protocol,
                commit_interval=0,
                config={"heartbeat.interval.ms": 200} if protocol == "classic" else {},
            ),
            begun,
        )

    with Producer(bootstrap) as producer:
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                producer.send(wide_topic, str(number), partition=partition)
    with Producer(bootstrap, transactional_id=name("id")) as stopped, ExitStack() as stack:
        before = reader()
        stack.callback(before.close)
        wait_until(lambda: len(begun) == PARTITIONS, "the first member to read")
        before.consumer.commit({Partition(wide_topic, number): 5 for number in range(PARTITIONS)})
        txn = stopped.transaction()
        txn.send_offsets(before.consumer, {Partition(wide_topic, 0): 7})
        before.close()
        begun.clear()
        first = reader()
        stack.callback(first.close)
        wait_until(lambda: len(first.consumer.assignment) == PARTITIONS, "the second to join")
        second = reader()
        stack.callback(second.close)
        wait_until(lambda: members_of(bootstrap, group) == 2, "the third to join")
        assert 0 not in begun, "the consumer did not wait"
        if is_commit:
            txn.commit()
        else:
            txn.abort()
        wait_until(lambda: len(begun) == PARTITIONS, "all partitions to be read")
    assert begun == {0: 7 if is_commit else 5, 1: 5, 2: 5, 3: 5}
