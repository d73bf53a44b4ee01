"""A stream copies decoded values once, and turns the others into dead letters.

The commands for dead letters list, show, group and replay them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from google.protobuf.wrappers_pb2 import StringValue
from typer.testing import CliRunner

from harness.process.broker_process import wait_until
from harness.spark_reading import options_for, read_client
from millstream.cli.main import build
from millstream.client.serializer import AvroSerializer
from millstream.spark.decode import decoded, split
from millstream.testing.broker import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEADLINE_S = 180
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
FORMATS: dict[str, Any] = {"json": "id STRING NOT NULL", "avro": AVRO, "protobuf": StringValue}
#: A value that decodes to `id`, and one that does not.
VALUES: dict[str, Any] = {
    "json": (lambda name: json.dumps({"id": name}).encode(), b'{"order": "o1"}'),
    "avro": (lambda name: AvroSerializer(AVRO).serialize({"id": name}), b"\x7fshort"),
    "protobuf": (lambda name: StringValue(value=name).SerializeToString(), b"\x0a\xff"),
}


class Shop:
    """One topic per format, and queries that decode all of them."""

    def __init__(self, spark: SparkSession, broker: LocalBroker, name: str, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.topics = {kind: f"{name}-{kind}" for kind in FORMATS}
        self.target = f"{name}-ids"
        for topic in (*self.topics.values(), self.target):
            broker.create_topic(topic, 1)
        for topic in self.topics.values():
            broker.create_topic(f"{topic}.dlq", 1)

    def produce(self, names: list[str], *, is_bad_after: bool) -> None:
        """Send a record for each name to each topic, and then one that does not decode."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers})
        for kind, topic in self.topics.items():
            good, bad = VALUES[kind]
            for value in [*map(good, names), *([bad] if is_bad_after else [])]:
                producer.produce(topic, value, "key", headers=[("color", b"red")])
        assert producer.flush(60) == 0

    def start(self, formats: dict[str, Any]) -> list[StreamingQuery]:
        """Run two queries over one source: decoded rows and dead letters."""
        options = options_for(
            self.broker,
            ",".join(self.topics.values()),
            startingOffsets="earliest",
            includeHeaders="true",
        )
        records = self.spark.readStream.format("millstream").options(**options).load()
        valid, letters = None, None
        for kind, topic in self.topics.items():
            rows = decoded(
                records.where(f"topic = '{topic}'"),
                formats[kind],
                format=kind,  # type: ignore[arg-type]
                into="order",
            )
            parts = split(rows, group_id="billing", headers=True)
            field = "value" if kind == "protobuf" else "id"
            ids = parts.valid.selectExpr("key", f"order.{field} as value")
            valid = ids if valid is None else valid.union(ids)
            dead = parts.dead_letters
            letters = dead if letters is None else letters.union(dead)
        assert valid is not None
        assert letters is not None
        return [self._write(valid, "ids", topic=self.target), self._write(letters, "letters")]

    def _write(self, frame: DataFrame, name: str, **options: str) -> StreamingQuery:
        writer = frame.writeStream.format("millstream").options(**options)
        return (
            writer.option("kafka.bootstrap.servers", self.broker.bootstrap_servers)
            .option("checkpointLocation", str(self.folder / name))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def ids(self) -> list[str]:
        rows = read_client(self.broker, self.target, 1, "read_committed")
        return sorted((row.value or b"").decode() for row in rows)

    def letters(self) -> list[int]:
        """Return the number of dead letters of each format."""
        topics = [f"{topic}.dlq" for topic in self.topics.values()]
        return [len(read_client(self.broker, topic, 1, "read_committed")) for topic in topics]


@pytest.fixture
def shop(spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path) -> Shop:
    return Shop(spark, broker, topic_name, tmp_path)


def _command(broker: LocalBroker, *words: str) -> str:
    environment = {"MILLSTREAM_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "NO_COLOR": "1"}
    done = CliRunner().invoke(build([words[0]]), list(words), env=environment)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_invalid_values_in_a_running_stream(shop: Shop) -> None:
    expected = sorted(["o1", "o2", "o3"] * 3)
    queries = shop.start(FORMATS)
    try:
        shop.produce(["o1", "o2"], is_bad_after=True)
        wait_until(lambda: len(shop.ids()) >= 6, "what decoded at first", DEADLINE_S)
        shop.produce(["o3"], is_bad_after=True)
        wait_until(lambda: len(shop.ids()) >= 9, "what decoded later", DEADLINE_S)
        wait_until(lambda: sum(shop.letters()) >= 6, "the letters", DEADLINE_S)
    finally:
        for query in queries:
            query.stop()
    assert [query.exception() for query in queries] == [None, None]
    assert (shop.ids(), shop.letters()) == (expected, [2, 2, 2])
    for kind in FORMATS:
        _check_letters(shop, kind)
    _check_replay(shop, expected)


def _check_letters(shop: Shop, kind: str) -> None:
    topic = shop.topics[kind]
    rows = json.loads(_command(shop.broker, "dlq", "list", topic, "--json"))
    # Two valid records precede the first invalid one, and one more precedes the second.
    places = [(row["topic"], row["partition"], row["offset"]) for row in rows]
    assert places == [(topic, 0, 2), (topic, 0, 4)]
    assert {(row["group"], row["attempts"], row["error_type"]) for row in rows} == {
        ("billing", 1, "DecodeError")
    }
    shown = json.loads(_command(shop.broker, "dlq", "show", topic, rows[1]["letter"], "--json"))
    assert shown["error_message"]
    assert shown["headers"] == [{"key": "color", "value": "red"}]
    # Text, or base64 for binary data.
    assert any(name in shown for name in ("value", "value_base64"))


def _check_replay(shop: Shop, expected: list[str]) -> None:
    """After a fix, replayed dead letters decode."""
    topic = shop.topics["json"]
    report = json.loads(_command(shop.broker, "job", "deadletters", topic, "--json"))
    assert [(row["error"], row["message"], row["letters"]) for row in report["by_error"]] == [
        ("DecodeError", "the field … is missing or null", 2)
    ]
    corrected = FORMATS | {"json": "id STRING, order STRING"}
    queries = shop.start(corrected)
    try:
        assert "2 letters replayed" in _command(shop.broker, "dlq", "replay", topic)
        wait_until(lambda: len(shop.ids()) >= 11, "what was replayed", DEADLINE_S)
    finally:
        for query in queries:
            query.stop()
    assert (shop.ids(), shop.letters()) == (sorted(["", "", *expected]), [2, 2, 2])
    assert "0 letters replayed" in _command(shop.broker, "dlq", "replay", topic)
