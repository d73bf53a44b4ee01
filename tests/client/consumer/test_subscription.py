"""Subscriptions by name and by pattern, with both group protocols and without a group."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from millstream.client import AsyncConsumer, Consumer, Partition, Producer, UsageError
from millstream.client.consumer.subscription import Subscription, portable, subscription_of

SECONDS_MAX = 90.0
QUICK = {"heartbeat.interval.ms": 300}
PROTOCOLS = ["classic", "consumer"]

Name = Callable[[str], str]


@pytest.fixture
def family(bootstrap: str, name: Name) -> str:
    """The prefix of two topics with ten records each, and of one that patterns leave out."""
    prefix = name("family")
    with Producer(bootstrap) as producer:
        for topic in (f"{prefix}-1", f"{prefix}-2", f"{prefix}-x"):
            for number in range(10):
                producer.send(topic, str(number))
    return prefix


def read(consumer: Consumer, count: int) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [(record.topic, record.offset) for record in consumer.poll()]
    return sorted(found)


def every(*topics: str) -> list[tuple[str, int]]:
    return sorted((topic, offset) for topic in topics for offset in range(10))


@pytest.mark.parametrize("pattern", [r"{}-\d", re.compile(r"(?:{}-[0-9]+)")])
def test_a_consumer_without_a_group_reads_all_matching_topics(
    bootstrap: str, family: str, pattern: str | re.Pattern[str]
) -> None:
    if isinstance(pattern, re.Pattern):
        pattern = re.compile(pattern.pattern.replace("{}", family))
    else:
        pattern = pattern.replace("{}", family)
    with Consumer(bootstrap, pattern=pattern) as consumer:
        assert read(consumer, 20) == every(f"{family}-1", f"{family}-2")
        assert {each.topic for each in consumer.assignment} == {f"{family}-1", f"{family}-2"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_reads_matching_topics_also_new_ones(
    bootstrap: str, family: str, protocol: str
) -> None:
    config = {"topic.metadata.refresh.interval.ms": 500}
    with Consumer(
        bootstrap,
        pattern=rf"{family}-\d",
        group_id=family,
        group_protocol=protocol,  # type: ignore[arg-type]
        config=config,
    ) as consumer:
        assert read(consumer, 20) == every(f"{family}-1", f"{family}-2")
        with Producer(bootstrap) as producer:
            producer.send(f"{family}-3", "0")
        assert read(consumer, 1) == [(f"{family}-3", 0)]


def test_no_pattern_matches_internal_topics(bootstrap: str, family: str) -> None:
    with Consumer(bootstrap, group_id=family, topics=[f"{family}-1"]) as consumer:
        read(consumer, 10)
        consumer.commit()
    for options in ({}, {"group_id": f"{family}-all"}):
        with Consumer(bootstrap, pattern=".*", **options) as consumer:  # type: ignore[arg-type]
            read(consumer, 30)
            assert not any(each.topic.startswith("__") for each in consumer.assignment)
            with pytest.raises(UsageError, match="internal topics: pass them to the constructor"):
                consumer.subscribe(["__consumer_offsets"])


@pytest.mark.parametrize("protocol", [None, *PROTOCOLS])
def test_subscribe_replaces_the_subscription(
    bootstrap: str, family: str, protocol: str | None
) -> None:
    first, second = f"{family}-1", f"{family}-2"
    group = {} if protocol is None else {"group_id": family, "group_protocol": protocol}
    revoked: list[Partition] = []
    with Consumer(
        bootstrap,
        on_revoke=lambda _, partitions: revoked.extend(partitions),
        **group,  # type: ignore[arg-type]
    ) as consumer:
        with pytest.raises(UsageError, match=r"not subscribed: pass topics=.* or call subscribe"):
            consumer.poll()
        consumer.subscribe([first])
        assert read(consumer, 10) == every(first)
        consumer.subscribe([first, second])
        # The first topic continues where it was.
        assert read(consumer, 10) == every(second)
        consumer.subscribe([second])
        with Producer(bootstrap) as producer:
            for topic in (first, second):
                producer.send(topic, "10")
        assert read(consumer, 1) == [(second, 10)]
        assert revoked == [(first, 0)]
        consumer.unsubscribe()
        assert consumer.assignment == frozenset()
        assert revoked == [(first, 0), (second, 0)]
        with pytest.raises(UsageError, match="not subscribed"):
            consumer.poll()


def test_position_is_the_next_record(bootstrap: str, family: str) -> None:
    topic = f"{family}-1"
    with Consumer(bootstrap, group_id=family, topics=[topic], commit_interval=0) as consumer:
        with pytest.raises(UsageError, match="is not assigned"):
            consumer.position(topic, 0)
        read_one = iter(consumer)
        assert [next(read_one).offset for _ in range(3)] == [0, 1, 2]
        assert consumer.position(topic, 0) == 3
        consumer.pause(topic)
        assert consumer.position(topic, 0) == 3
        consumer.resume(topic)
        consumer.seek(topic, offset=7)
        assert consumer.position(topic, 0) == 7
        consumer.seek(topic, offset="latest")
        assert consumer.position(topic, 0) == 10
        consumer.seek(topic, offset="earliest")
        assert consumer.position(topic, 0) == 0
        assert len(read(consumer, 10)) == 10
        assert consumer.position(topic, 0) == 10
        consumer.commit({Partition(topic, 0): 4})
    found: list[int] = []
    with Consumer(
        bootstrap,
        group_id=family,
        topics=[topic],
        on_assign=lambda member, partitions: found.extend(
            member.position(*each) for each in partitions
        ),
    ) as consumer:
        assert read(consumer, 6)[0] == (topic, 4)
    assert found == [4]


def test_position_before_the_first_record(bootstrap: str, family: str) -> None:
    topic = f"{family}-1"
    for reset, offset in (("earliest", 0), ("latest", 10)):
        with Consumer(bootstrap, topics=[topic], auto_offset_reset=reset) as consumer:  # type: ignore[arg-type]
            assert consumer.position(topic, 0) == offset


@pytest.mark.parametrize("group", [True, False])
def test_seek_inside_on_assign(bootstrap: str, family: str, group: bool) -> None:
    def assigned(consumer: Consumer, partitions: list[Partition]) -> None:
        for partition in partitions:
            consumer.seek(*partition, offset=8)
            assert consumer.position(*partition) == 8

    options = {"group_id": family} if group else {}
    with Consumer(
        bootstrap,
        topics=[f"{family}-1"],
        on_assign=assigned,
        **options,  # type: ignore[arg-type]
    ) as consumer:
        assert read(consumer, 2) == [(f"{family}-1", 8), (f"{family}-1", 9)]


def test_a_callback_cannot_subscribe(bootstrap: str, family: str) -> None:
    def assigned(consumer: Consumer, _: object) -> None:
        consumer.unsubscribe()

    with (
        Consumer(
            bootstrap, group_id=family, topics=[f"{family}-1"], on_assign=assigned
        ) as consumer,
        pytest.raises(UsageError, match="cannot be called in a callback"),
    ):
        read(consumer, 10)


@pytest.mark.parametrize(
    ("pattern", "rewritten"),
    [
        (r"orders-\d+", "orders-[0-9]+"),
        (r"(?:a|b)\.\w*", r"(a|b)\.[A-Za-z0-9_]*"),
        (r"(?P<kind>a)-[\w.\-]{1,3}", "(a)-[A-Za-z0-9_.-]{1,3}"),
        (r"^a[^\d]\-b$", "^a[^0-9]-b$"),
        ("a[]x]?", "a[]x]?"),
    ],
)
def test_patterns_are_rewritten(pattern: str, rewritten: str) -> None:
    assert portable(pattern) == rewritten
    assert Subscription(pattern=pattern).names == [f"^({rewritten})$"]


@pytest.mark.parametrize(
    "pattern", [r"a(?=b)", r"a\b", "a*?", "a++", r"(a)\1", "[[:alpha:]]", r"[\s]", r"(?i)a", r"\Aa"]
)
def test_patterns_of_other_dialects_are_rejected(pattern: str) -> None:
    with pytest.raises(UsageError, match=r"does not mean the same|is not a regular expression"):
        subscription_of(None, pattern)


@pytest.mark.parametrize(
    ("topics", "pattern", "sentence"),
    [
        ("orders", None, r"is a string: pass a list of names, \['orders'\]"),
        (b"orders", None, "pass a list of names"),
        ([], None, "pass a list of names"),
        ([b"orders"], None, "b'orders' is not a string"),
        (["orders"], "orders", "topics or pattern, not both"),
        (None, "(", "is not a regular expression"),
        (None, "", "pass a regular expression"),
        (None, re.compile("a", re.IGNORECASE), "has flags"),
    ],
)
def test_wrong_subscriptions_are_explained(topics: object, pattern: object, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        subscription_of(topics, pattern)  # type: ignore[arg-type]


async def subscribed(bootstrap: str, topic: str) -> int:
    async with AsyncConsumer(bootstrap) as consumer:
        await consumer.subscribe(pattern=re.escape(topic))
        count = 0
        while count < 10:
            count += len(await consumer.poll())
        return await consumer.position(topic, 0)


def test_asyncio_consumers_subscribe(bootstrap: str, family: str) -> None:
    import asyncio

    assert asyncio.run(subscribed(bootstrap, f"{family}-1")) == 10
