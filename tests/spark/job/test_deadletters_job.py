"""The report of dead letters of every kind."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from millstream.client.worker.message import header as names
from millstream.spark.job.deadletters_job import deadletters
from millstream.testing.broker import LocalBroker

START_MS = 1_700_000_000_000
#: Error type, message, consumer, value, and the number of such dead letters.
LETTERS = [
    ("ValueError", "order {n} has no price", "billing", b'{"id": %d, "who": "x"}', 4),
    ("Timeout", "no answer from 'host-{n}' in 30 s", "billing", b"\x00\x00\x00\x00\x07abc%d", 3),
    ("Rejected", "", "mail", b'{"id": %d', 2),
]


@pytest.fixture
def dead_letters(broker: LocalBroker, topic_name: str) -> str:
    """A dead-letter topic with one letter per minute; another program wrote the last of the ten."""
    topic = f"{topic_name}.dlq"
    broker.create_topic(topic, 1, {"retention.ms": -1})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    number = 0
    for error, message, group, value, count in LETTERS:
        for _ in range(count):
            headers = {
                names.TOPIC: topic_name,
                names.GROUP: group,
                names.ERROR_TYPE: error,
                names.ERROR_MESSAGE: message.format(n=number),
                names.DEAD_TIMESTAMP: str(START_MS + number * 60_000),
            }
            producer.produce(topic, value % number, f"key-{number}", headers=headers)
            number += 1
    producer.produce(topic, b"\xff\xfe", None, timestamp=START_MS + number * 60_000)
    assert producer.flush(60) == 0
    return topic_name


def _report(spark: SparkSession, broker: LocalBroker, topic: str, **options: Any) -> dict[str, Any]:
    report = deadletters(topic, spark=spark, bootstrap_servers=broker.bootstrap_servers, **options)
    return report.as_json()


def _counts(rows: list[dict[str, Any]], *columns: str) -> dict[tuple[Any, ...], int]:
    return {tuple(row[name] for name in columns): row["letters"] for row in rows}


def test_letters_are_grouped(spark: SparkSession, broker: LocalBroker, dead_letters: str) -> None:
    found = _report(spark, broker, dead_letters)
    assert found["letters"] == 10
    assert _counts(found["by_error"], "error", "message") == {
        ("ValueError", "order # has no price"): 4,
        ("Timeout", "no answer from … in # s"): 3,
        ("Rejected", ""): 2,
        ("", ""): 1,
    }
    assert found["by_error"][0]["share"] == 0.4
    assert _counts(found["by_source"], "source", "consumer") == {
        (dead_letters, "billing"): 7,
        (dead_letters, "mail"): 2,
        ("", ""): 1,
    }
    assert _counts(found["by_schema"], "schema", "error") == {
        ("json {id, who}", "ValueError"): 4,
        ("schema id 7", "Timeout"): 3,
        ("broken json", "Rejected"): 2,
        ("binary", ""): 1,
    }
    assert sum(row["letters"] for row in found["by_time"]) == 10
    assert found["by_time"][0]["time"] == "2023-11-14T22:13:15Z"


def test_samples_are_the_newest_of_each_error(
    spark: SparkSession, broker: LocalBroker, dead_letters: str
) -> None:
    found = _report(spark, broker, dead_letters, samples=1)
    assert [(row["letter"], row["error"], row["message"]) for row in found["samples"]] == [
        ("0:3", "ValueError", "order 3 has no price"),
        ("0:6", "Timeout", "no answer from 'host-6' in 30 s"),
        ("0:8", "Rejected", ""),
        ("0:9", "", ""),
    ]
    assert found["samples"][0]["value"] == '{"id": 3, "who": "x"}'
    assert found["samples"][3]["value"] == "0xFFFE"


def test_letters_of_a_time_range(
    spark: SparkSession, broker: LocalBroker, dead_letters: str
) -> None:
    found = _report(
        spark, broker, dead_letters, since_ms=START_MS + 60_000, until_ms=START_MS + 300_000
    )
    assert found["letters"] == 4
    assert _report(spark, broker, dead_letters, until_ms=START_MS - 1)["letters"] == 0
