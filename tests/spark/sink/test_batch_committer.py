"""Exactly-once delivery when tasks and drivers are interrupted at every step."""

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
def query(broker: LocalBroker, topic_name: str) -> DirectQuery:
    broker.create_topic(topic_name, 3)
    return DirectQuery(broker.bootstrap_servers, topic_name, f"query-{next(_numbers)}")


def values(name: str, number: int = 250) -> list[str]:
    return [f"{name}-{each}" for each in range(number)]


def test_a_batch_is_visible_once_it_is_committed(query: DirectQuery) -> None:
    one, two = query.prepared(values("a"), 0), query.prepared(values("b"), 1)
    assert len(query.open_ids()) == 2
    assert query.output() == Counter()
    query.commit(0, one, two)
    expected = Counter(values("a") + values("b"))
    assert query.output() == expected
    query.commit(1, query.prepared(values("c"), 0))
    assert query.output() == expected + Counter(values("c"))
    assert query.open_ids() == []


@pytest.mark.parametrize(
    "step", ["commit-begin", "decision-written", "decided", "between-commits", "committed"]
)
def test_a_new_driver_completes_the_batch_of_a_dead_one(
    query: DirectQuery, killer: set[str], step: str
) -> None:
    query.commit(0, query.prepared(values("before")))
    killer.add(step)
    first = [query.prepared(values("a"), 0), query.prepared(values("b"), 1)]
    with pytest.raises(Killed):
        query.commit(1, *first)
    query.replay(1, values("a"), values("b"))
    query.commit(2, query.prepared(values("after")))
    expected = values("before") + values("a") + values("b") + values("after")
    assert query.output() == Counter(expected)
    assert query.open_ids() == []


@pytest.mark.parametrize("step", ["decided", "between-commits", "committed"])
def test_an_abort_does_not_undo_a_decision(query: DirectQuery, killer: set[str], step: str) -> None:
    killer.add(step)
    parts = [query.prepared(values("a"), 0), query.prepared(values("b"), 1)]
    with pytest.raises(Killed):
        query.commit(0, *parts)
    query.abort(0, *parts)
    query.replay(0, values("a"), values("b"))
    assert query.output() == Counter(values("a") + values("b"))


@pytest.mark.parametrize("step", ["abort-begin", "between-aborts", None])
def test_an_aborted_batch_can_be_written_again(
    query: DirectQuery, killer: set[str], step: str | None
) -> None:
    parts = [query.prepared(values("a"), 0), query.prepared(values("b"), 1)]
    if step is None:
        query.abort(0, *parts)
    else:
        killer.add(step)
        with pytest.raises(Killed):
            query.abort(0, *parts)
    query.replay(0, values("a"), values("b"))
    assert query.output() == Counter(values("a") + values("b"))
    assert query.open_ids() == []


