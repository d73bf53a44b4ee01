"""Exactly once with a real broker: an abort makes records come again, and each may be committed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import pytest

from millstream.client import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Producer,
    TimedOut,
    TransactionAborted,
    UsageError,
)
from millstream.client.producer.transaction import TransactionDriver

SECONDS_MAX = 90.0
PARTITIONS = 3
EACH = 20
ALL = PARTITIONS * EACH
#: The value of a record that is sent after all others.
LAST = -1


class Scene(NamedTuple):
    """A topic with the numbers below `ALL`, and an empty topic for what the consumers send."""

    bootstrap: str
    source: str
    output: str
    name: Callable[[str], str]

    def options(self, producer: object) -> dict[str, Any]:
        return {
            "group_id": self.name("group"),
            "topics": [self.source],
            "delivery": "exactly_once",
            "producer": producer,
            "commit_interval": 0,
        }

    @contextmanager
    def clients(self) -> Iterator[tuple[Producer, Consumer]]:
        with (
            Producer(self.bootstrap, transactional_id=self.name("id")) as producer,
            Consumer(self.bootstrap, **self.options(producer)) as consumer,
        ):
            yield producer, consumer

    @asynccontextmanager
    async def async_clients(self) -> AsyncIterator[tuple[AsyncProducer, AsyncConsumer]]:
        async with (
            AsyncProducer(self.bootstrap, transactional_id=self.name("id")) as producer,
            AsyncConsumer(self.bootstrap, **self.options(producer)) as consumer,
            asyncio.timeout(SECONDS_MAX),
        ):
            yield producer, consumer

    def check_output(self) -> None:
        """Every number is in the output once: all records before a last one are read."""
        with Producer(self.bootstrap) as producer:
            producer.send(self.output, str(LAST))
        found: list[int] = []
        deadline = time.monotonic() + SECONDS_MAX
        with Consumer(self.bootstrap, topics=[self.output]) as consumer:
            while LAST not in found:
                assert time.monotonic() < deadline, found
                found += [int(record.value) for record in consumer.poll()]
        assert sorted(found) == [LAST, *range(ALL)]


@pytest.fixture
def scene(bootstrap: str, topic: str, name: Callable[[str], str]) -> Scene:
    source = name("source")
    with Admin(bootstrap) as admin:
        admin.create_topic(source, partitions=PARTITIONS)
    with Producer(bootstrap) as producer:
        for number in range(ALL):
            producer.send(source, str(number), partition=number % PARTITIONS)
    return Scene(bootstrap, source, topic, name)


def fail_once(monkeypatch: pytest.MonkeyPatch, method: str, error: Exception) -> None:
    works = getattr(TransactionDriver, method)

    def fails(self: TransactionDriver, *arguments: Any) -> None:
        monkeypatch.setattr(TransactionDriver, method, works)
        raise error

    monkeypatch.setattr(TransactionDriver, method, fails)


@pytest.mark.parametrize(
    ("method", "error"),
    [("add_offsets", TransactionAborted("no")), ("begin", TimedOut("too late"))],
    ids=["abort", "begin times out"],
)
def test_a_failed_transaction_loses_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    async def main() -> None:
        async with scene.async_clients() as (producer, consumer):
            done = failures = 0
            is_armed = False
            while done < ALL:
                if done >= 5 and not is_armed:
                    # Records of all partitions were fetched by now.
                    is_armed = True
                    fail_once(monkeypatch, method, error)
                try:
                    records = await consumer.poll(7)
                    for record in records:
                        await producer.send(scene.output, record.value)
                    await consumer.commit()
                    done += len(records)
                except type(error):
                    failures += 1
            assert failures == 1
            assert not await consumer.poll(timeout=0)
            assert sum((await consumer.committed()).values()) == ALL

    asyncio.run(main())
    scene.check_output()


def test_each_record_of_a_loop_may_have_a_commit(scene: Scene) -> None:
    with scene.clients() as (producer, consumer):
        for record in itertools.islice(consumer, ALL):
            producer.send(scene.output, record.value)
            consumer.commit()
        assert sum(consumer.committed().values()) == ALL
        consumer.commit()
    scene.check_output()


def test_each_record_of_an_asyncio_loop_may_have_a_commit(scene: Scene) -> None:
    async def main() -> None:
        async with scene.async_clients() as (producer, consumer):
            done = 0
            async for record in consumer:
                await producer.send(scene.output, record.value)
                await consumer.commit()
                done += 1
                if done == ALL:
                    break
            assert sum((await consumer.committed()).values()) == ALL

    asyncio.run(main())
    scene.check_output()


def test_each_record_of_a_batch_may_have_a_commit(scene: Scene) -> None:
    with scene.clients() as (producer, consumer):
        done = 0
        while done < ALL:
            for record in consumer.poll():
                producer.send(scene.output, record.value)
                consumer.commit(record)
                done += 1
        assert sum(consumer.committed().values()) == ALL
        with pytest.raises(UsageError, match="the consumer's next record begins a transaction"):
            producer.send(scene.output, "too late")
    scene.check_output()


def test_offsets_may_be_committed_without_output(scene: Scene) -> None:
    with scene.clients() as (_producer, consumer):
        first = next(iter(consumer))
        consumer.commit()
        partition = (first.topic, first.partition)
        consumer.commit({partition: 7})
        assert consumer.committed() == {partition: 7}


def test_a_commit_raises_if_the_transaction_ended_elsewhere(scene: Scene) -> None:
    with scene.clients() as (producer, consumer):
        first = next(iter(consumer))
        assert producer.transactions is not None
        producer.transactions.abort()
        with pytest.raises(TransactionAborted, match="records are read again"):
            consumer.commit()
        assert consumer.committed() == {}
        seen = [(record.partition, record.offset) for record in itertools.islice(consumer, ALL)]
    assert (first.partition, first.offset) in seen
    assert len(set(seen)) == ALL
