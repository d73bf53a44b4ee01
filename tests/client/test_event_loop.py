"""Asyncio clients never hold up their event loop, whatever librdkafka waits for.

Every method of librdkafka's clients stops at a gate, except those that never wait. On the thread of
the loop that is a failure. On another thread the call waits until the loop has turned often enough.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import confluent_kafka
import pytest

from harness.process.broker_process import BrokerProcess
from millstream.client import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    AsyncTransaction,
    Partition,
    Producer,
    UsageError,
)
from millstream.client.consumer import consumer_handle
from millstream.client.producer import producer_handle

TURNS = 50
SECONDS_MAX = 60.0
#: Calls that return at once: they only touch librdkafka's own queues.
NEVER_WAIT = {
    "Consumer": {"consumer_group_metadata", "memberid", "set_sasl_credentials"},
    "Producer": {"produce", "set_sasl_credentials"},
}


class Gate:
    def __init__(self) -> None:
        self._opened = threading.Event()
        self._opened.set()
        #: Calls that wait or have waited.
        self.held: list[str] = []
        self.violations: list[str] = []
        self.loop_thread = 0

    def shut(self) -> None:
        self.held.clear()
        self._opened.clear()

    def open(self) -> None:
        self._opened.set()

    def pass_through(self, call: str) -> None:
        if threading.get_ident() == self.loop_thread:
            self.violations.append(f"{call} was called on the event loop")
        elif not self._opened.is_set():
            self.held.append(call)
            if not self._opened.wait(SECONDS_MAX):
                # The event loop waits for a lock that this thread holds.
                self.violations.append(f"{call} was held, and the event loop stood still")
                self._opened.set()


def gated(gate: Gate, kind: type[Any]) -> type[Any]:
    """librdkafka's client of that kind, with the gate before each call."""

    def wrap(name: str) -> Callable[..., Any]:
        method = getattr(kind, name)

        def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            # Polls that do not wait dispatch the reports of a producer.
            if (name, arguments) != ("poll", (0.0,)) or kind is not confluent_kafka.Producer:
                gate.pass_through(f"{kind.__name__}.{name}")
            return method(self, *arguments, **keywords)

        return call

    names = {
        name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))
    }
    wrapped = {name: wrap(name) for name in names - NEVER_WAIT[kind.__name__]}
    return type(kind.__name__, (kind,), wrapped)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()
    monkeypatch.setattr(consumer_handle, "RdKafkaConsumer", gated(made, confluent_kafka.Consumer))
    monkeypatch.setattr(producer_handle, "RdKafkaProducer", gated(made, confluent_kafka.Producer))
    return made


@pytest.fixture
def filled(broker: BrokerProcess, name: Callable[[str], str]) -> str:
    made = name("topic")
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(made, partitions=2)
    with Producer(broker.bootstrap) as producer:
        for number in range(20):
            producer.send(made, str(number), partition=number % 2)
    return made


