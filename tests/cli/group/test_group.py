from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.cli.group import group_lag, group_reset

if TYPE_CHECKING:
    from tests.cli.conftest import Run

#: This protocol assigns partitions at once. The classic protocol waits for more members.
NEW_PROTOCOL = ("-X", "group.protocol=consumer")
JOIN_SECONDS_MAX = 20.0


@pytest.fixture(scope="module")
def clients(broker: str) -> tuple[AdminClient, Producer]:
    """Clients that all fixtures of this module share."""
    config = {"bootstrap.servers": broker, "log_level": 0}
    return AdminClient(config), Producer(config)


_numbers = count()


@pytest.fixture
def filled(clients: tuple[AdminClient, Producer]) -> str:
    """A topic of three partitions: ten messages in 0, one second apart, and one in 2."""
    admin, producer = clients
    name = f"group-{os.getpid()}-{next(_numbers)}"
    admin.create_topics([NewTopic(name, 3, 1)])[name].result()
    for n in range(10):
        producer.produce(name, f"v{n}", partition=0, timestamp=1_700_000_000_000 + n * 1000)
    producer.produce(name, "other", partition=2)
    assert producer.flush(10) == 0
    return name


@pytest.fixture
def group(clients: tuple[AdminClient, Producer], filled: str) -> str:
    """A group without members. It has committed 4 in partition 0 and 1 in partition 2."""
    name = f"{filled}-group"
    offsets = [TopicPartition(filled, 0, 4), TopicPartition(filled, 2, 1)]
    request = ConsumerGroupTopicPartitions(name, offsets)
    clients[0].alter_consumer_group_offsets([request])[name].result()
    return name


