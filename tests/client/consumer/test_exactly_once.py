"""Exactly once with a real broker: aborts bring records again, each record may have a commit."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from millstream.client import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Producer,
    Record,
    TimedOut,
    TransactionAborted,
    UsageError,
)
from millstream.client.producer.transaction import TransactionDriver

SECONDS_MAX = 90.0
PARTITIONS = 3
EACH = 20
ALL = PARTITIONS * EACH


@pytest.fixture
def source(bootstrap: str, name: Callable[[str], str]) -> str:
    made = name("source")
    with Admin(bootstrap) as admin:
        admin.create_topic(made, partitions=PARTITIONS)
    with Producer(bootstrap) as producer:
        for number in range(ALL):
            producer.send(made, None, str(number), partition=number % PARTITIONS)
    return made


def visible(bootstrap: str, topic: str) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + SECONDS_MAX
    with Consumer(bootstrap, topics=[topic]) as consumer:
        while len(found) < ALL:
            assert time.monotonic() < deadline, found
            found += [int(record.value) for record in consumer.poll()]
        found += [int(record.value) for record in consumer.poll(timeout_s=0)]
    return found


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
    bootstrap: str,
    topic: str,
    source: str,
    name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    error: Exception,
) -> None:
    async def main() -> None:
        async with (
            AsyncProducer(bootstrap, transactional_id=name("id")) as producer,
            AsyncConsumer(
                bootstrap,
                group=name("group"),
                topics=[source],
                delivery="exactly_once",
                producer=producer,
                commit_interval_s=0,
            ) as consumer,
        ):
            async with asyncio.timeout(SECONDS_MAX):
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
                            await producer.send(topic, None, record.value)
                        await consumer.commit()
                        done += len(records)
                    except type(error):
                        failures += 1
            assert failures == 1
            assert not await consumer.poll(timeout_s=0)
            assert sum((await consumer.committed()).values()) == ALL

    asyncio.run(main())
    assert sorted(visible(bootstrap, topic)) == list(range(ALL))


def member(bootstrap: str, source: str, name: Callable[[str], str], producer: Producer) -> Consumer:
    return Consumer(
        bootstrap,
        group=name("group"),
        topics=[source],
        delivery="exactly_once",
        producer=producer,
        commit_interval_s=0,
    )


def test_each_record_of_a_loop_may_have_a_commit(
    bootstrap: str, topic: str, source: str, name: Callable[[str], str]
) -> None:
    with (
        Producer(bootstrap, transactional_id=name("id")) as producer,
        member(bootstrap, source, name, producer) as consumer,
    ):
        for record in itertools.islice(consumer, ALL):
            producer.send(topic, None, record.value)
            consumer.commit()
        assert sum(consumer.committed().values()) == ALL
        consumer.commit()
    assert sorted(visible(bootstrap, topic)) == list(range(ALL))


def test_each_record_of_an_asyncio_loop_may_have_a_commit(
    bootstrap: str, topic: str, source: str, name: Callable[[str], str]
) -> None:
    async def main() -> None:
        async with (
            AsyncProducer(bootstrap, transactional_id=name("id")) as producer,
            AsyncConsumer(
                bootstrap,
                group=name("group"),
                topics=[source],
                delivery="exactly_once",
                producer=producer,
            ) as consumer,
        ):
            done = 0
            async for record in consumer:
                await producer.send(topic, None, record.value)
                await consumer.commit()
                done += 1
                if done == ALL:
                    break
            assert sum((await consumer.committed()).values()) == ALL

    asyncio.run(main())
    assert sorted(visible(bootstrap, topic)) == list(range(ALL))


def test_each_record_of_a_batch_may_have_a_commit(
    bootstrap: str, topic: str, source: str, name: Callable[[str], str]
) -> None:
    with (
        Producer(bootstrap, transactional_id=name("id")) as producer,
        member(bootstrap, source, name, producer) as consumer,
    ):
        done: list[Record] = []
        while len(done) < ALL:
            for record in consumer.poll():
                producer.send(topic, None, record.value)
                consumer.commit(record)
                done.append(record)
        assert sum(consumer.committed().values()) == ALL
        with pytest.raises(UsageError, match="the consumer's next record begins a transaction"):
            producer.send(topic, None, "too late")
    assert sorted(visible(bootstrap, topic)) == list(range(ALL))


def test_offsets_may_be_committed_without_output(
    bootstrap: str, source: str, name: Callable[[str], str]
) -> None:
    with (
        Producer(bootstrap, transactional_id=name("id")) as producer,
        member(bootstrap, source, name, producer) as consumer,
    ):
        first = next(iter(consumer))
        consumer.commit()
        place = (first.topic, first.partition)
        consumer.commit({place: 7})
        assert consumer.committed() == {place: 7}


def test_a_transaction_that_ended_elsewhere_is_no_silent_commit(
    bootstrap: str, source: str, name: Callable[[str], str]
) -> None:
    with (
        Producer(bootstrap, transactional_id=name("id")) as producer,
        member(bootstrap, source, name, producer) as consumer,
    ):
        first = next(iter(consumer))
        assert producer.transactions is not None
        producer.transactions.abort()
        with pytest.raises(TransactionAborted, match="records are read again"):
            consumer.commit()
        assert consumer.committed() == {}
        seen = [(record.partition, record.offset) for record in itertools.islice(consumer, ALL)]
    assert (first.partition, first.offset) in seen
    assert len(set(seen)) == ALL
