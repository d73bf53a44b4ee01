"""The source reads each record once, as librdkafka does, for all kinds of topics and splits.

These tests call the readers as Spark does, without Spark.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from confluent_kafka import Producer

from harness.process.broker_process import wait_until
from harness.spark_reading import (
    Row,
    options_for,
    produce_random,
    produce_values,
    random_records,
    raw_client,
    read_client,
    read_source,
)
from millstream.records.batch import HEADER_BYTES, stamp_crc
from millstream.records.builder import build_batch
from millstream.spark.error import DataLoss, OptionError, ProtocolError, Unavailable
from millstream.spark.source.batch_reader import BatchReader
from millstream.spark.source.source_schema import source_schema
from millstream.testing.broker import LocalBroker
from millstream.wire.messages.delete_records import DeleteRecordsRequest

_SPLITS: list[dict[str, object]] = [
    {},
    {"minPartitions": 7},
    {"maxRecordsPerPartition": 13},
    {"minPartitions": 40, "maxRecordsPerPartition": 100},
    {"kafka__fetch__max__bytes": 1},
]


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.partition, row.offset))


@pytest.fixture(scope="module")
def random_topic(broker: LocalBroker) -> str:
    broker.create_topic("random", 3)
    produce_random(broker, "random", random.Random(6), partitions=3, batches=60)
    return "random"


@pytest.mark.parametrize("split", _SPLITS)
def test_every_codec(broker: LocalBroker, random_topic: str, split: dict[str, object]) -> None:
    found = read_source(options_for(broker, random_topic, **split))
    assert _sorted(found) == read_client(broker, random_topic, 3)
    by_partition = [[row for row in found if row.partition == number] for number in range(3)]
    assert all(low.offset < high.offset for rows in by_partition for low, high in pairwise(rows))


def test_append_time(broker: LocalBroker, topic_name: str) -> None:
    broker.create_topic(topic_name, 1, {"message.timestamp.type": "LogAppendTime"})
    produce_random(broker, topic_name, random.Random(7), partitions=1, batches=10)
    found = read_source(options_for(broker, topic_name))
    assert found == read_client(broker, topic_name, 1)
    assert {row.timestamp_type for row in found} == {1}


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("split", [{}, {"minPartitions": 25}])
def test_transactions(broker: LocalBroker, isolation: str, split: dict[str, object]) -> None:
    topic = _transactional_topic(broker)
    found = read_source(options_for(broker, topic, kafka__isolation__level=isolation, **split))
    assert _sorted(found) == read_client(broker, topic, 2, isolation)
    assert any(row.value == b"aborted" for row in found) == (isolation == "read_uncommitted")


def _transactional_topic(broker: LocalBroker) -> str:
    """Write committed and aborted transactions and plain records; one transaction stays open."""
    topic = "transactional"
    with raw_client(broker) as client:
        try:
            client.create_topic(topic, 2)
        except AssertionError:
            return topic
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "writer"}
    producer = Producer(config)
    producer.init_transactions(60)
    for number in range(12):
        producer.begin_transaction()
        value = "aborted" if number % 3 == 1 else f"kept-{number}"
        for partition in (0, 1, 1):
            producer.produce(topic, value, partition=partition)
        assert producer.flush(60) == 0
        produce_values(broker, topic, [f"plain-{number}"], partition=number % 2)
        if number % 3 == 1:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    return topic


def test_compacted(broker: LocalBroker, topic_name: str) -> None:
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0,
        "segment.bytes": 16_384,
        "max.compaction.lag.ms": 1,
    }
    broker.create_topic(topic_name, 1, configs)
    chooser = random.Random(8)
    with raw_client(broker) as client:
        for _ in range(30):
            records = [
                record._replace(key=b"key-%d" % chooser.randrange(40))
                for record in random_records(chooser, 30)
            ]
            assert client.produce(topic_name, build_batch(records)).error_code == 0
    wait_until(lambda: len(read_client(broker, topic_name, 1)) < 600, "compaction")
    # Compaction runs meanwhile, so the result is compared with the content before and after.
    while True:
        before = read_client(broker, topic_name, 1)
        found = [read_source(options_for(broker, topic_name, **split)) for split in _SPLITS[:3]]
        if before == read_client(broker, topic_name, 1):
            break
    assert [_sorted(rows) for rows in found] == [before] * 3


def test_empty_topic(broker: LocalBroker, topic_name: str) -> None:
    broker.create_topic(topic_name, 2)
    assert read_source(options_for(broker, topic_name)) == []


# Where reading starts and ends


@pytest.fixture(scope="module")
def timed_topic(broker: LocalBroker) -> str:
    """Two partitions of 50 records; offset n has timestamp 1000 + 10 * n."""
    broker.create_topic("timed", 2)
    for partition in range(2):
        with raw_client(broker) as client:
            for first in range(0, 50, 10):
                records = [
                    record._replace(timestamp=1000 + 10 * (first + record.offset))
                    for record in random_records(random.Random(first), 10)
                ]
                batch = build_batch(records)
                assert client.produce("timed", batch, partition).error_code == 0
    return "timed"


def _bounds(rows: list[Row]) -> list[tuple[int, int]]:
    found = []
    for partition in range(2):
        offsets = [row.offset for row in rows if row.partition == partition]
        assert offsets == list(range(offsets[0], offsets[-1] + 1)) if offsets else True
        found.append((offsets[0], offsets[-1]) if offsets else (-1, -1))
    return found


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        (
            {
                "startingOffsets": '{"timed":{"0":5,"1":-2}}',
                "endingOffsets": '{"timed":{"0":-1,"1":7}}',
            },
            [(5, 49), (0, 6)],
        ),
        ({"startingTimestamp": 1095, "endingTimestamp": 1200}, [(10, 19), (10, 19)]),
        (
            {
                "startingOffsetsByTimestamp": '{"timed":{"0":1480,"1":0}}',
                "endingOffsetsByTimestamp": '{"timed":{"0":99999,"1":1010}}',
            },
            [(48, 49), (0, 0)],
        ),
        (
            {"startingTimestamp": 9999, "startingOffsetsByTimestampStrategy": "latest"},
            [(-1, -1), (-1, -1)],
        ),
        ({"assign": '{"timed":[1]}'}, [(-1, -1), (0, 49)]),
        ({"subscribePattern": "tim.d"}, [(0, 49), (0, 49)]),
        ({"subscribePattern": "time"}, [(-1, -1), (-1, -1)]),
    ],
)
def test_positions(
    broker: LocalBroker,
    timed_topic: str,
    options: dict[str, object],
    bounds: list[tuple[int, int]],
) -> None:
    assert _bounds(read_source(options_for(broker, timed_topic, **options))) == bounds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingTimestamp": 9999}, "startingTimestamp: timed-0 has no record at or after 9999"),
        ({"startingOffsets": '{"timed":{"0":5}}'}, "startingOffsets must name.*lacks timed-1"),
        (
            {"endingOffsets": '{"timed":{"0":5,"1":5,"2":5}}'},
            "endingOffsets must name.*has timed-2, which is not read",
        ),
        ({"assign": '{"timed":[3]}'}, "assign names timed-3, but timed has no such partition"),
        ({"subscribe": "nowhere"}, "subscribe names topic nowhere, which does not exist"),
    ],
)
def test_wrong_positions(
    broker: LocalBroker, timed_topic: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        read_source(options_for(broker, timed_topic, **options))


@pytest.mark.parametrize(("option", "offset"), [("startingOffsets", 51), ("endingOffsets", 60)])
def test_offsets_outside_the_log(
    broker: LocalBroker,
    timed_topic: str,
    option: str,
    offset: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = options_for(broker, timed_topic, **{option: f'{{"timed":{{"0":{offset},"1":3}}}}'})
    sentence = f"{option} has offset {offset} for timed-0, but its log has offsets 0 to 49"
    with pytest.raises(DataLoss, match=sentence):
        read_source(options)
    found = read_source(options | {"failOnDataLoss": "false"})
    assert all(row.partition == 1 or option == "endingOffsets" for row in found)
    assert sentence in caplog.text


def test_log_start_moves_between_plan_and_read(
    broker: LocalBroker, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Delete records before an offset, as retention does."""
    broker.create_topic(topic_name, 1)
    produce_values(broker, topic_name, [f"value-{n}" for n in range(100)])
    options = options_for(broker, topic_name)
    readers = [
        BatchReader(options | {"failOnDataLoss": fails}, source_schema(options))
        for fails in ("true", "false")
    ]
    plans = [reader.partitions() for reader in readers]
    _delete_before(broker, topic_name, 60)
    with pytest.raises(DataLoss, match=f"Offsets 0 to 59 of {topic_name}-0 are gone"):
        list(readers[0].read(plans[0][0]))
    batches = list(readers[1].read(plans[1][0]))
    assert [n for batch in batches for n in batch.column("offset").to_pylist()] == [*range(60, 100)]
    assert f"Offsets 0 to 59 of {topic_name}-0 are gone" in caplog.text


