"""Exactly once, step by step: tasks and drivers of a query, interrupted wherever they can be."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest

from millstream.model.error import ErrorCode
from millstream.protocol.broker_connection import BrokerConnection
from millstream.spark.error import ConnectionLost, ProtocolError
from millstream.spark.sink.decision_log import DecisionLog
from millstream.testing.broker import LocalBroker
from millstream.wire.messages.produce import ProduceResponse
from spark.sink.direct_query import DirectQuery, Killed
from spark.sink.step_hook import hook_steps

_numbers = count(1)


@pytest.fixture
def world(broker: LocalBroker, topic_name: str) -> DirectQuery:
    broker.create_topic(topic_name, 3)
    return DirectQuery(broker.bootstrap_servers, topic_name, f"query-{next(_numbers)}")


def values(name: str, number: int = 250) -> list[str]:
    return [f"{name}-{each}" for each in range(number)]


def test_a_batch_is_visible_once_it_is_committed(world: DirectQuery) -> None:
    one, two = world.prepared(values("a"), 0), world.prepared(values("b"), 1)
    assert len(world.open_ids()) == 2
    assert world.output() == Counter()
    world.commit(0, one, two)
    expected = Counter(values("a") + values("b"))
    assert world.output() == expected
    world.commit(1, world.prepared(values("c"), 0))
    assert world.output() == expected + Counter(values("c"))
    assert world.open_ids() == []


@pytest.mark.parametrize(
    "step", ["commit-begin", "decision-written", "decided", "between-commits", "committed"]
)
def test_a_driver_that_died_is_replayed(world: DirectQuery, killer: set[str], step: str) -> None:
    world.commit(0, world.prepared(values("before")))
    killer.add(step)
    first = [world.prepared(values("a"), 0), world.prepared(values("b"), 1)]
    with pytest.raises(Killed):
        world.commit(1, *first)
    world.replay(1, values("a"), values("b"))
    world.commit(2, world.prepared(values("after")))
    expected = values("before") + values("a") + values("b") + values("after")
    assert world.output() == Counter(expected)
    assert world.open_ids() == []


@pytest.mark.parametrize("step", ["decided", "between-commits", "committed"])
def test_an_abort_does_not_undo_what_was_decided(
    world: DirectQuery, killer: set[str], step: str
) -> None:
    killer.add(step)
    parts = [world.prepared(values("a"), 0), world.prepared(values("b"), 1)]
    with pytest.raises(Killed):
        world.commit(0, *parts)
    world.abort(0, *parts)
    world.replay(0, values("a"), values("b"))
    assert world.output() == Counter(values("a") + values("b"))


@pytest.mark.parametrize("step", ["abort-begin", "between-aborts", None])
def test_a_batch_that_was_given_up_is_written_again(
    world: DirectQuery, killer: set[str], step: str | None
) -> None:
    parts = [world.prepared(values("a"), 0), world.prepared(values("b"), 1)]
    if step is None:
        world.abort(0, *parts)
    else:
        killer.add(step)
        with pytest.raises(Killed):
            world.abort(0, *parts)
    world.replay(0, values("a"), values("b"))
    assert world.output() == Counter(values("a") + values("b"))
    assert world.open_ids() == []


@pytest.mark.parametrize("step", ["task-begin", "task-writing", "task-written", "task-prepared"])
def test_a_task_that_died_leaves_nothing(
    world: DirectQuery, killer: set[str], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process that is killed has no time to clean up.
    monkeypatch.setattr("millstream.spark.sink.write_task._abort", lambda *_: None)
    killer.add(step)
    with pytest.raises(Killed):
        world.task(values("a"))
    world.commit(0, world.prepared(values("a")))
    assert world.output() == Counter(values("a"))
    assert world.open_ids() == []


def test_attempts_of_a_task_side_by_side_do_not_harm_each_other(world: DirectQuery) -> None:
    first = world.prepared(values("a"))
    second = world.prepared(values("a"))
    assert first.holder.transactional_id != second.holder.transactional_id
    world.commit(0, first)
    assert world.output() == Counter(values("a"))
    assert world.open_ids() == []


def test_queries_with_similar_names_let_each_other_be(world: DirectQuery) -> None:
    other = DirectQuery(world.servers, world.topic, f"{world.query}-1")
    theirs = other.prepared(values("b"))
    world.commit(0, world.prepared(values("a")))
    assert other.open_ids() == [theirs.holder.transactional_id]
    other.commit(0, theirs)
    assert world.output() == Counter(values("a") + values("b"))


def test_ids_are_used_again(world: DirectQuery) -> None:
    used = set()
    for batch in range(5):
        made = world.prepared(values("a", 1))
        used.add(made.holder.transactional_id)
        world.commit(batch, made)
    assert len(used) == 1


def test_of_two_drivers_the_first_that_decides_wins(world: DirectQuery) -> None:
    zombie, successor = world.prepared(values("a")), world.prepared(values("a"))
    world.commit(0, zombie)
    world.commit(0, successor)
    assert world.output() == Counter(values("a"))


def test_a_driver_that_was_replaced_while_it_decided_is_told_so(
    world: DirectQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, successor = world.prepared(values("a")), world.prepared(values("a"))
    is_first = True

    def reach(step: str) -> None:
        nonlocal is_first
        if step == "decision-written" and is_first:
            is_first = False
            world.commit(0, successor)

    hook_steps(reach, monkeypatch.setattr)
    with pytest.raises(ProtocolError, match="another driver"):
        world.commit(0, zombie)
    world.abort(0, zombie)
    assert world.output() == Counter(values("a"))
    assert world.open_ids() == []


def test_a_task_whose_other_driver_has_decided_writes_in_vain(world: DirectQuery) -> None:
    late = world.task(values("a"), 0, batch=0)
    world.commit(0, world.prepared(values("a"), 0), world.prepared(values("b"), 1))
    skipped = world.task(values("b"), 1, batch=0)
    assert skipped.is_decided
    assert late.prepared is not None
    world.commit(0, late.prepared)
    assert world.output() == Counter(values("a") + values("b"))
    assert world.open_ids() == []


def test_a_driver_that_sweeps_late_harms_nobody(
    world: DirectQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind = world.prepared(values("dead"), 1)
    check_claim = DecisionLog.check_claim

    def stopped(log: DecisionLog) -> None:
        """While this driver has seen what it wants to sweep, another one does two batches."""
        monkeypatch.setattr(DecisionLog, "check_claim", check_claim)
        world.commit(1, world.prepared(values("b"), 1))
        check_claim(log)

    monkeypatch.setattr(DecisionLog, "check_claim", stopped)
    with pytest.raises(ProtocolError, match="another driver"):
        world.commit(0, world.prepared(values("a"), 0))
    assert world.output() == Counter(values("a") + values("b"))
    assert left_behind.holder.transactional_id not in world.open_ids()


def test_a_transaction_that_somebody_aborted_stops_its_batch_before_the_decision(
    world: DirectQuery,
) -> None:
    made = world.prepared(values("a"))
    world.abort(0, made)
    with pytest.raises(ProtocolError, match="aborted before its batch was decided"):
        world.commit(0, made)
    world.commit(0, world.prepared(values("a")))
    assert world.output() == Counter(values("a"))


def test_a_decision_is_found_without_its_offset(
    world: DirectQuery, killer: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit(0, world.prepared(values("a")))
    killer.add("decided")
    with pytest.raises(Killed):
        world.commit(1, world.prepared(values("b")))
    monkeypatch.setattr(DecisionLog, "_known_offset", lambda _: None)
    world.replay(1, values("b"))
    assert world.output() == Counter(values("a") + values("b"))


def test_a_decision_that_was_given_up_is_none(
    world: DirectQuery, killer: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit(0, world.prepared(values("a")))
    killer.add("decision-written")
    with pytest.raises(Killed):
        world.commit(1, world.prepared(values("b")))
    monkeypatch.setattr(DecisionLog, "_known_offset", lambda _: None)
    world.commit(1, world.prepared(values("b")))
    assert world.output() == Counter(values("a") + values("b"))
    assert world.open_ids() == []


def test_a_batch_before_the_last_decision_is_not_written_again(world: DirectQuery) -> None:
    for batch in (3, 4):
        world.commit(batch, world.prepared(values(f"batch-{batch}")))
    world.commit(3, world.prepared(values("batch-3")))
    assert world.output() == Counter(values("batch-3") + values("batch-4"))
    assert world.open_ids() == []


@pytest.mark.parametrize("is_lost", [True, False])
def test_batches_that_were_not_acknowledged_are_sent_again(
    world: DirectQuery, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """The connection is lost, or the broker could not write, while several are on their way."""
    receive, failed = BrokerConnection.receive, []

    def answer(link: BrokerConnection, response: type[Any], **options: Any) -> Any:
        found = receive(link, response, **options)
        if response is ProduceResponse and not failed:
            failed.append(link)
            if is_lost:
                link.close()
                raise ConnectionLost("for a test")
            for topic in found.responses:
                for row in topic.partition_responses:
                    row.error_code = ErrorCode.NOT_ENOUGH_REPLICAS
        return found

    monkeypatch.setattr(BrokerConnection, "receive", answer)
    world.commit(0, world.prepared(values("a", 700)))
    assert failed
    assert world.output() == Counter(values("a", 700))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_of_every_codec_and_size(broker: LocalBroker, topic_name: str, codec: str) -> None:
    broker.create_topic(topic_name, 3)
    options = {"kafka.compression.type": codec, "kafka.batch.size": "1100"}
    world = DirectQuery(broker.bootstrap_servers, topic_name, topic_name, **options)
    world.commit(0, world.prepared(values("a", 500)))
    assert world.output() == Counter(values("a", 500))
