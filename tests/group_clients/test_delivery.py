"""A crash between processing and commit: at least once repeats records, at most once loses them.

One member is killed between processing and committing; another one gets its partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from group_clients.history import History
from group_clients.member import Member, Orders, Start
from harness.process.broker_process import wait_until
from harness.process.brokers import ONE, THREE_IN_SOAK, Brokers, started

PARTITIONS = 2
RECORDS = 200
SESSION_MS = 1500
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "offsets.topic.num.partitions": 1,
}


@pytest.fixture(scope="module", params=[ONE, THREE_IN_SOAK])
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brokers]:
    with started(tmp_path_factory.mktemp("brokers"), request.param, SETTINGS) as running:
        yield running
        running.check_logs()


@pytest.fixture
def topic(brokers: Brokers) -> str:
    """Create a topic for the test; its group has the same name."""
    name = f"deliveries-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, len(brokers))])[name].result(20)
    return name


def produce(brokers: Brokers, topic: str, first: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for number in range(first, end):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(20) == 0


def values(*histories: History) -> Counter[int]:
    """Return how often each record was processed."""
    return Counter(
        int(each.value)
        for history in histories
        for ownership in history.ownerships
        for each in ownership.processed
    )


def crash_in_between(
    brokers: Brokers, topic: str, start: Start, commit: str
) -> tuple[History, History]:
    """Kill a member between its two steps; return its history and that of its replacement."""
    orders = Orders(brokers.bootstrap, topic, topic, SESSION_MS, SESSION_MS // 6, commit=commit)
    with ExitStack() as stack:
        victim = Member(start, "victim", orders)
        stack.callback(victim.dispose)
        produce(brokers, topic, 0, RECORDS // 2)
        half = dict.fromkeys(range(PARTITIONS), RECORDS // 2 // PARTITIONS)

        def is_half_done() -> bool:
            victim.read()
            history = victim.history
            return history.committed == half and history.processed_count == RECORDS // 2

        wait_until(is_half_done, "the first half to be committed", 90)
        victim.ask_to_hold()
        produce(brokers, topic, RECORDS // 2, RECORDS)
        victim.wait_for_hold()
        victim.kill()
        successor = Member(start, "successor", orders)
        stack.callback(successor.dispose)
        whole = dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)

        def is_done() -> bool:
            successor.read()
            return victim.history.committed | successor.history.committed == whole

        wait_until(is_done, "the rest to be committed", 90)
        successor.end()
    return victim.history, successor.history


def test_at_least_once_processes_uncommitted_records_again(
    brokers: Brokers, topic: str, start_of: Callable[[str], Start]
) -> None:
    victim, successor = crash_in_between(brokers, topic, start_of("confluent-classic"), "after")
    processed = values(victim, successor)
    assert processed.keys() == set(range(RECORDS)), "records were lost"
    twice = {number for number, times in processed.items() if times > 1}
    committed = victim.committed
    assert twice, "the member was not killed between its two steps"
    assert twice == {
        number
        for number in values(victim)
        if number // PARTITIONS >= committed[number % PARTITIONS]
    }, "exactly the processed, uncommitted records are processed again"


def test_at_most_once_never_processes_a_committed_record_again(
    brokers: Brokers, topic: str, start_of: Callable[[str], Start]
) -> None:
    victim, successor = crash_in_between(brokers, topic, start_of("confluent-classic"), "before")
    processed = values(victim, successor)
    assert set(processed.values()) == {1}, "records were processed twice"
    lost = set(range(RECORDS)) - processed.keys()
    committed = victim.committed
    assert lost, "the member was not killed between its two steps"
    assert lost == {
        number
        for number in range(RECORDS)
        if number not in values(victim) and number // PARTITIONS < committed[number % PARTITIONS]
    }, "exactly the committed, unprocessed records are lost"