def _delete_before(broker: LocalBroker, topic: str, offset: int) -> None:
    shape = DeleteRecordsRequest.Topic
    part = shape.Partition(partition_index=0, offset=offset)
    with raw_client(broker) as client:
        client.call(
            DeleteRecordsRequest(topics=[shape(name=topic, partitions=[part])], timeout_ms=10_000)
        )


def test_topic_created_again_between_plan_and_read(broker: LocalBroker, topic_name: str) -> None:
    broker.create_topic(topic_name, 1)
    produce_values(broker, topic_name, [f"old-{n}" for n in range(10)])
    options = options_for(broker, topic_name)
    reader = BatchReader(options, source_schema(options))
    (plan,) = reader.partitions()
    broker.delete_topic(topic_name)
    with pytest.raises(DataLoss, match=f"Topic {topic_name} was deleted, so offsets 0 to 9"):
        list(reader.read(plan))
    broker.create_topic(topic_name, 1)
    produce_values(broker, topic_name, [f"new-{n}" for n in range(20)])
    with pytest.raises(DataLoss, match=f"Topic {topic_name} was deleted and created again"):
        list(reader.read(plan))


# Unavailable brokers


def test_no_broker() -> None:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "subscribe": "topic",
        "kafka.default.api.timeout.ms": "300",
    }
    with pytest.raises(Unavailable, match=r"could not get metadata .* 127\.0\.0\.1:1 .*refused"):
        read_source(options)


