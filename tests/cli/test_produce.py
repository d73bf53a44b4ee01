from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def read_back(ask: Run, topic: str) -> list[dict[str, Any]]:
    outcome = ask("consume", topic, "--no-follow", "--json")
    assert outcome.code == 0, outcome
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_messages_from_arguments(ask: Run, topic: str) -> None:
    outcome = ask("produce", topic, "one", "zwölf", "", "-p", "0", "-k", "key", "-H", "a=1")
    assert outcome.code == 0, outcome
    assert outcome.out == ""
    assert outcome.error.startswith("3 messages acknowledged")
    rows = read_back(ask, topic)
    assert [row["value"] for row in rows] == ["one", "zwölf", ""]
    assert [row["offset"] for row in rows] == [0, 1, 2]
    assert all(row["key"] == "key" for row in rows)
    assert all(row["headers"] == [{"key": "a", "value": "1"}] for row in rows)


def test_messages_from_lines(ask: Run, topic: str) -> None:
    outcome = ask("produce", topic, "-p", "1", "-q", stdin=b"a\n\nb\r\n\xff\xfe\nlast")
    assert outcome.code == 0, outcome
    assert outcome.error == ""
    assert ask("consume", topic, "--no-follow").bytes == b"a\n\nb\n\xff\xfe\nlast\n"


def test_keys_nulls_and_the_partitioner_of_java(ask: Run, topic: str) -> None:
    lines = b"alpha\tone\nbeta\tNULL\nalpha\ttwo\n"
    assert ask("produce", topic, "-K", "\\t", "--null", "NULL", stdin=lines).code == 0
    rows = read_back(ask, topic)
    assert sorted((row["key"], row["value"] or "") for row in rows) == [
        ("alpha", "one"),
        ("alpha", "two"),
        ("beta", ""),
    ]
    # The Java client's partitioner: (murmur2(key) & 0x7fffffff) % 3.
    assert {row["key"]: row["partition"] for row in rows} == {"alpha": 1, "beta": 2}


def test_json_in_and_out(ask: Run, topic: str) -> None:
    lines = [
        {"key": "k", "value": {"a": 1}, "timestamp": 1_600_000_000_000, "headers": {"h": "x"}},
        {"key_base64": "/w==", "value": None},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    outcome = ask("produce", topic, "--json", "--partition", "2", stdin=text)
    assert outcome.code == 0, outcome
    summary = json.loads(outcome.out)
    assert (summary["acknowledged"], summary["failed"]) == (2, 0)
    assert summary["last_offsets"] == {"2": 1}
    first, second = read_back(ask, topic)
    assert first["value"] == '{"a":1}'
    assert first["timestamp"] == 1_600_000_000_000
    assert first["headers"] == [{"key": "h", "value": "x"}]
    assert (second["key_base64"], second["value"]) == ("/w==", None)


@pytest.mark.parametrize(
    ("codec", "acks"),
    [
        *(("none", "all"), ("gzip", "all"), ("snappy", "all"), ("lz4", "all"), ("zstd", "all")),
        *(("none", "1"), ("none", "0")),
    ],
)
def test_codecs_and_acks(ask: Run, topic: str, codec: str, acks: str) -> None:
    lines = "".join(f"line {n}\n" for n in range(1000))
    outcome = ask("produce", topic, "-z", codec, "-a", acks, "-p", "0", stdin=lines)
    assert outcome.code == 0, outcome
    follow = ask("consume", topic, "--from-beginning", "-p", "0", "-n", "1000")
    assert follow.out == lines


def test_a_bad_line_stops_after_earlier_lines_were_sent(ask: Run, topic: str) -> None:
    outcome = ask("produce", topic, "-K", ":", stdin="k:v\nnothing\nk:w\n")
    assert outcome.code == 2, outcome
    assert "input line 2: it has no separator ':'" in outcome.error
    assert [row["value"] for row in read_back(ask, topic)] == ["v"]


def test_a_partition_that_does_not_exist(ask: Run, topic: str, broker: str) -> None:
    outside = ask("produce", topic, "x", "--partition", "3")
    assert outside.code == 3, outside
    assert "has 3 partitions" in outside.error


def test_a_message_too_large_fails(ask: Run, topic: str) -> None:
    outcome = ask("topic", "alter", topic, "-c", "max.message.bytes=1000")
    assert outcome.code == 0, outcome
    outcome = ask("produce", topic, "x" * 5000)
    assert outcome.code == 1, outcome
    assert "MSG_SIZE_TOO_LARGE" in outcome.error


@pytest.mark.parametrize(
    "arguments",
    [
        ("-k", "a", "-K", ":"),
        ("--json", "-K", ":"),
        ("--json", "--null", "x"),
        ("-K", ""),
        ("-H", "novalue"),
        ("-z", "brotli"),
        ("-a", "2"),
        ("-p", "-1"),
    ],
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("produce", "t", *arguments, stdin="").code == 2
