"""Audits of topics and tables with known errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from millstream.spark.job.auditing.audit_job import Question, audit
from millstream.spark.job.job_error import JobError
from millstream.spark.job.report import Report
from millstream.testing.broker import LocalBroker

START_MS = 1_700_000_000_000
#: The key, value, partition and timestamp (in seconds) of a record.
Sent: TypeAlias = tuple[str | None, str, int, int]
Fill: TypeAlias = Callable[[str, Iterable[Sent]], str]
Ask: TypeAlias = Callable[..., Report]


@pytest.fixture
def fill(broker: LocalBroker, topic_name: str) -> Fill:
    """Create a topic of two partitions with these records. Return its name."""

    def send(suffix: str, records: Iterable[Sent]) -> str:
        topic = f"{topic_name}-{suffix}"
        broker.create_topic(topic, 2, {"retention.ms": -1})
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for key, value, partition, second in records:
            producer.produce(
                topic,
                value,
                key,
                partition=partition,
                timestamp=START_MS + second * 1000,
                headers=[("id", value.partition("/")[0].encode())],
            )
        assert producer.flush(60) == 0
        return topic

    return send


@pytest.fixture
def ask(spark: SparkSession, broker: LocalBroker) -> Ask:
    def run(source: str, outputs: list[str], **question: Any) -> Report:
        return audit(
            source,
            outputs,
            Question(**question),
            spark=spark,
            bootstrap_servers=broker.bootstrap_servers,
        )

    return run


def _input(count: int = 20) -> list[Sent]:
    """Record `n` has one of four keys, partition `n % 2`, and a timestamp of `n` seconds."""
    return [(f"k{n % 4}", f"{n}", n % 2, n) for n in range(count)]


def _wrong(report: Report) -> dict[str, Any]:
    names = ("missing", "duplicate", "unexpected", "reordered", "late")
    return {name: report.facts[name] for name in names if report.facts.get(name)}


def test_a_copy_is_exactly_once(fill: Fill, ask: Ask) -> None:
    source = fill("in", _input())
    copy = fill("out", [(key, value, 1 - part, at) for key, value, part, at in _input()])
    report = ask(source, [copy])
    assert report.is_ok
    assert report.outcome == f"Exactly once: 20 records of {source} are in {copy}, each once."
    assert report.facts["matched"] == 20


def test_each_kind_of_error_is_counted_by_key_and_time(fill: Fill, ask: Ask) -> None:
    sent = _input()
    written = [*sent]
    del written[3]  # missing: key k3
    written += [sent[4], sent[4]]  # two duplicates of key k0
    written += [("k9", "nobody's", 0, 100)]  # unexpected
    # Records 6 and 10 have the same key and partition. They are swapped.
    at, later = written.index(sent[6]), written.index(sent[10])
    written[at], written[later] = written[later], written[at]
    report = ask(fill("in", sent), [fill("out", written)])
    assert not report.is_ok
    assert _wrong(report) == {"missing": 1, "duplicate": 2, "unexpected": 1, "reordered": 1}
    by_key = {row["key"]: row for row in report.as_json()["by_key"]}  # type: ignore[attr-defined]
    assert by_key["k3"]["missing"] == 1
    assert by_key["k0"]["duplicate"] == 2
    assert by_key["k9"]["unexpected"] == 1
    assert by_key["k2"]["reordered"] == 1
    by_time = {row["time"]: row for row in report.as_json()["by_time"]}  # type: ignore[attr-defined]
    assert sum(row["missing"] for row in by_time.values()) == 1
    examples = report.as_json()["examples"]
    assert isinstance(examples, list)
    assert len(examples) == 4


def test_duplicates_in_the_input_are_expected_in_the_output(fill: Fill, ask: Ask) -> None:
    source = fill("in", [*_input(), *_input()])
    once = fill("out", _input())
    assert _wrong(ask(source, [once])) == {"missing": 20}
    assert ask(source, [once], distinct=True).is_ok


def test_a_header_or_an_expression_is_the_identity(fill: Fill, ask: Ask) -> None:
    source = fill("in", _input())
    changed = fill("out", [(key, f"{value}/done", part, at) for key, value, part, at in _input()])
    assert _wrong(ask(source, [changed])) == {"missing": 20, "unexpected": 20}
    assert ask(source, [changed], identity="header:id").is_ok
    expression = "sql:split_part(string(value), '/', 1)"
    assert ask(source, [changed], identity=expression).is_ok
    nowhere = ask(source, [changed], identity="header:other")
    assert nowhere.facts["without identity"] == 40
    assert not nowhere.is_ok


def test_outputs_add_up_and_input_can_be_chosen(fill: Fill, ask: Ask) -> None:
    source = fill("in", _input())
    good, dead = fill("good", _input()[:15]), fill("dead", _input()[15:])
    assert ask(source, [good, dead]).is_ok
    assert _wrong(ask(source, [good])) == {"missing": 5}
    assert ask(source, [good], where="offset < 7 or int(string(value)) = 14").is_ok
    assert ask(source, [good], until_ms=START_MS + 15_000).is_ok


def test_late_records_are_errors_if_there_is_a_limit(fill: Fill, ask: Ask) -> None:
    late = [
        (key, value, part, at + (30 if value == "7" else 1)) for key, value, part, at in _input()
    ]
    source, output = fill("in", _input()), fill("out", late)
    assert ask(source, [output]).is_ok
    assert _wrong(ask(source, [output], late_s=10)) == {"late": 1}


def test_a_table_is_an_output(spark: SparkSession, fill: Fill, ask: Ask, tmp_path: Path) -> None:
    source = fill("in", _input())
    rows = [(int(value), key, n) for n, (key, value, _, _) in enumerate(_input())]
    path = str(tmp_path / "table")
    spark.createDataFrame([*rows[:-1], rows[0]], "id int, who string, n int").write.parquet(path)
    how = {"identity": "sql:string(value)", "output_identity": "sql:id", "key": "who", "order": "n"}
    assert _wrong(ask(source, [path], **how)) == {"missing": 1, "duplicate": 1}


def test_an_invalid_identity_is_rejected(ask: Ask) -> None:
    with pytest.raises(JobError, match="'name' is not an identity"):
        ask("whatever", ["elsewhere"], identity="name")
