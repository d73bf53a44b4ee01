"""Consumers whose group's offsets are part of a transaction that nobody has ended yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from millstream.client import Consumer, Partition, Producer

SECONDS_MAX = 90.0
PARTITIONS = 4
RECORDS = 10

Begun = dict[int, int]


class Readers:
    """Consumers of one group, and the first offset that any of them got of each partition."""

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        self.begun: Begun = {}

    def read_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline, self.begun
            for consumer in self.consumers:
                for record in consumer.poll(timeout_s=0.1):
                    known = self.begun.get(record.partition, RECORDS)
                    self.begun[record.partition] = min(known, record.offset)

    def have(self, count: int) -> bool:
        """Whether each has as many partitions."""
        return [len(consumer.assignment) for consumer in self.consumers] == (
            [count] * len(self.consumers)
        )


@pytest.mark.parametrize(("protocol", "is_commit"), [("classic", False), ("consumer", True)])
def test_an_offset_that_may_change_is_waited_for(
    bootstrap: str, wide_topic: str, name: Callable[[str], str], protocol: Any, is_commit: bool
) -> None:
    """Also when the group rebalances meanwhile; what is certain is read at once."""
    group, readers = name("group"), Readers()

    def consumer() -> Consumer:
        made = Consumer(
            bootstrap,
            group=group,
            topics=[wide_topic],
            group_protocol=protocol,
            commit_interval_s=0,
            config={"heartbeat.interval.ms": 200} if protocol == "classic" else {},
        )
        readers.consumers.append(made)
        return made

    with Producer(bootstrap) as producer:
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                producer.send(wide_topic, None, str(number), partition=partition)
    with Producer(bootstrap, transactional_id=name("id")) as stopped:
        with consumer() as before:
            readers.read_until(lambda: readers.have(PARTITIONS))
            before.commit({Partition(wide_topic, number): 5 for number in range(PARTITIONS)})
            txn = stopped.transaction()
            txn.send_offsets(before, {Partition(wide_topic, 0): 7})
        readers.consumers.clear()
        readers.begun.clear()
        with consumer():
            readers.read_until(lambda: len(readers.begun) == PARTITIONS - 1)
            with consumer():
                readers.read_until(lambda: readers.have(PARTITIONS // 2))
                assert readers.begun == {1: 5, 2: 5, 3: 5}
                if is_commit:
                    txn.commit()
                else:
                    txn.abort()
                readers.read_until(lambda: 0 in readers.begun)
    assert readers.begun == {0: 7 if is_commit else 5, 1: 5, 2: 5, 3: 5}
