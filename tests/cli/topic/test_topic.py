from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def test_create_and_list(ask: Run, topic: str) -> None:
    listed = ask("topic", "list")
    assert listed.code == 0
    (line,) = [line for line in listed.out.splitlines() if line.split()[:1] == [topic]]
    assert line.split()[1:] == ["3", "1", "0", "0"]


def test_list_as_json_by_pattern(ask: Run, topic: str) -> None:
    (row,) = json.loads(ask("topic", "list", topic, "--json").out)
    assert row == {
        "topic": topic,
        "partitions": 3,
        "replication_factor": 1,
        "without_leader": 0,
        "out_of_sync": 0,
    }
    nothing = ask("topic", "list", "no-such-*")
    assert nothing.code == 0
    assert nothing.out == ""
    assert "No topics match" in nothing.error
    assert json.loads(ask("topic", "list", "no-such-*", "--json").out) == []


def test_create_a_topic_that_exists(ask: Run, topic: str) -> None:
    again = ask("topic", "create", topic)
    assert again.code == 5, again
    assert topic in again.error
    assert ask("topic", "create", topic, "--if-not-exists").code == 0
    outcome = ask("topic", "create", topic, f"{topic}-b", "--if-not-exists", "--json", "-p", "1")
    assert json.loads(outcome.out) == [
        {"topic": topic, "result": "exists"},
        {"topic": f"{topic}-b", "result": "created"},
    ]


def test_one_bad_name_does_not_stop_the_others(ask: Run, topic: str) -> None:
    outcome = ask("topic", "create", "bad name", f"{topic}-good", "-p", "1", "--json")
    assert outcome.code == 1, outcome
    results = {row["topic"]: row["result"] for row in json.loads(outcome.out)}
    assert results == {"bad name": "failed", f"{topic}-good": "created"}
    assert outcome.error.startswith("error: creating topic 'bad name': ")


def test_dry_run_creates_nothing(ask: Run, topic: str) -> None:
    assert "would be created" in ask("topic", "create", f"{topic}-dry", "--dry-run").out
    assert json.loads(ask("topic", "list", f"{topic}-dry", "--json").out) == []


@pytest.mark.parametrize("config", ["retention.ms=soon", "no.such.config=1"])
def test_a_bad_config_is_named_in_the_error(ask: Run, topic: str, config: str) -> None:
    for command in (("create", f"{topic}-x", "-p", "1"), ("alter", topic)):
        outcome = ask("topic", *command, "-c", config)
        assert outcome.code == 1, outcome
        assert config.partition("=")[0] in outcome.error


def test_describe(ask: Run, topic: str) -> None:
    assert ask("produce", topic, "a", "b", "--partition", "1").code == 0
    (row,) = json.loads(ask("topic", "describe", topic, "--json").out)
    assert row["topic"] == topic
    assert len(row["topic_id"]) == 22
    assert row["internal"] is False
    assert [p["partition"] for p in row["partitions"]] == [0, 1, 2]
    assert [(p["start_offset"], p["end_offset"]) for p in row["partitions"]] == [
        (0, 0),
        (0, 2),
        (0, 0),
    ]
    assert all(p["isr"] == p["replicas"] == [p["leader"]] for p in row["partitions"])
    shown = ask("topic", "describe", topic).out
    assert "3 partitions, 2 offsets in the log" in shown
    assert "LEADER" in shown


def test_alter_configs_and_partitions(ask: Run, topic: str) -> None:
    assert ask("topic", "alter", topic, "-c", "retention.ms=3600000", "-p", "4").code == 0
    (row,) = json.loads(ask("topic", "describe", topic, "--json").out)
    assert row["configs"]["retention.ms"] == {"value": "3600000", "source": "topic"}
    assert len(row["partitions"]) == 4
    altered = ask("topic", "alter", topic, "-d", "retention.ms", "-c", "segment.bytes=2000000")
    assert "retention.ms reset to default" in altered.out
    (row,) = json.loads(ask("topic", "describe", topic, "--json", "--all-configs").out)
    assert row["configs"]["retention.ms"] == {"value": "604800000", "source": "default"}
    assert row["configs"]["segment.bytes"]["value"] == "2000000"
    fewer = ask("topic", "alter", topic, "-p", "2")
    assert fewer.code == 1
    assert "INVALID_PARTITIONS" in fewer.error


def test_delete(ask: Run, topic: str) -> None:
    refused = ask("topic", "delete", topic)
    assert refused.code == 2
    assert "--yes" in refused.error
    assert ask("topic", "delete", topic, "--yes").out == f"{topic}: deleted\n"
    assert ask("topic", "delete", topic, "--yes").code == 3
    outcome = ask("topic", "delete", topic, "--yes", "--if-exists", "--json")
    assert json.loads(outcome.out) == [{"topic": topic, "result": "absent"}]
    assert outcome.code == 0


@pytest.mark.parametrize(
    "command", [("describe", "nope"), ("alter", "nope", "-p", "9"), ("delete", "nope", "--yes")]
)
def test_a_topic_that_does_not_exist(ask: Run, command: tuple[str, ...]) -> None:
    outcome = ask("topic", *command)
    assert outcome.code == 3, outcome
    assert "topic 'nope' does not exist" in outcome.error
    assert outcome.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("alter", "t"),
        ("alter", "t", "-c", "retention.ms"),
        ("alter", "t", "-c", "a=1", "-d", "a"),
        ("create", "t", "-c", "=5"),
        ("create", "t", "-p", "0"),
        ("create",),
        ("list", "--no-such-option"),
    ],
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("topic", *arguments).code == 2


def test_topics_are_listed_by_a_regular_expression(ask: Run, topic: str) -> None:
    rows = json.loads(ask("topic", "list", f"{topic[:4]}.*{topic[4:]}", "--regex", "--json").out)
    assert [row["topic"] for row in rows] == [topic]
    wrong = ask("topic", "list", "(", "--regex")
    assert wrong.code == 2
    assert "not a regular expression" in wrong.error