def test_lost_connections(broker: LocalBroker, random_topic: str) -> None:
    expected = read_client(broker, random_topic, 3)
    options = options_for(broker, random_topic, includeHeaders="true", kafka__fetch__max__bytes=1)
    reader = BatchReader(options, source_schema(options))
    offsets = []
    for plan in reader.partitions():
        for batch in reader.read(plan):
            offsets += batch.column("offset").to_pylist()
            broker.drop_connections()
    assert len(offsets) == len(expected)


def test_broker_stops_in_the_middle(topic_name: str) -> None:
    with LocalBroker() as broker:
        broker.create_topic(topic_name, 1)
        produce_values(broker, topic_name, [f"value-{n}" for n in range(50)])
        options = options_for(broker, topic_name, kafka__default__api__timeout__ms=500)
        reader = BatchReader(options, source_schema(options))
        (plan,) = reader.partitions()
        broker.stop()
        with pytest.raises(Unavailable, match=f"could not read {topic_name}-0 at offset 0"):
            list(reader.read(plan))
        broker.start()
        (batch,) = reader.read(plan)
        assert batch.num_rows == 50


def test_a_corrupt_batch_is_named(broker: LocalBroker, topic_name: str) -> None:
    broker.create_topic(topic_name, 1, {"compression.type": "producer"})
    batch = build_batch(random_records(random.Random(1), 5))
    with raw_client(broker) as client:
        batch[HEADER_BYTES] ^= 0x40
        stamp_crc(batch, 0, len(batch))
        assert client.produce(topic_name, batch).error_code == 0
    with pytest.raises(ProtocolError, match=f"{topic_name}-0 is damaged: at offset 0"):
        read_source(options_for(broker, topic_name))
