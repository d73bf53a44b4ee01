"""A Kafka Streams application with `exactly_once_v2` on three brokers: two instances, a table join
and a windowed count behind a repartition topic. An instance is killed; the output is exact.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.process.broker_process import wait_until
from harness.process.brokers import QUICK_GROUPS, Brokers, started
from harness.process.java_process import JARS
from harness.seed import choose_seed
from harness.tool.java import compile_java, require_java
from harness.topic_content import wait_for_messages
from kafka_streams.application import Instance
from kafka_streams.feed import INPUTS, OUTPUTS, PARTITIONS, Feed

_SOURCE = Path(__file__).resolve().parent / "java" / "Orders.java"
SETTINGS = {**QUICK_GROUPS, "group.min.session.timeout.ms": 500}
#: One for the join and one for the count, in each partition.
TASKS = 2 * PARTITIONS
SECONDS_MAX = 120.0


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_java(*JARS)
    folder = tmp_path_factory.mktemp("classes")
    compile_java(_SOURCE, folder, *JARS)
    return folder


@pytest.fixture
def brokers(classes: Path, tmp_path: Path) -> Iterator[Brokers]:
    with started(tmp_path, 3, SETTINGS) as brokers:
        for topic in (*INPUTS, *OUTPUTS):
            brokers.create_topic(topic, PARTITIONS)
        yield brokers
        brokers.stop()
        brokers.check_logs()


def until_written(feed: Feed) -> None:
    """Wait until the application has written as many records as the input asks for."""
    wait_for_messages(feed.bootstrap, OUTPUTS, feed.expected(), SECONDS_MAX)


def until_shared(*instances: Instance) -> None:
    """Wait until all tasks run, and every instance has some."""
    wait_until(
        lambda: (
            all(each.tasks() for each in instances)
            and sum(each.tasks() for each in instances) == TASKS
        ),
        "all tasks to run",
        SECONDS_MAX,
    )


def test_the_output_is_exact_after_an_instance_was_killed(
    brokers: Brokers, classes: Path, tmp_path: Path
) -> None:
    feed = Feed(brokers.bootstrap, random.Random(15))
    feed.begin(1000)
    with ExitStack() as running:
        first, second = (
            running.enter_context(Instance(name, tmp_path, classes, brokers.bootstrap))
            for name in ("first", "second")
        )
        until_shared(first, second)
        feed.go_on(500)
        first.kill()
        feed.go_on(500)
        until_shared(second)
        until_written(feed)
        second.stop()
    feed.check()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_output_is_exact_whatever_is_killed(
    brokers: Brokers, classes: Path, tmp_path: Path
) -> None:
    chance = random.Random(choose_seed("STREAMS_SEED"))
    feed = Feed(brokers.bootstrap, chance)
    feed.begin(5000)
    with ExitStack() as running:
        instances = [
            running.enter_context(Instance(name, tmp_path, classes, brokers.bootstrap))
            for name in ("first", "second")
        ]
        until_shared(*instances)
        for _ in range(10):
            feed.go_on(chance.randrange(100, 2000))
            victim = chance.choice(instances)
            victim.kill()
            feed.go_on(chance.randrange(100, 2000))
            if chance.random() < 0.5:
                until_written(feed)
            victim.start()
            until_shared(*instances)
        until_written(feed)
        for each in instances:
            each.stop()
    feed.check()
