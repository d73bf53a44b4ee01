"""Tests of the checker: it finds each anomaly by its name, and none in a correct history.

Each anomaly is planted twice: in the smallest history that shows it, and in random runs of a broker
with one fault.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from checker.log_model import PARTITIONS, Fault, LogModel
from harness.checker import Kind, check, explain
from harness.history import Assign, Operation, Outcome, Poll, Seen, Send, Step

WRITERS = ("w1", "w2", "w3")
READERS = ("r1", "r2")
Command = Callable[[LogModel], None]


class Script:
    """A history written by hand: operations in order, unless `at` sets the time."""

    def __init__(self) -> None:
        self.history: list[Operation] = []
        self._now_ns = itertools.count()

    def add(
        self,
        process: str,
        *steps: Step,
        outcome: Outcome = Outcome.OK,
        at: tuple[int, int | None] | None = None,
    ) -> Script:
        begin_ns, end_ns = at or (next(self._now_ns), next(self._now_ns))
        number = len(self.history)
        self.history.append(Operation(process, number, outcome, begin_ns, end_ns, list(steps)))
        return self

    def kinds(self) -> set[Kind]:
        return {anomaly.kind for anomaly in check(self.history)}


def seen(partition: str, *records: tuple[int, str], group: str | None = None) -> Poll:
    return Poll({partition: [Seen(*record) for record in records]}, group=group)


def sent(*values: str) -> list[Send]:
    """Return records sent to one partition, from offset 0 on."""
    return [Send("a-0", value, offset) for offset, value in enumerate(values)]


def log(*values: str) -> Poll:
    """Return what a reader of that partition should see."""
    return seen("a-0", *enumerate(values))


PLANTED: list[tuple[str, Script, set[Kind]]] = [
    (
        "an acknowledged record that readers passed over",
        Script().add("w", *sent("x")).add("w", Send("a-0", "y", 1)).add("r", seen("a-0", (1, "y"))),
        {Kind.LOST_WRITE},
    ),
    (
        "an acknowledged record of unknown offset that is not in the whole log",
        Script().add("w", Send("a-0", "x")).add("r", Poll({}, ends={"a-0": 2})),
        {Kind.LOST_WRITE},
    ),
    (
        "a record of an aborted transaction",
        Script().add("w", *sent("x"), outcome=Outcome.FAIL).add("r", log("x")),
        {Kind.ABORTED_READ},
    ),
    (
        "a transaction of unknown outcome, one half of which readers passed over",
        Script()
        .add("w", Send("a-0", "x"), Send("a-1", "y", 0), outcome=Outcome.INFO)
        .add("w", Send("a-1", "z", 2))
        .add("r", log("x"))
        .add("r", seen("a-1", (2, "z"))),
        {Kind.TORN_TRANSACTION},
    ),
    (
        "a transaction whose writer died, one half of which is not in the whole log",
        Script()
        .add("w", Send("a-0", "x"), Send("a-1", "y"), outcome=Outcome.INFO, at=(-1, None))
        .add("r", log("x"))
        .add("r", Poll({}, ends={"a-1": 1})),
        {Kind.TORN_TRANSACTION},
    ),
    (
        "a value at two offsets",
        Script().add("w", *sent("x")).add("r", log("x", "x")),
        {Kind.DUPLICATE},
    ),
    (
        "a value in two partitions",
        Script().add("w", *sent("x")).add("r", log("x"), seen("a-1", (4, "x"))),
        {Kind.DUPLICATE},
    ),
    (
        "an offset with two values, by two readers",
        Script()
        .add("w", Send("a-0", "x"))
        .add("v", Send("a-0", "y"))
        .add("r", log("x"))
        .add("s", log("y")),
        {Kind.INCONSISTENT_OFFSET},
    ),
    (
        "an offset with two values, by sender and reader",
        Script()
        .add("w", *sent("x"))
        .add("w", Send("a-0", "y", 1))
        .add("r", Poll({"a-0": [Seen(0, "y")]}, committed=False)),
        {Kind.INCONSISTENT_OFFSET, Kind.DUPLICATE},
    ),
    (
        "a value that nobody sent",
        Script().add("r", log("x")),
        {Kind.UNWRITTEN_VALUE},
    ),
    (
        "a transaction that reads its own record",
        Script().add("w", *sent("x"), log("x")),
        {Kind.OWN_UNCOMMITTED_READ},
    ),
    (
        "two transactions that read each other",
        Script()
        .add("w", Send("a-0", "x", 0), seen("a-1", (0, "y")), at=(0, 9))
        .add("v", Send("a-1", "y", 0), seen("a-0", (0, "x")), at=(1, 8)),
        {Kind.CIRCULAR_READ},
    ),
    (
        "two transactions that commit the same input",
        Script()
        .add("w", *sent("x"))
        .add("m", seen("a-0", (0, "x"), group="g"), Send("b-0", "mx", 0))
        .add("n", seen("a-0", (0, "x"), group="g"), Send("b-0", "nx", 2)),
        {Kind.CONSUMED_TWICE},
    ),
    (
        "one poll that goes back",
        Script().add("w", *sent("x", "y")).add("r", seen("a-0", (1, "y"), (0, "x"))),
        {Kind.INTERNAL_NONMONOTONIC_POLL},
    ),
    (
        "one transaction that gets a record twice",
        Script().add("w", *sent("x")).add("m", log("x"), log("x")),
        {Kind.INTERNAL_NONMONOTONIC_POLL},
    ),
    (
        "one transaction whose records are in another order",
        Script().add("w", Send("a-0", "x", 1), Send("a-0", "y", 0)),
        {Kind.INTERNAL_NONMONOTONIC_SEND},
    ),
    (
        "one transaction whose records readers see in another order",
        Script().add("w", Send("a-0", "x"), Send("a-0", "y")).add("r", log("y", "x")),
        {Kind.INTERNAL_NONMONOTONIC_SEND},
    ),
    (
        "one poll that leaves out what another has",
        Script()
        .add("w", *sent("x", "y", "z"))
        .add("r", log("x", "y", "z"))
        .add("s", seen("a-0", (0, "x"), (2, "z"))),
        {Kind.INTERNAL_POLL_SKIP},
    ),
    (
        "a second poll that goes back",
        Script().add("w", *sent("x", "y")).add("r", log("x", "y")).add("r", seen("a-0", (1, "y"))),
        {Kind.NONMONOTONIC_POLL},
    ),
    (
        "a later transaction before an earlier one",
        Script().add("w", Send("a-0", "x", 5)).add("v", Send("a-0", "y", 3)),
        {Kind.NONMONOTONIC_SEND},
    ),
    (
        "a second poll that leaves out what another reader has",
        Script()
        .add("w", *sent("x", "y", "z"))
        .add("r", log("x", "y", "z"))
        .add("s", log("x"))
        .add("s", seen("a-0", (2, "z"))),
        {Kind.POLL_SKIP},
    ),
]

LEGAL: list[tuple[str, Script]] = [
    (
        "a reader that is behind",
        Script().add("w", *sent("x", "y")).add("r", log("x")),
    ),
    (
        "a transaction of which only one partition is visible as yet",
        Script()
        .add("w", Send("a-0", "x", 0), Send("a-1", "y", 0), outcome=Outcome.INFO)
        .add("r", log("x")),
    ),
    (
        "an unknown outcome that was an abort",
        Script().add("w", *sent("x"), outcome=Outcome.INFO).add("r", Poll({}, ends={"a-0": 2})),
    ),
    (
        "an aborted record, seen by a reader that asked for it",
        Script()
        .add("w", *sent("x"), outcome=Outcome.FAIL)
        .add("r", Poll({"a-0": [Seen(0, "x")]}, committed=False)),
    ),
    (
        "a reader that begins anew",
        Script().add("w", *sent("x")).add("r", log("x")).add("r", Assign(["a-0"]), log("x")),
    ),
    (
        "a reader that jumps ahead",
        Script()
        .add("w", *sent("x", "y", "z"))
        .add("r", log("x", "y", "z"))
        .add("s", log("x"))
        .add("s", Assign(["a-0"]), seen("a-0", (2, "z"))),
    ),
    (
        "an input that was given up, and then taken by another",
        Script()
        .add("w", *sent("x"))
        .add("m", seen("a-0", (0, "x"), group="g"), outcome=Outcome.FAIL)
        .add("m", seen("a-0", (0, "x"), group="g")),
    ),
    (
        "transactions at the same time, in either order",
        Script().add("w", Send("a-0", "x", 5), at=(0, 9)).add("v", Send("a-0", "y", 3), at=(1, 8)),
    ),
    (
        "a record of unknown outcome that comes late",
        Script()
        .add("w", Send("a-0", "x"), outcome=Outcome.INFO)
        .add("v", Send("a-0", "y", 0))
        .add("r", log("y", "x")),
    ),
    (
        "a write that ended while somebody read to the end",
        Script()
        .add("w", Send("a-0", "x"), at=(0, 5))
        .add("r", Poll({}, ends={"a-0": 0}), at=(3, 9)),
    ),
]


@pytest.mark.parametrize(
    ("script", "kinds"), [(s, k) for _, s, k in PLANTED], ids=[name for name, _, _ in PLANTED]
)
def test_a_planted_anomaly_is_found_by_its_name(script: Script, kinds: set[Kind]) -> None:
    assert script.kinds() == kinds


def test_every_kind_of_anomaly_is_planted() -> None:
    assert set().union(*(kinds for _, _, kinds in PLANTED)) == set(Kind)


@pytest.mark.parametrize("script", [s for _, s in LEGAL], ids=[name for name, _ in LEGAL])
def test_valid_histories_pass(script: Script) -> None:
    assert check(script.history) == []


@pytest.mark.parametrize(
    ("script", "kinds"), [(s, k) for _, s, k in PLANTED], ids=[name for name, _, _ in PLANTED]
)
def test_the_order_of_the_list_does_not_matter(script: Script, kinds: set[Kind]) -> None:
    assert {anomaly.kind for anomaly in check(reversed(script.history))} == kinds


def commands() -> SearchStrategy[Command]:
    writer, partition = st.sampled_from(WRITERS), st.sampled_from(PARTITIONS)
    reader, flag = st.sampled_from(READERS), st.booleans()
    return st.one_of(
        st.builds(lambda w: partial(LogModel.begin, process=w), writer),
        st.builds(
            lambda w, p, knows_offset: partial(
                LogModel.send, process=w, partition=p, knows_offset=knows_offset
            ),
            *(writer, partition, flag),
        ),
        st.builds(
            lambda w, commit, known: partial(LogModel.end, process=w, commit=commit, known=known),
            *(writer, flag, flag),
        ),
        st.builds(
            lambda w, p, count: partial(LogModel.consume, process=w, partition=p, count=count),
            *(writer, partition, st.integers(1, 5)),
        ),
        st.builds(
            lambda r, count: partial(
                LogModel.poll, process=r, count=count, committed=r == READERS[0]
            ),
            *(reader, st.integers(1, 5)),
        ),
        st.builds(
            lambda r, p, offset: partial(LogModel.seek, process=r, partition=p, offset=offset),
            *(reader, partition, st.integers(0, 9)),
        ),
    )


def run(model: LogModel, script: Iterable[Command]) -> list[Operation]:
    for command in script:
        command(model)
    model.finish()
    return model.history


@settings(max_examples=200, deadline=None)
@given(st.lists(commands(), max_size=60))
def test_any_run_of_a_sound_broker_passes(script: list[Command]) -> None:
    found = check(run(LogModel(), script))
    assert not found, explain(found)


def random_commands(chance: random.Random) -> Iterable[Command]:
    """Return a long run in which many transactions end."""
    for _ in range(300):
        writer, partition = chance.choice(WRITERS), chance.choice(PARTITIONS)
        reader = chance.choice(READERS)
        yield chance.choice(
            [
                partial(LogModel.begin, process=writer),
                partial(LogModel.send, process=writer, partition=partition, knows_offset=True),
                partial(LogModel.send, process=writer, partition=partition, knows_offset=False),
                partial(LogModel.end, process=writer, commit=chance.random() < 0.7, known=True),
                partial(LogModel.consume, process=writer, partition=partition, count=3),
                partial(LogModel.poll, process=reader, count=3, committed=reader == READERS[0]),
            ]
        )


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        (Fault.SHOWS_OPEN_TRANSACTIONS, {Kind.ABORTED_READ, Kind.OWN_UNCOMMITTED_READ}),
        (Fault.SHOWS_ABORTED, {Kind.ABORTED_READ}),
        (Fault.FORGETS_A_MARKER, {Kind.LOST_WRITE, Kind.TORN_TRANSACTION}),
        (Fault.FORGETS_A_RECORD, {Kind.LOST_WRITE, Kind.TORN_TRANSACTION}),
        (Fault.REPEATS_A_RECORD, {Kind.DUPLICATE}),
        (Fault.REUSES_AN_OFFSET, {Kind.INCONSISTENT_OFFSET}),
        (Fault.REWINDS_READERS, {Kind.NONMONOTONIC_POLL}),
        (Fault.SKIPS_FOR_ONE_READER, {Kind.POLL_SKIP}),
        (Fault.FORGETS_GROUP_OFFSETS, {Kind.CONSUMED_TWICE}),
    ],
)
def test_a_broker_with_one_fault_is_rejected(fault: Fault, kinds: set[Kind]) -> None:
    found: set[Kind] = set()
    for seed in range(10):
        chance = random.Random(seed)
        history = run(LogModel(fault, chance), random_commands(chance))
        found |= {anomaly.kind for anomaly in check(history)}
    assert kinds <= found


def test_every_fault_is_tried_by_a_broker_that_is_otherwise_sound() -> None:
    """The checker rejects the runs above because of the fault alone."""
    for seed in range(10):
        assert check(run(LogModel(), random_commands(random.Random(seed)))) == []