async def turn(count: int = TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():
            await turn(1)


async def watched(gate: Gate, call: Coroutine[Any, Any, Any], *, waits: bool = True) -> Any:
    """Run a call while librdkafka waits at the gate; the loop runs meanwhile."""
    gate.shut()
    task = asyncio.ensure_future(call)
    try:
        await until(lambda: task.done() or gate.held)
        await turn()
        assert bool(gate.held) == waits, f"held: {gate.held}"
        assert not task.done() or not waits
    finally:
        gate.open()
    return await task


def run(gate: Gate, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    gate.loop_thread = threading.get_ident()
    asyncio.run(main())
    gate.loop_thread = 0
    assert gate.violations == []


@asynccontextmanager
async def member(broker: BrokerProcess, topic: str) -> AsyncIterator[AsyncConsumer]:
    consumer = AsyncConsumer(
        broker.bootstrap, group_id=topic, topics=[topic], on_assign=lambda *_: None
    )
    async with consumer:
        async with asyncio.timeout(SECONDS_MAX):
            while not await consumer.poll(1):
                pass
        yield consumer


async def position_after_seek(consumer: AsyncConsumer, topic: str) -> int:
    """Ask for a position that only the broker knows."""
    await consumer.seek(topic, offset="latest")
    return await consumer.position(topic, 0)


CONSUMER_CALLS: dict[str, Callable[[AsyncConsumer, str], Coroutine[Any, Any, Any]]] = {
    "commit": lambda consumer, _: consumer.commit(),
    "seek": lambda consumer, topic: consumer.seek(topic, offset=0),
    "seek by time": lambda consumer, topic: consumer.seek(topic, time=0),
    "pause": lambda consumer, topic: consumer.pause(topic),
    "resume": lambda consumer, topic: consumer.resume(topic),
    "committed": lambda consumer, _: consumer.committed(),
    "position": position_after_seek,
    "subscribe": lambda consumer, topic: consumer.subscribe([topic]),
    "unsubscribe": lambda consumer, _: consumer.unsubscribe(),
    "close": lambda consumer, _: consumer.close(),
}


@pytest.mark.parametrize("name_of_call", CONSUMER_CALLS)
def test_a_call_of_a_consumer_waits_on_its_thread(
    gate: Gate, broker: BrokerProcess, filled: str, name_of_call: str
) -> None:
    async def main() -> None:
        async with member(broker, filled) as consumer:
            await watched(gate, CONSUMER_CALLS[name_of_call](consumer, filled))

    run(gate, main)


def test_reading_waits_on_the_thread(gate: Gate, broker: BrokerProcess, filled: str) -> None:
    async def main() -> None:
        consumer = AsyncConsumer(broker.bootstrap, group_id=filled, topics=[filled])
        await watched(gate, consumer.poll(1, 0))
        loop = consumer.__aiter__()
        assert await watched(gate, anext(loop)) is not None
        await loop.aclose()
        await watched(gate, consumer.__aexit__(None, None, None))

    run(gate, main)


@pytest.mark.parametrize("group", [None, "g"])
def test_a_consumer_starts_on_its_thread(
    gate: Gate, broker: BrokerProcess, filled: str, group: str | None
) -> None:
    async def main() -> None:
        gate.shut()
        consumer = AsyncConsumer(broker.bootstrap, group_id=group, topics=[filled])
        gate.open()
        await watched(gate, turn(), waits=False)
        async with consumer:
            assert group or consumer.assignment == {Partition(filled, n) for n in range(2)}
        missing = AsyncConsumer(broker.bootstrap, topics=["a topic that cannot be"])
        with pytest.raises(Exception, match="Asking for the partitions"):
            await missing.poll()
        await missing.close()

    run(gate, main)


def test_state_is_readable_while_a_call_waits(
    gate: Gate, broker: BrokerProcess, filled: str
) -> None:
    """No lock that a waiting call holds is needed for it."""

    async def main() -> None:
        async with (
            member(broker, filled) as consumer,
            AsyncProducer(broker.bootstrap, transactional_id=filled) as producer,
            producer.transaction() as txn,
        ):
            await consumer.seek(filled, offset="latest")
            gate.shut()
            poll = asyncio.ensure_future(consumer.poll())
            await until(lambda: gate.held)
            assert isinstance(consumer.offsets(), dict)
            assert consumer.group_metadata() is not None
            assert consumer.assignment
            offsets = asyncio.ensure_future(txn.send_offsets(consumer))
            other = asyncio.ensure_future(consumer.poll())
            commit = asyncio.ensure_future(consumer.commit())
            await turn()
            for task in (poll, other):
                task.cancel()
            await turn()
            close = asyncio.ensure_future(consumer.close())
            await turn()
            assert not close.done()
            gate.open()
            await asyncio.gather(poll, other, commit, offsets, close, return_exceptions=True)

    run(gate, main)


PRODUCER_CALLS: dict[str, Callable[[AsyncProducer, str], Coroutine[Any, Any, Any]]] = {
    "send by a partitioner": lambda producer, topic: producer.send(topic, "v", key="k"),
    "send_and_wait": lambda producer, topic: producer.send_and_wait(topic, "v", key="k"),
    "refresh": lambda producer, topic: producer.refresh(topic),
    "close": lambda producer, _: producer.close(),
    "leave the block": lambda producer, _: producer.__aexit__(None, None, None),
}


@pytest.mark.parametrize("name_of_call", PRODUCER_CALLS)
def test_a_call_of_a_producer_waits_on_a_thread(
    gate: Gate, broker: BrokerProcess, filled: str, name_of_call: str
) -> None:
    async def main() -> None:
        producer = AsyncProducer(broker.bootstrap, partitioner="round_robin")
        await watched(gate, PRODUCER_CALLS[name_of_call](producer, filled))
        await producer.close()
        await producer.close()

    run(gate, main)


def test_sends_share_one_request_for_partitions(
    gate: Gate, broker: BrokerProcess, filled: str
) -> None:
    async def main() -> None:
        async with AsyncProducer(broker.bootstrap, partitioner="round_robin") as producer:

            async def send_many() -> None:
                await asyncio.gather(*(producer.send(filled, "v") for _ in range(30)))

            await watched(gate, send_many())
            assert gate.held == ["Producer.list_topics"]

    run(gate, main)


def test_sending_never_waits(gate: Gate, broker: BrokerProcess, filled: str) -> None:
    async def main() -> None:
        async with AsyncProducer(broker.bootstrap) as producer:

            async def send() -> None:
                first = await producer.send(filled, "v", key="k")
                with pytest.raises(UsageError, match="await the delivery"):
                    first.result()
                assert (await first).topic == filled
                assert (await producer.send_and_wait(filled, "v", key="k")).topic == filled
                for _ in range(600):
                    await producer.send(filled, "v", key="k")
                await producer.flush()
                assert len(producer) >= 0

            await watched(gate, send(), waits=False)

    run(gate, main)


def test_a_transaction_waits_on_threads(gate: Gate, broker: BrokerProcess, filled: str) -> None:
    async def main() -> None:
        async with (
            AsyncProducer(broker.bootstrap, transactional_id=filled) as producer,
            member(broker, filled) as consumer,
        ):
            for end in ("abort", "commit"):
                txn = producer.transaction()
                await watched(gate, txn.__aenter__())
                await txn.send(filled, "v")
                await watched(gate, txn.send_offsets(consumer))
                await watched(gate, getattr(txn, end)())
            txn = producer.transaction()
            gate.shut()
            begun = asyncio.ensure_future(txn.__aenter__())
            await until(lambda: gate.held)
            begun.cancel()
            await turn()
            gate.open()
            # The cancelled transaction is aborted, and another one can begin.
            driver = producer.transactions
            assert driver is not None
            await until(lambda: begun.done() and driver.state == "aborted")
            async with producer.transaction() as last:
                await last.send(filled, "v")
            await producer.transaction().__aenter__()
            # Closing aborts the transaction.
            await watched(gate, producer.close())

    run(gate, main)


def test_every_method_has_a_test() -> None:
    """A new method needs a test above, and an entry here."""

    def methods(kind: type[Any]) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert methods(AsyncConsumer) == {
        *("assignment", "close", "commit", "committed", "ended", "group_metadata", "offsets"),
        *("pause", "poll", "position", "resume", "seek", "subscribe", "unsubscribe"),
    }
    assert methods(AsyncProducer) == {
        *("close", "flush", "refresh", "send", "send_and_wait", "transaction", "transactions"),
    }
    assert methods(AsyncTransaction) == {"abort", "commit", "send_offsets", "state"}
