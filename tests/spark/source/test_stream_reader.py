"""The streaming reader, called in this process as Spark does, without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assignment
from confluent_kafka.admin import AdminClient, NewPartitions

from harness.spark_reading import options_for, produce_values
from millstream.spark.error import DataLoss, OptionError
from millstream.spark.source.source_schema import source_schema
from millstream.spark.source.stream_reader import StreamReader
from millstream.testing.broker import LocalBroker

_started: list[StreamReader] = []


@pytest.fixture(autouse=True)
def _stop_queries() -> Iterator[None]:
    yield
    while _started:
        _started.pop().stop()


class Query:
    """Calls a stream reader as Spark does: one object plans, and pickled copies read."""

    def __init__(self, options: Mapping[str, str], checkpoint: Any = None) -> None:
        self.reader = StreamReader(options, source_schema(options))
        _started.append(self.reader)
        self.end = self.reader.initialOffset() if checkpoint is None else checkpoint

    def batch(self) -> list[tuple[int, int, bytes]]:
        """Return the partition, offset and value of the next batch's records."""
        start = self.end
        self.end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        return self.read(start, self.end)

    def read(self, start: Any, end: Any) -> list[tuple[int, int, bytes]]:
        plans = self.reader.partitions(start, end)
        copy = pickle.loads(pickle.dumps(self.reader))
        names = ("partition", "offset", "value")
        return [
            row
            for plan in plans
            for batch in copy.read(plan)
            for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        ]


def _values(rows: list[tuple[int, int, bytes]]) -> list[bytes]:
    return [value for _, _, value in rows]


def _numbers(first: int, end: int) -> list[str]:
    return [f"value-{number}" for number in range(first, end)]


def test_batches_join(broker: LocalBroker, topic_name: str) -> None:
    broker.create_topic(topic_name, 2)
    produce_values(broker, topic_name, _numbers(0, 30), partition=0)
    produce_values(broker, topic_name, _numbers(0, 10), partition=1)
    query = Query(
        options_for(broker, topic_name, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    )
    batches = []
    while rows := query.batch():
        batches.append(rows)
    assert len(batches) == 5
    read = sorted((partition, offset) for rows in batches for partition, offset, _ in rows)
    assert read == [(0, offset) for offset in range(30)] + [(1, offset) for offset in range(10)]
    assert query.end == {topic_name: {"0": 30, "1": 10}}
    assert query.reader.reportLatestOffset() == query.end


def test_latest_is_kept_through_a_crash_in_the_first_batch(
    broker: LocalBroker, topic_name: str
) -> None:
    """The first batch is empty, also when it is repeated, and later batches miss no record."""
    broker.create_topic(topic_name, 1)
    produce_values(broker, topic_name, ["before"])
    options = options_for(broker, topic_name)
    query = Query(options)
    assert query.batch() == []
    kept = query.end
    produce_values(broker, topic_name, ["after"])
    again = Query(options)
    assert again.end != kept
    assert again.read(again.end, kept) == []
    again.end = kept
    assert _values(again.batch()) == [b"after"]


def test_new_partitions(broker: LocalBroker, topic_name: str) -> None:
    broker.create_topic(topic_name, 1)
    query = Query(options_for(broker, topic_name, startingOffsets="earliest"))
    produce_values(broker, topic_name, ["first"])
    assert _values(query.batch()) == [b"first"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic_name, 3)])[topic_name].result(30)
    produce_values(broker, topic_name, ["second"], partition=2)
    assert query.batch() == [(2, 0, b"second")]
    assert query.end == {topic_name: {"0": 1, "1": 0, "2": 1}}


def test_new_topics_of_a_pattern(broker: LocalBroker, topic_name: str) -> None:
    options = options_for(
        broker, "", subscribePattern=f"{topic_name}-.*", startingOffsets="earliest"
    )
    query = Query(options)
    assert query.batch() == []
    broker.create_topic(f"{topic_name}-a", 1)
    produce_values(broker, f"{topic_name}-a", ["found"])
    assert _values(query.batch()) == [b"found"]


