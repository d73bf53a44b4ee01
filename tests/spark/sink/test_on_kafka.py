"""The sink on Apache Kafka, with default settings and with two-phase commit enabled.

Kafka keeps prepared transactions in neither case, so transactions expire. The output is exact if a
decided batch is completed before that; otherwise the query stops with an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from harness.process.broker_process import wait_until
from harness.process.kafka_process import running_kafka
from millstream.spark.error import ProtocolError
from spark.sink.direct_query import DirectQuery, Killed, committed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
TWO_PHASE = {
    "transaction.two.phase.commit.enable": "true",
    "unstable.api.versions.enable": "true",
}


@pytest.fixture(scope="module", params=[{}, TWO_PHASE], ids=["as-shipped", "two-phase"])
def kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of the broker."""
    with running_kafka(SETTINGS | request.param) as address:
        yield address


@pytest.fixture
def topic(kafka: str, topic_name: str) -> str:
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic_name, 3, 1)])[topic_name].result(60)
    return topic_name


def values(name: str) -> list[str]:
    return [f"{name}-{number}" for number in range(100)]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_spark_writes_to_kafka(
    spark: SparkSession, kafka: str, topic: str, delivery: str, tmp_path: Path
) -> None:
    """Write a batch, and a stream that continues after a restart."""
    rows = spark.range(500).selectExpr("cast(id as string) as value")
    rows.write.mode("append").parquet(str(tmp_path / "rows"))

    def options(writer):  # type: ignore[no-untyped-def]
        return (
            writer.format("millstream")
            .option("kafka.bootstrap.servers", kafka)
            .option("topic", topic)
            .option("delivery", delivery)
        )

    def copy() -> None:
        stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
        query = options(stream.writeStream).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        assert query.trigger(availableNow=True).start().awaitTermination(300)

    options(rows.write.mode("append")).save()
    copy()
    rows.write.mode("append").parquet(str(tmp_path / "rows"))
    copy()
    expected = Counter({str(number): 3 for number in range(500)})
    assert committed(kafka, topic) == expected


def test_writing_creates_a_topic(kafka: str, topic_name: str) -> None:
    query = DirectQuery(kafka, topic_name, topic_name)
    query.commit(0, query.prepared(values("a")))
    assert query.output() == Counter(values("a"))


@pytest.mark.parametrize(
    "step", ["commit-begin", "decision-written", "decided", "between-commits", "committed"]
)
def test_a_new_driver_completes_the_batch_of_a_dead_one(
    kafka: str, topic: str, killer: set[str], step: str
) -> None:
    query = DirectQuery(kafka, topic, topic)
    query.commit(0, query.prepared(values("before")))
    killer.add(step)
    first = [query.prepared(values("a"), 0), query.prepared(values("b"), 1)]
    with pytest.raises(Killed):
        query.commit(1, *first)
    query.replay(1, values("a"), values("b"))
    assert query.output() == Counter(values("before") + values("a") + values("b"))
    assert query.open_ids() == []


def test_a_transaction_that_expires_before_the_decision_fails_its_batch(
    kafka: str, topic: str
) -> None:
    query = DirectQuery(kafka, topic, topic, **{"kafka.transaction.timeout.ms": "1000"})
    late = query.prepared(values("a"))
    wait_until(lambda: not query.open_ids(), "the timeout")
    with pytest.raises(ProtocolError, match=r"kafka\.transaction\.timeout\.ms"):
        query.commit(0, late)
    query.replay(0, values("a"))
    assert query.output() == Counter(values("a"))


def test_a_transaction_that_expires_after_the_decision_stops_the_query(
    kafka: str, topic: str, killer: set[str]
) -> None:
    query = DirectQuery(kafka, topic, topic, **{"kafka.transaction.timeout.ms": "1000"})
    killer.add("decided")
    with pytest.raises(Killed):
        query.commit(0, query.prepared(values("a")))
    wait_until(lambda: not query.open_ids(), "the timeout")
    with pytest.raises(ProtocolError, match="their rows are not in the output"):
        query.replay(0, values("a"))
