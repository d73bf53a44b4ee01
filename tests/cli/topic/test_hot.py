from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from millstream.cli.support.reading import Reading

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.fixture
def skewed(broker: str, topic: str) -> str:
    """A topic with 400 records. Three quarters have the same key and are in partition 1."""
    producer = Producer({"bootstrap.servers": broker})
    for number in range(400):
        key = b"\xffhot" if number % 4 else b"cold-%d" % number
        producer.produce(topic, b"x", key, partition=1 if number % 4 else number // 4 % 3)
    assert producer.flush(60) == 0
    return topic


def test_hot_keys_and_partitions_are_found(ask: Run, skewed: str) -> None:
    outcome = ask("topic", "hot", skewed, "--json", "--top", "2")
    assert outcome.code == 0, outcome
    report = json.loads(outcome.out)
    assert (report["topic"], report["records"]) == (skewed, 400)
    assert report["sample"] == {
        "records": 400,
        "share_error": 0.0,
        "share_without_key": 0.0,
        "complete": True,
    }
    first, *others = report["partitions"]
    assert (first["partition"], first["records"], first["hot"]) == (1, 333, True)
    assert [row["hot"] for row in others] == [False, False]
    hottest, next_one = report["keys"]
    assert hottest == {
        "key_base64": "/2hvdA==",
        "share_min": 0.75,
        "share_max": 0.75,
        "partitions": [1],
        "hot": True,
    }
    assert next_one["key"].startswith("cold-")
    assert not next_one["hot"]


def test_without_json_it_prints_tables(ask: Run, skewed: str) -> None:
    outcome = ask("topic", "hot", skewed, "--max-records", "100", "--by", "bytes")
    assert outcome.code == 0, outcome
    assert "sample of 10" in outcome.out
    assert "TIMES EVEN" in outcome.out
    assert "base64:/2hvdA==" in outcome.out
    assert outcome.error == ""


def test_a_window_without_records(ask: Run, skewed: str) -> None:
    report = json.loads(ask("topic", "hot", skewed, "--since", "2100-01-01", "--json").out)
    assert (report["records"], report["keys"], report["sample"]["complete"]) == (0, [], True)
    assert len(report["partitions"]) == 3


def test_a_sample_that_exceeds_its_time_prints_a_note(
    ask: Run, skewed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Reading.sample
    monkeypatch.setattr(Reading, "sample", lambda reading, _: sample(reading, 0.0))
    outcome = ask("topic", "hot", skewed)
    assert outcome.code == 0, outcome
    assert "sample of 0 records" in outcome.out
    assert "--max-time ended before" in outcome.error


def test_a_malformed_time_is_a_usage_error(ask: Run, skewed: str) -> None:
    outcome = ask("topic", "hot", skewed, "--since", "never")
    assert outcome.code == 2, outcome
    assert "--since" in outcome.error


def test_a_topic_that_does_not_exist(ask: Run) -> None:
    outcome = ask("topic", "hot", "nope")
    assert outcome.code == 3, outcome
    assert "topic 'nope' does not exist" in outcome.error