def test_available_now_stops_at_the_end_offsets_of_its_start(
    broker: LocalBroker, topic_name: str
) -> None:
    broker.create_topic(topic_name, 1)
    produce_values(broker, topic_name, _numbers(0, 10))
    query = Query(
        options_for(broker, topic_name, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    )
    query.reader.prepareForTriggerAvailableNow()
    produce_values(broker, topic_name, _numbers(10, 20))
    rows = [query.batch(), query.batch(), query.batch()]
    assert [len(batch) for batch in rows] == [4, 4, 2]
    assert query.batch() == []


def test_waits_for_min_offsets_per_trigger(broker: LocalBroker, topic_name: str) -> None:
    broker.create_topic(topic_name, 1)
    query = Query(
        options_for(broker, topic_name, startingOffsets="earliest", minOffsetsPerTrigger=5)
    )
    produce_values(broker, topic_name, _numbers(0, 3))
    assert len(query.batch()) == 3, "the first batch waits for nobody"
    produce_values(broker, topic_name, _numbers(3, 6))
    assert query.batch() == []
    produce_values(broker, topic_name, _numbers(6, 8))
    assert len(query.batch()) == 5


def test_reading_times_out(broker: LocalBroker, topic_name: str) -> None:
    broker.create_topic(topic_name, 1)
    options = options_for(
        broker,
        topic_name,
        startingOffsets="earliest",
        minOffsetsPerTrigger=5,
        maxTriggerDelay="0ms",
    )
    query = Query(options)
    produce_values(broker, topic_name, ["one"])
    assert len(query.batch()) == 1
    produce_values(broker, topic_name, ["two"])
    assert len(query.batch()) == 1


def test_topic_created_again(
    broker: LocalBroker, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic(topic_name, 1)
    produce_values(broker, topic_name, _numbers(0, 5))
    options = options_for(broker, topic_name, startingOffsets="earliest")
    strict, lenient = Query(options), Query(options | {"failOnDataLoss": "false"})
    restarted = Query(options)
    assert len(strict.batch()) == len(lenient.batch()) == len(restarted.batch()) == 5
    broker.delete_topic(topic_name)
    with pytest.raises(DataLoss, match=f"{topic_name}-0 was deleted; it was read up to offset 5"):
        strict.batch()
    broker.create_topic(topic_name, 1)
    produce_values(broker, topic_name, ["new-0", "new-1"])
    with pytest.raises(DataLoss, match=f"Topic {topic_name} was deleted and created again"):
        strict.batch()
    with pytest.raises(DataLoss, match="was read up to offset 5, but now ends at 2"):
        Query(options, restarted.end).batch()
    assert _values(lenient.batch()) == [b"new-0", b"new-1"]
    assert "created again" in caplog.text


def test_topic_is_deleted_before_the_query_restarts(
    broker: LocalBroker, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    topics = [f"{topic_name}-a", f"{topic_name}-b"]
    for topic in topics:
        broker.create_topic(topic, 1)
        produce_values(broker, topic, _numbers(0, 5))
    options = options_for(broker, ",".join(topics), startingOffsets="earliest")
    query = Query(options)
    assert len(query.batch()) == 10
    broker.delete_topic(topics[0])
    produce_values(broker, topics[1], ["new"])
    with pytest.raises(OptionError, match=f"subscribe names topic {topics[0]}, which does not"):
        Query(options, query.end).batch()
    lenient = options | {"failOnDataLoss": "false"}
    assert _values(Query(lenient, query.end).batch()) == [b"new"]
    assert f"{topics[0]}-0 was deleted; it was read up to offset 5" in caplog.text
    with pytest.raises(OptionError, match="which does not exist"):
        Query(lenient)


def test_progress_is_committed(broker: LocalBroker, topic_name: str) -> None:
    broker.create_topic(topic_name, 2)
    produce_values(broker, topic_name, _numbers(0, 7), partition=1)
    group = f"group-{topic_name}"
    query = Query(
        options_for(broker, topic_name, startingOffsets="earliest", kafka__group__id=group)
    )
    assert len(query.batch()) == 7
    query.reader.commit(query.end)
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group}
    consumer = Consumer(config)
    wanted = [Assignment(topic_name, number) for number in range(2)]
    assert [row.offset for row in consumer.committed(wanted, 30)] == [0, 7]
    consumer.close()
