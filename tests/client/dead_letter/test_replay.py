"""Dead letters: selection, and a replay that sends each letter once although it is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.process.broker_process import wait_until
from millstream.client import Admin, Consumer, Producer
from millstream.client.dead_letter import DeadLetterTopic, Replay, Selection
from millstream.client.dead_letter.letter import LetterId
from millstream.client.dead_letter.replayed import ReplayedLetters

SECONDS_MAX = 90.0
Name = Callable[[str], str]


def test_replayed_letters_read_their_own_records() -> None:
    replayed = ReplayedLetters("one")
    places = [LetterId(0, 5), LetterId(1, 3), LetterId(0, 6), LetterId(0, 9)]
    again, other = ReplayedLetters("one"), ReplayedLetters("two")
    for record in replayed.records(places):
        again.read(record)
        other.read(record)
    assert all(place in again for place in places)
    assert not any(place in other for place in places)
    assert LetterId(0, 7) not in again
    assert b"[[5, 7], [9, 10]]" in replayed.records(places)[0]


def letters_in(bootstrap: str, name: Name, count: int, partitions: int = 3) -> str:
    """Create a topic with this many dead letters, and return its name."""
    topic = name("topic")
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions)
        admin.create_topic(f"{topic}.dlq", partitions=partitions)
    with Producer(bootstrap) as producer:
        for number in range(count):
            headers = {
                "app": "kept",
                "millstream.original.topic": topic,
                "millstream.original.partition": "0",
                "millstream.original.offset": str(number),
                "millstream.group": "billing",
                "millstream.attempts": "5",
                "millstream.dead.timestamp": str(1_700_000_000_000 + number),
                "millstream.error.type": "TimeoutError" if number % 2 else "KeyError",
                "millstream.error.message": f"message {number}",
            }
            producer.send(f"{topic}.dlq", str(number), key=f"key-{number % 5}", headers=headers)
    return topic


def values(bootstrap: str, topic: str, count: int) -> Counter[int]:
    """Return the committed values of a topic, once it has `count`."""
    found: list[int] = []
    with Consumer(bootstrap, topics=[topic]) as consumer:

        def enough() -> bool:
            found.extend(int(record.value) for record in consumer.poll(timeout=0.1))
            return len(found) >= count

        wait_until(enough, f"{count} records", SECONDS_MAX)
        found += [int(record.value) for record in consumer.poll(timeout=0.3)]
    return Counter(found)


def dead_letters_of(bootstrap: str, topic: str) -> DeadLetterTopic:
    return DeadLetterTopic(topic, bootstrap)


def test_each_letter_is_replayed_once_for_any_selection(bootstrap: str, name: Name) -> None:
    topic = letters_in(bootstrap, name, 60)
    dead_letters = dead_letters_of(bootstrap, topic)
    timeouts = Selection(error="timeout")
    assert sum(1 for _ in Replay(dead_letters, timeouts).plan()) == 30
    assert Replay(dead_letters, timeouts).run().replayed == 30
    second = Replay(dead_letters, Selection(key=b"key-1")).run()
    assert (second.replayed, second.already) == (6, 6)
    late = Selection(since_ms=1_700_000_000_050, until_ms=1_700_000_000_058)
    assert Replay(dead_letters, late, again=True, to=topic).run().replayed == 8
    rest = Replay(dead_letters, Selection(topic=topic, group_id="billing")).run()
    assert (rest.replayed, rest.already) == (60 - 36 - 3, 36 + 3)
    assert Replay(dead_letters, Selection(topic="other")).run().replayed == 0
    found = values(bootstrap, topic, 60 + 5)
    assert sum(found.values()) == 65
    assert found.keys() == set(range(60))
    with Consumer(bootstrap, topics=[topic]) as consumer:
        headers = dict(next(iter(consumer)).headers)
    assert headers.pop("millstream.replayed.from", b"").startswith(f"{topic}.dlq-".encode())
    assert headers == {"app": b"kept"}


def replay_under_kills(bootstrap: str, topic: str, kills: int, count: int) -> int:
    """Kill `millstream dlq replay` repeatedly. Return how often it was running."""
    chance = random.Random(kills)
    command = [str(Path(sys.executable).with_name("millstream")), "dlq", "replay", topic]
    command += ["--bootstrap-server", bootstrap, "--rate", "400"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILLSTREAM")}
    interrupted = 0
    for _ in range(kills):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(chance.uniform(0.8, 3.0))
        except subprocess.TimeoutExpired:
            interrupted += 1
        process.kill()
        process.wait()
    done = subprocess.run(
        [*command[:-1], "100000"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = values(bootstrap, topic, count)
    assert sum(found.values()) == count
    assert found.keys() == set(range(count))
    return interrupted


def test_a_killed_replay_continues(bootstrap: str, name: Name) -> None:
    topic = letters_in(bootstrap, name, 3000)
    assert replay_under_kills(bootstrap, topic, 3, 3000) > 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_kills(bootstrap: str, name: Name) -> None:
    topic = letters_in(bootstrap, name, 100_000)
    start = time.monotonic()
    caught = replay_under_kills(bootstrap, topic, 100, 100_000)
    assert caught > 50, f"{caught} kills in {time.monotonic() - start:.0f} s met a replay at work"
