"""Output that brokers reject for good: its message becomes a dead letter, and others continue."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from millstream.client import (
    Admin,
    ConfigResource,
    Job,
    JsonSerializer,
    Producer,
    UsageError,
    Worker,
)
from millstream.client.dead_letter import DeadLetter, DeadLetterTopic

SECONDS_MAX = 60.0
Name = Callable[[str], str]
MODES = pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that does not create topics automatically."""
    settings = {
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.num.partitions": 4,
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings) as broker:
        yield broker.bootstrap


def letters(bootstrap: str, topic: str) -> list[DeadLetter]:
    return list(DeadLetterTopic(topic, bootstrap).letters())


def ends(bootstrap: str, topic: str) -> int:
    with Admin(bootstrap) as admin:
        if topic not in admin.list_topics():
            return 0
        return sum(admin.list_topic_offsets(topic).values())


def copying(topic: str) -> Callable[[Job], None]:
    return lambda job: job.send(topic, job.value, key=job.key)


@MODES
def test_output_that_is_too_large(
    bootstrap: str, topic: str, name: Name, transactional: bool
) -> None:
    """Records that shared a batch with it, or were too large only together, are delivered."""
    output, group = name("output"), name("group")
    small, large = [b"%d" % number * 150 for number in range(10)], b"x" * 4000
    with Admin(bootstrap) as admin:
        admin.create_topic(output, partitions=1, config={"max.message.bytes": "2000"})
    with Producer(bootstrap) as producer:
        for number, value in enumerate([*small[:5], large, *small[5:], large]):
            producer.send(topic, value, key=f"key-{number}")
    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=group,
        handler=copying(output),
        transactional=transactional,
        commit_interval=0.05,
    )
    with worker:
        wait_until(lambda: len(letters(bootstrap, topic)) == 2, "the letters", SECONDS_MAX)
        wait_until(lambda: worker.held == 0, "the rest", SECONDS_MAX)
    found = letters(bootstrap, topic)
    assert [letter.value for letter in found] == [large, large]
    assert {letter.error_type for letter in found} == {"millstream.client.error.DeliveryError"}
    assert "too large" in found[0].error_message
    # Reads the output: the same code reads any topic as letters.
    copies = [each.value for each in letters_of(bootstrap, output)]
    assert sorted(set(copies), key=copies.index) == copies or not transactional
    assert set(copies) == set(small)
    assert worker.counts.dead == 2
    with Admin(bootstrap) as admin:
        assert sum(admin.list_group_offsets(group).values()) == 12


def letters_of(bootstrap: str, topic: str) -> list[DeadLetter]:
    dead_letters = DeadLetterTopic(topic, bootstrap)
    dead_letters.topic = topic
    return list(dead_letters.letters())


@MODES
def test_output_for_a_topic_that_was_deleted(strict: str, name: Name, transactional: bool) -> None:
    topic, output, kept = name("topic"), name("output"), name("output")
    with Admin(strict) as admin:
        for each in (topic, output, kept):
            admin.create_topic(each, partitions=1)

    def handle(job: Job) -> None:
        job.send(kept if job.value == b"kept" else output, job.value, key=job.key)

    worker = Worker(
        strict,
        topics=[topic],
        group_id=name("group"),
        handler=handle,
        transactional=transactional,
        commit_interval=0.05,
        producer={"config": {"topic.metadata.propagation.max.ms": 100}},
    )
    with worker, Producer(strict) as producer:
        producer.send(topic, "before", key="key")
        wait_until(lambda: ends(strict, output) > 0, "the first output", SECONDS_MAX)
        with Admin(strict) as admin:
            admin.delete_topic(output)
        producer.send(topic, "after", key="key")
        wait_until(lambda: letters(strict, topic), "the letter", SECONDS_MAX)
        producer.send(topic, "kept", key="key")
        wait_until(lambda: ends(strict, kept) > 0, "others", SECONDS_MAX)
    [letter] = letters(strict, topic)
    assert letter.value == b"after"
    assert letter.error_type == "millstream.client.error.DeliveryError"


