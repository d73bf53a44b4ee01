"""Random transactions over several partitions, while clients and the broker are killed.

The clients record their operations, and a checker searches the histories for anomalies.

TRANSACTION_SEED replays the choices of a run (not the processes' timing); TRANSACTION_ROUNDS sets
the length of the long run. The histories stay in the test's directory.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError

from harness.checker import check, explain
from harness.history import Operation, Outcome, Poll, Recorder, Seen, read_history
from harness.process.broker_process import wait_until
from harness.process.brokers import ONE_IN_SOAK, THREE, Brokers, started
from harness.seed import choose_seed, report
from transactions_clients.actor import (
    INPUT,
    OUTPUT,
    PARTITIONS,
    all_partitions,
    partition_name,
    reader_settings,
    seen_in,
)
from transactions_clients.cast import cast_of
from transactions_clients.program import Program
from transactions_clients.stable import SETTINGS, quiet_end

ROUNDS_QUICK = 6
ROUNDS_SOAK = int(os.environ.get("TRANSACTION_ROUNDS", "200"))
START_SECONDS_MAX = 60.0
LAST_READ_SECONDS_MAX = 60.0
#: Small segments: transactions span several of them, and readers start within one.
ROLLING = {"segment.bytes": 4096, "index.interval.bytes": 512}


@pytest.mark.parametrize("count", [ONE_IN_SOAK, THREE])
@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(ROUNDS_QUICK, id="quick"),
        pytest.param(ROUNDS_SOAK, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
def test_random_transactions_have_no_anomalies(
    tmp_path: Path, java_writer: Program | None, rounds: int, count: int
) -> None:
    chance = random.Random(choose_seed("TRANSACTION_SEED"))
    folder = tmp_path / "histories"
    folder.mkdir()
    strikes: Counter[str] = Counter()
    with started(tmp_path, count, SETTINGS) as brokers:
        brokers.create_topic(INPUT, PARTITIONS[INPUT])
        brokers.create_topic(OUTPUT, PARTITIONS[OUTPUT], ROLLING)
        with cast_of(brokers, java_writer, folder, chance) as cast:
            wait_until(cast.is_under_way, "every actor to work", START_SECONDS_MAX)
            cast.check_order()
            for _ in range(rounds):
                time.sleep(chance.uniform(0.2, 1.5))
                strikes[cast.strike()] += 1
        read_to_the_end(brokers, folder / "last.jsonl")
        brokers.check_logs()
    history = read_history(cast.histories())
    report(f"{dict(strikes)}; {describe(history)}")
    anomalies = check(history)
    assert not anomalies, explain(anomalies)
    assert_something_happened(history)


def read_to_the_end(brokers: Brokers, path: Path) -> None:
    """Read each partition from start to end once every transaction has ended."""
    for topic in PARTITIONS:
        brokers.wait_until_in_sync(topic)
    ends = {
        partition_name(each.topic, each.partition): quiet_end(brokers, each.topic, each.partition)
        for each in all_partitions()
    }
    with Recorder(path, "last", time.monotonic_ns) as recorder:
        recorder.begin()
        recorder.end(Outcome.OK, [Poll(_read_up_to(brokers.bootstrap, ends))])
        recorder.begin()
        recorder.end(Outcome.OK, [Poll({}, ends=ends)])


def _read_up_to(bootstrap: str, ends: dict[str, int]) -> dict[str, list[Seen]]:
    settings = {**reader_settings(bootstrap, committed=True), "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign(all_partitions())
    left = {partition: end for partition, end in ends.items() if end > 0}
    found: dict[str, list[Seen]] = {}
    deadline = time.monotonic() + LAST_READ_SECONDS_MAX
    while left:
        assert time.monotonic() < deadline, f"not read to the end: {left}"
        for message in consumer.consume(500, 0.2):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                partition = partition_name(message.topic(), message.partition())
                if message.offset() >= ends[partition]:
                    left.pop(partition, None)
                continue
            for partition, records in seen_in([message]).items():
                found.setdefault(partition, []).extend(records)
    consumer.close()
    return found


def _is_transaction(operation: Operation) -> bool:
    return bool(operation.sends())


def describe(history: list[Operation]) -> str:
    outcomes = Counter(str(each.outcome) for each in history if _is_transaction(each))
    seen = sum(len(r) for each in history for poll in each.polls() for r in poll.seen.values())
    return f"transactions {dict(outcomes)}, {seen} records seen"


def assert_something_happened(history: list[Operation]) -> None:
    """Check that the run had commits, aborts, moved records and reads."""
    transactions = [each for each in history if _is_transaction(each)]
    outcomes = {each.outcome for each in transactions}
    assert {Outcome.OK, Outcome.FAIL} <= outcomes
    assert any(each.polls() and each.outcome is Outcome.OK for each in transactions)
