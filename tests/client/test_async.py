"""The asyncio clients: waiting, cancellation and event loops differ from the sync ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from harness.process.broker_process import free_port
from millstream.client import (
    AsyncConsumer,
    AsyncProducer,
    BufferFull,
    ClosedError,
    DeliveryError,
    Record,
    TimedOut,
    UsageError,
)

SECONDS_MAX = 90.0


async def drain(consumer: AsyncConsumer, count: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(SECONDS_MAX):
        while len(found) < count:
            found += await consumer.poll()
    return found


async def fill(bootstrap: str, topic: str, count: int) -> None:
    async with AsyncProducer(bootstrap) as producer:
        for number in range(count):
            await producer.send(topic, str(number))


def test_send_and_await(bootstrap: str, topic: str) -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap) as producer:
            headers = {"trace": b"1"}
            first = await producer.send(topic, "0", key="alice", headers=headers, timestamp=5)
            metadata = await first
            assert metadata == (topic, 0, 0, 5)
            assert await first == metadata
            assert (await producer.send_and_wait(topic, "1")).offset == 1
            many = [await producer.send(topic, "x") for _ in range(2000)]
            offsets = [each.offset for each in await asyncio.gather(*many)]
            assert offsets == list(range(2, 2002))
            with pytest.raises(DeliveryError):
                await producer.send_and_wait(topic, "x", partition=77)
            # A log line of librdkafka counts until it was dispatched.
            async with asyncio.timeout(60):
                while len(producer):
                    await producer.flush()

    asyncio.run(main())


def test_the_end_of_the_block_delivers_pending_records(bootstrap: str, topic: str) -> None:
    async def main() -> None:
        await fill(bootstrap, topic, 1000)
        async with AsyncConsumer(bootstrap, topics=[topic]) as consumer:
            found = await drain(consumer, 1000)
        assert [int(record.value) for record in found] == list(range(1000))

    asyncio.run(main())


def test_a_full_buffer_waits_then_raises() -> None:
    async def main() -> None:
        producer = AsyncProducer(f"127.0.0.1:{free_port()}", buffer_records=3, buffer_timeout=0.1)
        for _ in range(3):
            await producer.send("any", b"x")
        with pytest.raises(BufferFull, match="records wait"):
            await producer.send("any", b"x")
        with pytest.raises(TimedOut):
            await producer.close(0.05)
        with pytest.raises(ClosedError):
            await producer.send("any", b"x")

    asyncio.run(main())


def test_iteration_and_commit(bootstrap: str, topic: str, name: Callable[[str], str]) -> None:
    group = name("group")

    async def main() -> None:
        await fill(bootstrap, topic, 50)
        async with AsyncConsumer(
            bootstrap, group_id=group, topics=[topic], commit_interval=0
        ) as consumer:
            async for record in consumer:
                if record.offset == 19:
                    await consumer.commit()
                    break
            assert await consumer.committed() == {(topic, 0): 20}
            await consumer.seek(topic, 0, offset=48)
            assert [record.offset for record in await drain(consumer, 2)] == [48, 49]
            await consumer.pause(topic)
            assert not await consumer.poll(timeout=0.2)
            await consumer.resume(topic)
        with pytest.raises(ClosedError, match="The consumer is closed"):
            await consumer.commit()

    asyncio.run(main())


def test_a_cancelled_poll_loses_nothing(
    bootstrap: str, topic: str, name: Callable[[str], str]
) -> None:
    async def main() -> None:
        found: list[int] = []
        async with (
            AsyncConsumer(bootstrap, group_id=name("group"), topics=[topic]) as consumer,
            AsyncProducer(bootstrap, linger_ms=0) as producer,
        ):
            deadline = time.monotonic() + SECONDS_MAX
            sent = turn = 0
            while len(found) < 200:
                assert time.monotonic() < deadline, found
                if sent < 200:
                    await producer.send(topic, str(sent))
                    sent += 1
                turn += 1
                # Some polls are cancelled before, some after, and some while they hand out records.
                try:
                    async with asyncio.timeout(turn % 5 / 100):
                        found += [int(record.value) for record in await consumer.poll(10)]
                except TimeoutError:
                    continue
        assert found == list(range(200))

    asyncio.run(main())


def test_transactions(bootstrap: str, topic: str, name: Callable[[str], str]) -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap, transactional_id=name("id")) as producer:
            async with producer.transaction() as txn:
                kept = await txn.send(topic, "1")
            assert txn.state == "committed"
            assert (await kept).offset == 0
            with pytest.raises(ZeroDivisionError):
                await fail(producer)
            async with producer.transaction() as txn:
                await txn.send(topic, "3")
        async with AsyncConsumer(bootstrap, topics=[topic]) as consumer:
            assert [record.value for record in await drain(consumer, 2)] == [b"1", b"3"]

    async def fail(producer: AsyncProducer) -> None:
        async with producer.transaction() as txn:
            await txn.send(topic, "2")
            raise ZeroDivisionError

    asyncio.run(main())


def test_exactly_once(
    bootstrap: str, topic: str, wide_topic: str, name: Callable[[str], str]
) -> None:
    async def main() -> None:
        await fill(bootstrap, wide_topic, 100)
        async with (
            AsyncProducer(bootstrap, transactional_id=name("id")) as producer,
            AsyncConsumer(
                bootstrap,
                group_id=name("group"),
                topics=[wide_topic],
                delivery="exactly_once",
                producer=producer,
            ) as consumer,
        ):
            done = 0
            while done < 100:
                batch = await consumer.poll(30)
                for record in batch:
                    await producer.send(topic, record.value)
                await consumer.commit()
                done += len(batch)
            assert sum((await consumer.committed()).values()) == 100
        async with AsyncConsumer(bootstrap, topics=[topic]) as reader:
            found = await drain(reader, 100)
        assert sorted(int(record.value) for record in found) == list(range(100))

    asyncio.run(main())


def test_use_on_another_event_loop_raises(
    bootstrap: str, topic: str, name: Callable[[str], str]
) -> None:
    async def make() -> tuple[AsyncProducer, AsyncConsumer]:
        return AsyncProducer(bootstrap), AsyncConsumer(
            bootstrap, group_id=name("group"), topics=[topic]
        )

    async def use(producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        with pytest.raises(UsageError, match="AsyncProducer belongs to another event loop"):
            await producer.send(topic, b"x")
        with pytest.raises(UsageError, match="AsyncConsumer belongs to another event loop"):
            await consumer.poll()
        await producer.close()
        await consumer.close()

    asyncio.run(use(*asyncio.run(make())))
    with pytest.raises(UsageError, match="AsyncProducer is for asyncio: create it inside a"):
        AsyncProducer(bootstrap)