@pytest.fixture
def member(broker: str, filled: str, group: str) -> Iterator[Consumer]:
    """A member of the group with all partitions assigned."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": "reader",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([filled])
    deadline = time.monotonic() + JOIN_SECONDS_MAX
    while len(consumer.assignment()) < 3:
        assert time.monotonic() < deadline, f"no assignment within {JOIN_SECONDS_MAX} s"
        consumer.poll(0.1)
    yield consumer
    consumer.close()


def committed(ask: Run, group: str) -> dict[int, int | None]:
    row = json.loads(ask("group", "describe", group, "--json").out)
    return {p["partition"]: p["committed_offset"] for p in row["partitions"]}


def planned(ask: Run, group: str, *arguments: str) -> dict[int, tuple[int | None, int, int | None]]:
    outcome = ask("group", "reset-offsets", group, *arguments, "--json")
    assert outcome.code == 0, outcome
    rows: list[dict[str, Any]] = json.loads(outcome.out)["partitions"]
    return {
        row["partition"]: (row["current_offset"], row["new_offset"], row["difference"])
        for row in rows
    }


def test_list_with_filters(ask: Run, group: str) -> None:
    row = {"group": group, "state": "Empty", "type": "Classic"}
    assert json.loads(ask("group", "list", group, "--json").out) == [row]
    for filters, found in (
        (("--state", "empty", "--type", "classic"), [row]),
        (("--state", "Stable"), []),
        (("--state", "stable", "--state", "empty"), [row]),
        (("--type", "consumer"), []),
    ):
        assert json.loads(ask("group", "list", group, "--json", *filters).out) == found
    shown = ask("group", "list")
    assert [group, "Empty", "Classic"] in [line.split() for line in shown.out.splitlines()]
    assert "No groups match" in ask("group", "list", "nobody-*").error
    assert ask("group", "list", "--state", "asleep").code == 2


def test_describe_a_group_without_members(ask: Run, filled: str, group: str) -> None:
    row = json.loads(ask("group", "describe", group, "--json").out)
    assert (row["state"], row["members"], row["lag"]) == ("Empty", 0, 6)
    first, last = row["partitions"]
    # The records are from 2023, older than any retention time.
    assert first.pop("lag_seconds") > 86_400
    assert first.pop("headroom_seconds") == 0
    nobody = {"member_id": None, "client_id": None, "host": None}
    assert first == {
        "topic": filled,
        "partition": 0,
        "committed_offset": 4,
        "end_offset": 10,
        "lag": 6,
        **nobody,
    }
    assert last == {
        "topic": filled,
        "partition": 2,
        "committed_offset": 1,
        "end_offset": 1,
        "lag": 0,
        "lag_seconds": 0,
        "headroom_seconds": None,
        **nobody,
    }
    shown = ask("group", "describe", group).out
    assert "0 members, 6 records behind by" in shown
    at_the_end = [filled, "2", "1", "1", "0", "0s", *["-"] * 4]
    assert at_the_end in [line.split() for line in shown.splitlines()]


def test_watching_ends_with_ctrl_c(ask: Run, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt

    # Patched in this module only: other threads call time.sleep too.
    monkeypatch.setattr(group_lag, "time", SimpleNamespace(sleep=wait, time=time.time))
    outcome = ask("group", "describe", group, "--watch", "0.5", "--json")
    assert (outcome.code, waits) == (0, [0.5, 0.5])
    assert [json.loads(line)["lag"] for line in outcome.out.splitlines()] == [6, 6]


@pytest.mark.usefixtures("member")
def test_an_active_group(ask: Run, filled: str, group: str) -> None:
    row = json.loads(ask("group", "describe", group, "--json").out)
    assert (row["type"], row["members"], row["assignor"]) == ("Consumer", 1, "uniform")
    assert [(p["partition"], p["lag"], p["client_id"], p["host"]) for p in row["partitions"]] == [
        (0, 6, "reader", "127.0.0.1"),
        (1, None, "reader", "127.0.0.1"),
        (2, 0, "reader", "127.0.0.1"),
    ]
    (reader,) = json.loads(ask("group", "members", group, "--json").out)
    assert reader["assignment"] == {filled: [0, 1, 2]}
    assert (reader["client_id"], reader["instance_id"]) == ("reader", None)
    assert f"{filled}:0,1,2" in ask("group", "members", group).out
    for refused in (
        ask("group", "reset-offsets", group, "--all-topics", "--to-latest"),
        ask("group", "reset-offsets", group, "-t", filled, "--to-latest", "--yes"),
        ask("group", "delete", group, "--yes"),
    ):
        assert refused.code == 1, refused
        assert f"group {group!r} is active" in refused.error
        assert "stop its members first" in refused.error
    assert committed(ask, group) == {0: 4, 1: None, 2: 1}


def test_members_of_an_empty_group(ask: Run, group: str) -> None:
    assert ask("group", "members", group, "--json").out == "[]\n"
    assert "has no members" in ask("group", "members", group).error


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe", "nobody"),
        ("members", "nobody"),
        ("delete", "nobody", "--yes"),
        ("reset-offsets", "nobody", "--all-topics", "--to-latest"),
    ],
)
def test_a_group_that_does_not_exist(ask: Run, arguments: tuple[str, ...]) -> None:
    outcome = ask("group", *arguments)
    assert outcome.code == 3, outcome
    assert "group 'nobody' does not exist" in outcome.error


def test_delete(ask: Run, group: str) -> None:
    unasked = ask("group", "delete", group)
    assert unasked.code == 2
    assert "--yes" in unasked.error
    outcome = ask("group", "delete", group, "nobody", "--yes", "--if-exists", "--json")
    assert outcome.code == 0, outcome
    assert sorted(json.loads(outcome.out), key=lambda row: str(row["result"])) == [
        {"group": "nobody", "result": "absent"},
        {"group": group, "result": "deleted"},
    ]
    assert ask("group", "describe", group).code == 3


def test_reset_targets(ask: Run, filled: str, group: str) -> None:
    both = ("--all-topics",)
    first = ("--topic", f"{filled}:0")
    assert planned(ask, group, *both, "--to-earliest") == {0: (4, 0, -4), 2: (1, 0, -1)}
    assert planned(ask, group, *both, "--to-latest") == {0: (4, 10, 6), 2: (1, 1, 0)}
    assert planned(ask, group, "-t", filled, "--to-offset", "7") == {
        0: (4, 7, 3),
        1: (None, 0, None),
        2: (1, 1, 0),
    }
    assert planned(ask, group, *first, "--to-datetime", "2023-11-14T22:13:28Z") == {0: (4, 8, 4)}
    assert planned(ask, group, *first, "--by-duration", "99999w") == {0: (4, 0, -4)}
    assert planned(ask, group, *first, "--by-duration", "PT1H") == {0: (4, 10, 6)}
    assert planned(ask, group, *first, "--shift-by", "-3") == {0: (4, 1, -3)}
    assert committed(ask, group) == {0: 4, 2: 1}, "a dry run changed an offset"


def test_reset_prints_a_plan_and_executes_it(
    ask: Run, filled: str, group: str, tmp_path: Path
) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(f"topic,partition,offset\n{filled},0,9\n{filled},2,50\n")
    dry = ask("group", "reset-offsets", group, "--from-file", str(file))
    assert dry.code == 0, dry
    lines = [line.split() for line in dry.out.splitlines()]
    assert [filled, "0", "4", "9", "+5", "would", "move"] in lines
    assert [filled, "2", "1", "1", "0", "stays"] in lines
    assert "--yes moves 1 partition" in dry.error
    assert f"{filled}-2 does not have offset 50: 1 is the nearest" in dry.error
    done = ask("group", "reset-offsets", group, "--from-file", str(file), "--yes", "--json")
    assert done.code == 0, done
    result = json.loads(done.out)
    assert (result["group"], result["executed"]) == (group, True)
    assert [row["result"] for row in result["partitions"]] == ["moved", "stays"]
    assert committed(ask, group) == {0: 9, 2: 1}


def test_reset_asks_on_a_terminal(
    ask: Run, filled: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []
    monkeypatch.setattr(group_reset, "_is_terminal", lambda: True)
    monkeypatch.setattr(group_reset, "confirm", lambda question, *_: questions.append(question))
    reset = ("group", "reset-offsets", group, "-t", f"{filled}:0", "--to-earliest")
    assert ask(*reset, "--dry-run").code == 0
    assert questions == []
    done = ask(*reset)
    assert done.code == 0, done
    assert questions == [f"Move {group} on 1 partition?"]
    assert "would move" in done.out
    assert [filled, "0", "4", "0", "-4", "moved"] in [
        line.split() for line in done.out.splitlines()
    ]
    assert committed(ask, group) == {0: 0, 2: 1}
    again = ask(*reset)
    assert "Nothing to move" in again.error
    assert len(questions) == 1


def test_execute_is_called_yes(ask: Run, group: str) -> None:
    old = ask("group", "reset-offsets", group, "--all-topics", "--to-latest", "--execute")
    assert old.code == 2
    assert "--yes" in old.error


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("-t", "orders"), 2, "exactly one of"),
        (("-t", "orders", "--to-latest", "--to-offset", "0"), 2, "exactly one of"),
        (("--to-latest",), 2, "--topic TOPIC or --all-topics"),
        (("--to-latest", "--all-topics", "-t", "orders"), 2, "either --topic"),
        (("--to-latest", "-t", "orders:x"), 2, "give orders:0"),
        (("--to-datetime", "soon", "-t", "orders"), 2, "--to-datetime 'soon' is not a time"),
        (("--by-duration", "soon", "-t", "orders"), 2, "--by-duration 'soon' is not a duration"),
        (("--from-file", "/no/such/file"), 3, "file '/no/such/file' does not exist"),
        (("--from-file", os.devnull), 2, "it has no offsets"),
    ],
)
def test_wrong_usage_of_reset(run: Run, arguments: tuple[str, ...], code: int, says: str) -> None:
    outcome = run("group", "reset-offsets", "someone", *arguments, "-b", "127.0.0.1:1")
    assert outcome.code == code, outcome
    assert says in outcome.error


def test_partitions_that_cannot_be_reset(ask: Run, topic: str) -> None:
    for scope, where, code, says in (
        (f"{topic}:1,7", ("--to-latest",), 3, "has no partition 7: it has 3 partitions"),
        ("no-such-topic", ("--to-latest",), 3, "'no-such-topic' does not exist"),
        (f"{topic}:1", ("--shift-by", "1"), 1, f"{topic}-1 has no committed offset"),
    ):
        outcome = ask("group", "reset-offsets", "someone", "-t", scope, *where)
        assert outcome.code == code, outcome
        assert says in outcome.error


def test_an_unreachable_broker(run: Run) -> None:
    outcome = run("group", "list", "-b", "127.0.0.1:1")
    assert outcome.code == 4
    assert "no response from 127.0.0.1:1" in outcome.error


def test_consume_continues_from_the_committed_offsets(ask: Run, filled: str, group: str) -> None:
    first = ask("consume", filled, "-g", group, *NEW_PROTOCOL, "-n", "3")
    assert (first.code, first.out.split()) == (0, ["v4", "v5", "v6"]), first
    assert committed(ask, group) == {0: 7, 2: 1}, "not exactly the printed messages are committed"
    rest = ask("consume", filled, "-g", group, *NEW_PROTOCOL, "--no-follow")
    assert (rest.code, rest.out.split()) == (0, ["v7", "v8", "v9"]), rest
    assert json.loads(ask("group", "describe", group, "--json").out)["lag"] == 0
    nothing = ask("consume", filled, "-g", group, *NEW_PROTOCOL, "--no-follow")
    assert (nothing.code, nothing.out) == (0, "")


@pytest.mark.parametrize("arguments", [("--partition", "0"), ("--offset", "3"), ("--since", "1h")])
def test_a_group_excludes_partition_and_start_options(run: Run, arguments: tuple[str, ...]) -> None:
    outcome = run("consume", "any", "--group", "g", *arguments)
    assert outcome.code == 2
    assert "group" in outcome.error


def test_ctrl_c_commits_and_leaves_the_group(broker: str, ask: Run, filled: str) -> None:
    """The member leaves at once: its session in the classic protocol would last much longer."""
    name = f"{filled}-classic"
    # Children of a shell's background job ignore SIGINT by default.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "millstream.cli.main"]
    command += ["consume", filled, "--group", name, "--from-beginning", "-b", broker]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        printed = {process.stdout.readline().decode().strip() for _ in range(11)}
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=90)
    finally:
        process.kill()
    assert (process.returncode, out, error) == (0, b"", b"")
    assert printed == {"other", *(f"v{n}" for n in range(10))}
    row = json.loads(ask("group", "describe", name, "--json").out)
    assert (row["state"], row["members"], row["lag"]) == ("Empty", 0, 0)
    assert committed(ask, name) == {0: 10, 2: 1}
