"""The profile of a topic with known measures, and the advice for other topics."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from millstream.spark.job.job_error import Failure, JobError
from millstream.spark.job.profiling.profile_advice import (
    TopicProfile,
    advice,
    partitions_needed,
    salt_count,
)
from millstream.spark.job.profiling.profile_job import profile
from millstream.spark.job.profiling.profile_measure import (
    CompressionSample,
    KeyDistribution,
    KeyMeasure,
    LoadShare,
    PartitionTime,
    TopicLoad,
)
from millstream.testing.broker import LocalBroker

START_MS = 1_700_000_000_000


@pytest.fixture
def topic(broker: LocalBroker, topic_name: str) -> str:
    """Four partitions: 60 records of one key, 10 keys, 20 records without a key, no records.

    Record `n` of each partition has a timestamp of `n` seconds."""
    broker.create_topic(topic_name, 4, {"retention.ms": -1})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    def send(partition: int, second: int, key: str | None, value: str | None) -> None:
        at = START_MS + second * 1000
        producer.produce(topic_name, value, key, partition=partition, timestamp=at)

    for n in range(60):
        send(0, n, "star", f"{n:08}" * 10)
    for n in range(10):
        send(1, n, f"key-{n}", "same" * 20)
    send(1, 4, "key-9", "same" * 20)  # a duplicate, and five seconds behind
    for n in range(19):
        send(2, n, None, f"{n:080}")
    send(2, 19, None, None)
    assert producer.flush(60) == 0
    return topic_name


def test_a_topic_with_known_figures(
    spark: SparkSession, broker: LocalBroker, topic: str, tmp_path: Path
) -> None:
    html = tmp_path / "profile.html"
    servers = broker.bootstrap_servers
    report = profile(topic, html=str(html), spark=spark, bootstrap_servers=servers)
    facts = report.facts
    assert facts["records"] == 91
    assert facts["bytes"] == 60 * 84 + 11 * 85 + 19 * 80
    assert (facts["null keys"], facts["null values"]) == (20, 1)
    assert facts["keys"] == 11
    assert facts["duplicates"] == 1
    assert (facts["out of order"], facts["out of order seconds max"]) == (1, 5.0)
    assert (facts["record bytes p50"], facts["record bytes max"]) == (84, 85)
    assert facts["records per second"] == pytest.approx(91 / 59)
    assert facts["peak records per second"] == 4
    assert (facts["partitions"], facts["partitions needed"]) == (4, 1)
    tables = report.as_json()
    partitions = tables["largest_partitions"]
    assert isinstance(partitions, list)
    assert [(row["partition"], row["records"]) for row in partitions] == [(0, 60), (2, 20), (1, 11)]
    keys = tables["largest_keys"]
    assert isinstance(keys, list)
    assert (keys[0]["key"], keys[0]["records"], keys[0]["hot"]) == ("star", 60, True)
    assert (keys[1]["key"], keys[1]["records"], keys[1]["hot"]) == ("key-9", 2, False)
    notes = "\n".join(report.notes)
    assert "Key 'star' has 66% of the records" in notes
    assert "salt it over 3 partitions" in notes
    assert "1 of 4 partitions have no records" in notes
    text = html.read_text()
    assert text.count("<svg") == 4
    assert "salt it over 3 partitions" in text
    for drawn in text.split("<svg")[1:]:
        ET.fromstring("<svg" + drawn[: drawn.index("</svg>")] + "</svg>")


def test_only_a_time_range(spark: SparkSession, broker: LocalBroker, topic: str) -> None:
    report = profile(
        topic,
        since_ms=START_MS + 10_000,
        until_ms=START_MS + 20_000,
        spark=spark,
        bootstrap_servers=broker.bootstrap_servers,
    )
    assert report.facts["records"] == 20


def test_unknown_topic(broker: LocalBroker) -> None:
    with pytest.raises(JobError, match="does not exist") as raised:
        profile("nowhere", bootstrap_servers=broker.bootstrap_servers)
    assert raised.value.kind is Failure.NOT_FOUND


def _profile(partitions: int = 4) -> TopicProfile:
    """An evenly spread topic of 40,000 records and 40 MB in 10 seconds, without advice."""
    amounts = tuple(
        LoadShare(n, 40_000 // partitions, 40_000_000 // partitions) for n in range(partitions)
    )
    times = tuple(PartitionTime(n, 10_000, 0.0, 10.0, 0, 0.0) for n in range(partitions))
    buckets = tuple(LoadShare(n, 4000, 4_000_000) for n in range(10))
    load = TopicLoad(40_000, 40_000_000, 0, 0, (1000, 1000, 1000), 1000, amounts, buckets)
    keys = KeyDistribution(1000, (KeyMeasure("k", 40, 40_000, 1),), (40,) * 1000)
    return TopicProfile(
        "orders", partitions, 1, times, load, keys, 0, CompressionSample(1000, {"lz4": 990})
    )


def test_an_even_topic_gets_no_advice() -> None:
    assert advice(_profile()) == []


def test_partitions_by_ten_megabytes_a_second() -> None:
    assert [partitions_needed(rate) for rate in (0, 1e6, 10e6, 10e6 + 1, 95e6)] == [1, 1, 1, 2, 10]
    even = _profile()
    peak = replace(even, load=replace(even.load, buckets=(LoadShare(0, 50_000, 75_000_000),)))
    assert any(
        "4 partitions are too few" in each and "8 are needed" in each for each in advice(peak)
    )


def test_a_hot_key_is_salted_over_the_partitions_that_it_fills() -> None:
    even = _profile()
    hot = KeyMeasure("star", 20_000, 20_000_000, 1)
    profiled = replace(even, keys=replace(even.keys, named=(hot,)))
    assert salt_count(profiled, hot) == 2
    assert any("'star' has 50%" in each for each in advice(profiled))
    random_bytes = CompressionSample(
        1000, {"zstd": 300, "lz4": random.Random(1).randrange(400, 500)}
    )
    assert any("30% with zstd" in each for each in advice(replace(even, packed=random_bytes)))