@pytest.mark.parametrize("step", ["task-begin", "task-writing", "task-written", "task-prepared"])
def test_a_dead_task_leaves_no_open_transaction(
    query: DirectQuery, killer: set[str], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A killed process does not clean up.
    monkeypatch.setattr("millstream.spark.sink.write_task._abort", lambda *_: None)
    killer.add(step)
    with pytest.raises(Killed):
        query.task(values("a"))
    query.commit(0, query.prepared(values("a")))
    assert query.output() == Counter(values("a"))
    assert query.open_ids() == []


def test_concurrent_attempts_of_a_task_do_not_affect_each_other(query: DirectQuery) -> None:
    first = query.prepared(values("a"))
    second = query.prepared(values("a"))
    assert first.holder.transactional_id != second.holder.transactional_id
    query.commit(0, first)
    assert query.output() == Counter(values("a"))
    assert query.open_ids() == []


def test_queries_with_similar_names_do_not_affect_each_other(query: DirectQuery) -> None:
    other = DirectQuery(query.servers, query.topic, f"{query.name}-1")
    theirs = other.prepared(values("b"))
    query.commit(0, query.prepared(values("a")))
    assert other.open_ids() == [theirs.holder.transactional_id]
    other.commit(0, theirs)
    assert query.output() == Counter(values("a") + values("b"))


def test_transactional_ids_are_reused(query: DirectQuery) -> None:
    used = set()
    for batch in range(5):
        made = query.prepared(values("a", 1))
        used.add(made.holder.transactional_id)
        query.commit(batch, made)
    assert len(used) == 1


def test_of_two_drivers_the_first_that_decides_wins(query: DirectQuery) -> None:
    zombie, successor = query.prepared(values("a")), query.prepared(values("a"))
    query.commit(0, zombie)
    query.commit(0, successor)
    assert query.output() == Counter(values("a"))


def test_a_driver_that_is_replaced_while_it_decides_fails(
    query: DirectQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, successor = query.prepared(values("a")), query.prepared(values("a"))
    is_first = True

    def reach(step: str) -> None:
        nonlocal is_first
        if step == "decision-written" and is_first:
            is_first = False
            query.commit(0, successor)

    hook_steps(reach, monkeypatch.setattr)
    with pytest.raises(ProtocolError, match="another driver"):
        query.commit(0, zombie)
    query.abort(0, zombie)
    assert query.output() == Counter(values("a"))
    assert query.open_ids() == []


def test_rows_of_a_task_are_aborted_if_another_driver_has_decided(query: DirectQuery) -> None:
    late = query.task(values("a"), 0, batch=0)
    query.commit(0, query.prepared(values("a"), 0), query.prepared(values("b"), 1))
    skipped = query.task(values("b"), 1, batch=0)
    assert skipped.is_decided
    assert late.prepared is not None
    query.commit(0, late.prepared)
    assert query.output() == Counter(values("a") + values("b"))
    assert query.open_ids() == []


def test_a_driver_that_aborts_leftovers_late_changes_no_result(
    query: DirectQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind = query.prepared(values("dead"), 1)
    check_claim = DecisionLog.check_claim

    def stopped(log: DecisionLog) -> None:
        """Between listing and aborting leftovers, another driver commits a batch."""
        monkeypatch.setattr(DecisionLog, "check_claim", check_claim)
        query.commit(1, query.prepared(values("b"), 1))
        check_claim(log)

    monkeypatch.setattr(DecisionLog, "check_claim", stopped)
    with pytest.raises(ProtocolError, match="another driver"):
        query.commit(0, query.prepared(values("a"), 0))
    assert query.output() == Counter(values("a") + values("b"))
    assert left_behind.holder.transactional_id not in query.open_ids()


def test_an_aborted_transaction_fails_its_batch_before_the_decision(
    query: DirectQuery,
) -> None:
    made = query.prepared(values("a"))
    query.abort(0, made)
    with pytest.raises(ProtocolError, match="aborted before its batch was decided"):
        query.commit(0, made)
    query.commit(0, query.prepared(values("a")))
    assert query.output() == Counter(values("a"))


def test_a_decision_is_found_without_its_offset(
    query: DirectQuery, killer: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query.commit(0, query.prepared(values("a")))
    killer.add("decided")
    with pytest.raises(Killed):
        query.commit(1, query.prepared(values("b")))
    monkeypatch.setattr(DecisionLog, "_known_offset", lambda _: None)
    query.replay(1, values("b"))
    assert query.output() == Counter(values("a") + values("b"))


def test_an_aborted_decision_does_not_count(
    query: DirectQuery, killer: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query.commit(0, query.prepared(values("a")))
    killer.add("decision-written")
    with pytest.raises(Killed):
        query.commit(1, query.prepared(values("b")))
    monkeypatch.setattr(DecisionLog, "_known_offset", lambda _: None)
    query.commit(1, query.prepared(values("b")))
    assert query.output() == Counter(values("a") + values("b"))
    assert query.open_ids() == []


def test_a_batch_before_the_last_decision_is_not_written_again(query: DirectQuery) -> None:
    for batch in (3, 4):
        query.commit(batch, query.prepared(values(f"batch-{batch}")))
    query.commit(3, query.prepared(values("batch-3")))
    assert query.output() == Counter(values("batch-3") + values("batch-4"))
    assert query.open_ids() == []


@pytest.mark.parametrize("is_lost", [True, False])
def test_unacknowledged_batches_are_sent_again(
    query: DirectQuery, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """The connection is lost, or the broker returns an error, with several requests in flight."""
    receive, failed = BrokerConnection.receive, []

    def response(link: BrokerConnection, response: type[Any], **options: Any) -> Any:
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

    monkeypatch.setattr(BrokerConnection, "receive", response)
    query.commit(0, query.prepared(values("a", 700)))
    assert failed
    assert query.output() == Counter(values("a", 700))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_of_every_codec_and_size(broker: LocalBroker, topic_name: str, codec: str) -> None:
    broker.create_topic(topic_name, 3)
    options = {"kafka.compression.type": codec, "kafka.batch.size": "1100"}
    query = DirectQuery(broker.bootstrap_servers, topic_name, topic_name, **options)
    query.commit(0, query.prepared(values("a", 500)))
    assert query.output() == Counter(values("a", 500))
