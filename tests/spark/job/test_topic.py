from __future__ import annotations

import pytest

from millstream.spark.job.coverage import Coverage, Place, Span
from millstream.spark.job.failure import Failure, JobError
from millstream.spark.job.run import Run
from millstream.spark.job.topic import Topics, check_identity, look_at
from millstream.testing.broker import LocalBroker

A, B, C = (Place("orders", n) for n in range(3))


def test_only_what_was_there_before() -> None:
    earlier = Topics({"orders": "x"}, {A: Span(0, 10), B: Span(0, 10)})
    later = Topics({"orders": "x"}, {A: Span(5, 20), B: Span(12, 30), C: Span(0, 1)})
    assert later.up_to(earlier).spans == {A: Span(5, 10), B: Span(12, 12)}


def test_a_topic_created_anew_is_another() -> None:
    coverage = Coverage().extended({A: Span(0, 10)}, {"orders": "x"})
    check_identity(coverage, Topics({"orders": "x", "others": "y"}, {}))
    with pytest.raises(JobError, match="its id was x and is z") as caught:
        check_identity(coverage, Topics({"orders": "z"}, {}))
    assert caught.value.kind is Failure.DATA_LOSS


def test_what_brokers_have(broker: LocalBroker, topic_name: str) -> None:
    run = Run("test", bootstrap_servers=broker.bootstrap_servers)
    broker.create_topic(topic_name, 2)
    found = look_at(run, [topic_name])
    assert found.spans == {Place(topic_name, n): Span(0, 0) for n in range(2)}
    with pytest.raises(JobError) as caught:
        look_at(run, ["nowhere"])
    assert caught.value.kind is Failure.NOT_FOUND
    away = Run(
        "test",
        bootstrap_servers="127.0.0.1:1",
        properties={"default.api.timeout.ms": "200"},
    )
    with pytest.raises(JobError, match=r"no answer from 127\.0\.0\.1:1") as caught:
        look_at(away, [topic_name])
    assert caught.value.kind is Failure.NO_CONNECTION
