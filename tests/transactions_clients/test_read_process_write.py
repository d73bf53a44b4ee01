"""Read-process-write with unmodified clients, while the processor and the broker are killed.

read_committed consumers see each input in the output once; others also see aborted records.

PROCESS_SEED replays the choices of a run; PROCESS_ROUNDS sets the length of the long runs.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.process.brokers import COUNT_NAMES, Brokers, started
from harness.raw.raw_client import RawClient, records_of
from harness.seed import choose_seed, report
from millstream.records.batch import scan
from transactions_clients.processor import POINTS
from transactions_clients.program import Program
from transactions_clients.stable import SETTINGS
from transactions_clients.work import INPUT, OUTPUT, PARTITIONS, Work, read_records

ROUNDS_QUICK = 3
ROUNDS_SOAK = int(os.environ.get("PROCESS_ROUNDS", "100"))
INPUTS_PER_ROUND = 120
COMMIT = b"\x00\x00\x00\x01"
#: The client, and the broker's transaction version (2 is KIP-890).
CASES = [
    ("confluent", 2),
    ("java", 2),
    ("java", 1),
    ("aiokafka", 2),
    ("kafkajs", 2),
]
#: Only in the soak: `make test` runs the same client with other brokers or the other version.
IN_SOAK = [("java", 1, 3), ("confluent", 2, 1), ("java", 2, 1), ("kafkajs", 2, 1)]
#: librdkafka can wait for ever; `test_coordinator_killed` replaces a processor that does.
WAITS_FOR_DEAD_GROUP_COORDINATOR = ("confluent",)


def cases() -> Iterator[Any]:
    """Return every client with one broker and with three."""
    for (client, version), count in itertools.product(CASES, (1, 3)):
        marks = (pytest.mark.soak,) if (client, version, count) in IN_SOAK else ()
        name = f"{client}-tv{version}-{COUNT_NAMES[count]}"
        yield pytest.param(client, version, count, marks=marks, id=name)


rounds = pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(ROUNDS_QUICK, id="quick"),
        pytest.param(ROUNDS_SOAK, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)


class Strike(NamedTuple):
    """A kill: its victim and its time, at a point of the processor or between two."""

    victim: str
    moment: str


IN_END_TXN = "in EndTxn"
VICTIMS = ("processor", "processor", "broker", "both", "nobody")
MOMENTS = (*POINTS, IN_END_TXN)
OPENING = (Strike("processor", "sent"), Strike("broker", IN_END_TXN), Strike("both", "ready"))


def strikes(rounds: int, chance: random.Random) -> Iterator[Strike]:
    """Choose the kills. The first few are the same in every run, so that short runs have each
    kind."""
    yield from itertools.islice(OPENING, rounds)
    for _ in range(rounds - len(OPENING)):
        yield Strike(chance.choice(VICTIMS), chance.choice(MOMENTS))


def run_round(
    brokers: Brokers, work: Work, strike: Strike, chance: random.Random, *, spares_group: bool
) -> None:
    """Let the processor work until the kill has happened at its time."""
    work.add_inputs(INPUTS_PER_ROUND)
    is_under_way = strike.moment == IN_END_TXN
    point = "ready" if is_under_way else strike.moment
    while (reached := work.advance()).point != point:
        work.go()
    if is_under_way:
        work.go()
        time.sleep(chance.uniform(0, 0.01))
    if strike.victim in ("processor", "both"):
        work.kill_processor()
        if strike.moment in ("sent", "ready"):
            work.aborted[reached.key] = reached.records
    if strike.victim in ("broker", "both"):
        brokers.start(work.kill_broker(spares_group=spares_group))
    if strike.victim in ("broker", "nobody") and not is_under_way:
        work.go()


def check_output(work: Work, bootstrap: str) -> None:
    committed = read_records(bootstrap, committed=True)
    every = read_records(bootstrap, committed=False)
    for partition, values in enumerate(work.inputs):
        found = [value for place, (_, value) in sorted(committed.items()) if place[0] == partition]
        assert found == values, f"partition {partition} of the output differs from the input"
    assert committed.items() <= every.items()
    hidden = Counter(key for place, (key, _) in every.items() if place not in committed)
    for key, count in work.aborted.items():
        assert hidden[key] == count, f"{hidden[key]} aborted records of {key}, not {count}"


def epoch_rises(brokers: Brokers, partition: int) -> set[int]:
    """Return the differences between the epochs of commit markers and their records."""
    with brokers.leader(OUTPUT, partition) as client:
        return _epoch_rises(client, partition)


def _epoch_rises(client: RawClient, partition: int) -> set[int]:
    rises: set[int] = set()
    epochs: dict[int, int] = {}
    offset = 0
    while data := client.fetch(OUTPUT, offset, partition).records:
        for position, header in scan(data):
            offset = header.next_offset
            if not header.is_control:
                epochs[header.producer_id] = header.producer_epoch
                continue
            (marker,) = records_of(data[position : position + header.size])
            if marker.key == COMMIT:
                rises.add(header.producer_epoch - epochs[header.producer_id])
    return rises


@rounds
@pytest.mark.parametrize(("client", "version", "count"), list(cases()))
def test_each_input_is_in_the_output_once(
    tmp_path: Path,
    program_named: Callable[[str], Program],
    client: str,
    version: int,
    rounds: int,
    count: int,
) -> None:
    program = program_named(client)
    chance = random.Random(choose_seed("PROCESS_SEED"))
    events: Counter[str] = Counter()
    settings = {**SETTINGS, "transaction.version": version}
    with started(tmp_path, count, settings) as brokers:
        for topic in (INPUT, OUTPUT):
            brokers.create_topic(topic, PARTITIONS)
        work = Work(brokers, program, tmp_path)
        try:
            for strike in strikes(rounds, chance):
                spares_group = client in WAITS_FOR_DEAD_GROUP_COORDINATOR
                run_round(brokers, work, strike, chance, spares_group=spares_group)
                events[f"{strike.victim}, {strike.moment}"] += 1
            work.finish()
        finally:
            work.kill_processor()
        check_output(work, brokers.bootstrap)
        # Only transaction version 2 raises the epoch at each end.
        expected = {1} if (client, version) == ("java", 2) else {0}
        assert set.union(*(epoch_rises(brokers, each) for each in range(PARTITIONS))) == expected
        report(f"{client}: {dict(events)}, {len(work.aborted)} transactions aborted")
        brokers.check_logs()