@MODES
def test_a_deleted_dead_letter_topic_is_created_again(
    strict: str, name: Name, transactional: bool
) -> None:
    topic = name("topic")
    with Admin(strict) as admin:
        admin.create_topic(topic, partitions=1)
    worker = Worker(
        strict,
        topics=[topic],
        group_id=name("group"),
        handler=lambda job: job.reject("no"),
        transactional=transactional,
        commit_interval=0.05,
        producer={"config": {"topic.metadata.propagation.max.ms": 100}},
    )
    with worker, Producer(strict) as producer:
        producer.send(topic, "1", key="key")
        wait_until(lambda: ends(strict, f"{topic}.dlq") > 0, "the first letter", SECONDS_MAX)
        with Admin(strict) as admin:
            admin.delete_topic(f"{topic}.dlq")
        producer.send(topic, "2", key="key")

        def has_letter() -> bool:
            with Admin(strict) as admin:
                if f"{topic}.dlq" not in admin.list_topics():
                    return False
            return any(letter.value == b"2" for letter in letters(strict, topic))

        wait_until(has_letter, "the second letter", SECONDS_MAX)


@MODES
def test_a_rejected_dead_letter_does_not_block_other_messages(
    bootstrap: str, topic: str, name: Name, transactional: bool
) -> None:
    """Other messages are committed. The letter is sent once its topic accepts it."""
    output, group = name("output"), name("group")
    with Admin(bootstrap) as admin:
        admin.create_topic(output, partitions=1)
        limit = {"max.message.bytes": "2000", "retention.ms": "-1"}
        admin.create_topic(f"{topic}.dlq", partitions=1, config=limit)

    def handle(job: Job) -> None:
        if len(job.value) > 1000:
            job.reject("large")
        else:
            job.send(output, job.value)

    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=group,
        handler=handle,
        transactional=transactional,
        commit_interval=0.05,
    )
    large = random.Random(1).randbytes(5000)
    with worker, Producer(bootstrap) as producer:
        for value in (b"before", large, b"after"):
            producer.send(topic, value)
        wait_until(lambda: worker.counts.dead == 1, "the letter", SECONDS_MAX)
        for number in range(50):
            producer.send(topic, str(number))
        wait_until(lambda: len(letters_of(bootstrap, output)) == 52, "the others", SECONDS_MAX)
        # The offset stays at the message, whose letter is not in its topic.
        wait_until(lambda: worker.held == 1, "the commit", SECONDS_MAX)
        with Admin(bootstrap) as admin:
            assert sum(admin.list_group_offsets(group).values()) == 1
            dead_letters = ConfigResource.topic(f"{topic}.dlq")
            admin.alter_config(dead_letters, {"max.message.bytes": "100000"})
        wait_until(lambda: worker.held == 0, "the letter", SECONDS_MAX)
    assert [letter.value for letter in letters(bootstrap, topic)] == [large]
    copies = [each.value for each in letters_of(bootstrap, output)]
    assert sorted(copies) == sorted([b"before", b"after", *(b"%d" % each for each in range(50))])
    with Admin(bootstrap) as admin:
        assert sum(admin.list_group_offsets(group).values()) == 53


def test_serializers_are_for_what_handlers_send(bootstrap: str, topic: str, name: Name) -> None:
    """A dead letter keeps its bytes, whatever the serializers would do with them."""
    output = name("output")
    with Admin(bootstrap) as admin:
        admin.create_topic(output, partitions=1)
    with Producer(bootstrap) as producer:
        producer.send(topic, "\x00 good", key="key")
        producer.send(topic, "\x00 bad", key="key")

    def handle(job: Job) -> None:
        if job.value == b"\x00 bad":
            job.reject("bad")
        else:
            job.send(output, {"value": job.value.decode()}, key="key")

    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=name("group"),
        handler=handle,
        producer={"value_serializer": JsonSerializer()},
    )
    with worker:
        wait_until(lambda: letters(bootstrap, topic), "the letter", SECONDS_MAX)
        wait_until(lambda: ends(bootstrap, output) == 1, "the output", SECONDS_MAX)
    assert [letter.value for letter in letters(bootstrap, topic)] == [b"\x00 bad"]
    assert [each.value for each in letters_of(bootstrap, output)] == [b'{"value":"\\u0000 good"}']


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"producer": {"transactional_id": "x"}}, "the worker sets 'transactional_id' itself"),
        ({"consumer": {"delivery": "at_most_once"}}, "the worker sets 'delivery' itself"),
        ({"producer": {"value_serialiser": 1}}, "did you mean 'value_serializer'"),
        ({"consumer": {"auto_offset_reset": "middle"}}, "auto_offset_reset='middle' is unknown"),
    ],
)
def test_invalid_options_are_rejected_at_once(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Worker("127.0.0.1:1", topics=["t"], group_id="g", handler=print, **options)
