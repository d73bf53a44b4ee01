"""The sink on Apache Kafka, as it is shipped and with everything of two-phase commit turned on.

Kafka keeps no prepared transaction in either case, so transactions have their timeout: output is
exact as long as a decided batch is finished within it, and the query stops with a reason if not.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from harness.broker_process import wait_until
from millstream.spark.error import ProtocolError
from spark.sink.direct_query import DirectQuery, Killed, committed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).parents[3]
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
    """Its address."""
    if str(REPOSITORY) not in sys.path:
        sys.path.append(str(REPOSITORY))
    from bench.brokers import JARS, Kafka

    if not JARS.is_dir():
        pytest.skip("Apache Kafka's jars are not there: run scripts/setup-test-tools")
    server = Kafka()
    try:
        settings = server.folder / "server.properties"
        lines = "".join(f"{name}={value}\n" for name, value in (SETTINGS | request.param).items())
        settings.write_text(settings.read_text() + lines)
        server.start()
        yield server.bootstrap
    finally:
        server.remove()


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
    """A batch, and a stream that goes on after a restart."""
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


def test_a_topic_is_made_by_being_written_to(kafka: str, topic_name: str) -> None:
    world = DirectQuery(kafka, topic_name, topic_name)
    world.commit(0, world.prepared(values("a")))
    assert world.output() == Counter(values("a"))


@pytest.mark.parametrize(
    "step", ["commit-begin", "decision-written", "decided", "between-commits", "committed"]
)
def test_a_driver_that_died_is_replayed(
    kafka: str, topic: str, killer: set[str], step: str
) -> None:
    world = DirectQuery(kafka, topic, topic)
    world.commit(0, world.prepared(values("before")))
    killer.add(step)
    first = [world.prepared(values("a"), 0), world.prepared(values("b"), 1)]
    with pytest.raises(Killed):
        world.commit(1, *first)
    world.replay(1, values("a"), values("b"))
    assert world.output() == Counter(values("before") + values("a") + values("b"))
    assert world.open_ids() == []


def test_a_transaction_whose_time_is_up_before_the_decision_fails_its_batch(
    kafka: str, topic: str
) -> None:
    world = DirectQuery(kafka, topic, topic, **{"kafka.transaction.timeout.ms": "1000"})
    late = world.prepared(values("a"))
    wait_until(lambda: not world.open_ids(), "the timeout")
    with pytest.raises(ProtocolError, match=r"kafka\.transaction\.timeout\.ms"):
        world.commit(0, late)
    world.replay(0, values("a"))
    assert world.output() == Counter(values("a"))


def test_a_transaction_whose_time_is_up_after_the_decision_stops_the_query(
    kafka: str, topic: str, killer: set[str]
) -> None:
    world = DirectQuery(kafka, topic, topic, **{"kafka.transaction.timeout.ms": "1000"})
    killer.add("decided")
    with pytest.raises(Killed):
        world.commit(0, world.prepared(values("a")))
    wait_until(lambda: not world.open_ids(), "the timeout")
    with pytest.raises(ProtocolError, match="their rows are not in the output"):
        world.replay(0, values("a"))
