from __future__ import annotations

import pytest

from millstream.model.topic import TopicPartition
from millstream.spark.job.job_error import Failure, JobError
from millstream.spark.job.offset_coverage import OffsetCoverage, OffsetSpan
from millstream.spark.job.run import Run
from millstream.spark.job.topic_offsets import TopicOffsets, check_topic_ids, fetch_topic_offsets
from millstream.testing.broker import LocalBroker

A, B, C = (TopicPartition("orders", n) for n in range(3))


def test_offsets_after_an_earlier_moment_are_left_out() -> None:
    earlier = TopicOffsets({"orders": "x"}, {A: OffsetSpan(0, 10), B: OffsetSpan(0, 10)})
    later = TopicOffsets(
        {"orders": "x"}, {A: OffsetSpan(5, 20), B: OffsetSpan(12, 30), C: OffsetSpan(0, 1)}
    )
    assert later.up_to(earlier).spans == {A: OffsetSpan(5, 10), B: OffsetSpan(12, 12)}


def test_a_topic_that_was_created_again_is_rejected() -> None:
    coverage = OffsetCoverage().extended({A: OffsetSpan(0, 10)}, {"orders": "x"})
    check_topic_ids(coverage, TopicOffsets({"orders": "x", "others": "y"}, {}))
    with pytest.raises(JobError, match="its id was x and is z") as caught:
        check_topic_ids(coverage, TopicOffsets({"orders": "z"}, {}))
    assert caught.value.kind is Failure.DATA_LOSS


def test_offsets_of_topics(broker: LocalBroker, topic_name: str) -> None:
    run = Run("test", bootstrap_servers=broker.bootstrap_servers)
    broker.create_topic(topic_name, 2)
    found = fetch_topic_offsets(run, [topic_name])
    assert found.spans == {TopicPartition(topic_name, n): OffsetSpan(0, 0) for n in range(2)}
    with pytest.raises(JobError) as caught:
        fetch_topic_offsets(run, ["nowhere"])
    assert caught.value.kind is Failure.NOT_FOUND
    away = Run(
        "test",
        bootstrap_servers="127.0.0.1:1",
        properties={"default.api.timeout.ms": "200"},
    )
    with pytest.raises(JobError, match=r"no response from 127\.0\.0\.1:1") as caught:
        fetch_topic_offsets(away, [topic_name])
    assert caught.value.kind is Failure.NO_CONNECTION
