"""A relay that dies between two steps, and one that continues after another took over its shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from client.outbox.outbox_home import OutboxHome, values_by_key
from harness.process.broker_process import wait_until
from millstream.client.outbox.sink import Sink, SinkError, prepare
from millstream.client.outbox.source import BatchLimit, Event, ShardSource, ShardTakenError
from millstream.client.outbox.takeover import ShardTakeover

LIMIT = BatchLimit(100, 1 << 20)


class Steps:
    """The steps of a relay, one by one."""

    def __init__(self, home: OutboxHome, *, locked: bool = True) -> None:
        self.gone = False
        shard = shard_of_key(home)
        self.source: ShardSource = home.database.open(shard)
        if locked:
            assert self.source.acquire()
        self.takeover: ShardTakeover = self.source.take_over("a test")
        self.sink = Sink(
            {"bootstrap.servers": home.bootstrap}, self.takeover.name, shard, lambda: False
        )
        self.sink.open()
        if self.sink.committed() is None:
            self.sink.send([], self.takeover.batch)

    def claim(self) -> list[Event]:
        return list(self.source.claim(self.takeover.batch + 1, LIMIT, keep=False))

    def vanish(self) -> None:
        """End as if killed: without any further request."""
        if not self.gone:
            self.gone = True
            self.source.close()
            self.sink.close()


def shard_of_key(home: OutboxHome) -> int:
    return int(home.query("SELECT shard FROM millstream_outbox ORDER BY id LIMIT 1")[0][0])


@pytest.fixture
def filled(home: OutboxHome, topic: str) -> OutboxHome:
    prepare({"bootstrap.servers": home.bootstrap}, 4)
    home.write(topic, [("k", "1"), ("k", "2")])
    return home


@pytest.fixture
def begin(filled: OutboxHome) -> Iterator[Callable[..., Steps]]:
    made: list[Steps] = []

    def make(*, locked: bool = True) -> Steps:
        made.append(Steps(filled, locked=locked))
        return made[-1]

    yield make
    for steps in made:
        steps.vanish()


def test_killed_after_the_claim(
    filled: OutboxHome, begin: Callable[..., Steps], topic: str
) -> None:
    steps = begin()
    assert len(steps.claim()) == 2
    steps.source.close()
    filled.drain()
    assert values_by_key(filled.bootstrap, topic) == {"k": ["1", "2"]}


def test_killed_with_an_open_transaction(
    filled: OutboxHome, begin: Callable[..., Steps], topic: str
) -> None:
    steps = begin()
    producer = steps.sink._producer
    producer.begin_transaction()
    for event in steps.claim():
        producer.produce(event.topic, event.value, event.key)
    producer.flush(60)
    steps.source.close()
    filled.drain()
    assert values_by_key(filled.bootstrap, topic) == {"k": ["1", "2"]}


def test_killed_between_the_commit_and_the_mark(
    filled: OutboxHome, begin: Callable[..., Steps], topic: str
) -> None:
    steps = begin()
    steps.sink.send(steps.claim(), steps.takeover.batch + 1)
    steps.source.close()
    filled.write(topic, [("k", "3")])
    filled.drain()
    assert values_by_key(filled.bootstrap, topic) == {"k": ["1", "2", "3"]}


def test_a_former_owner_can_neither_send_nor_write(
    filled: OutboxHome, begin: Callable[..., Steps], topic: str
) -> None:
    """The former owner has no lock: a connection pooler may give one session's lock to another."""
    former = begin(locked=False)
    claimed = former.claim()
    begin(locked=False)
    with pytest.raises(SinkError):
        former.sink.send(claimed, former.takeover.batch + 1)
    for step in (
        former.claim,
        former.source.release,
        lambda: former.source.finish(keep=False),
    ):
        with pytest.raises(ShardTakenError):
            step()
    filled.drain()
    assert values_by_key(filled.bootstrap, topic) == {"k": ["1", "2"]}


def test_a_locked_shard_cannot_be_acquired(filled: OutboxHome, begin: Callable[..., Steps]) -> None:
    owner = begin()
    with closing(filled.database.open(shard_of_key(filled))) as other:
        assert not other.acquire()
        assert [each.active for each in filled.database.status()].count(True) == 1
        owner.vanish()
        # The database notices it a little later.
        wait_until(other.acquire, "the shard to be free")


def test_a_batch_ends_at_its_limits(filled: OutboxHome, begin: Callable[..., Steps]) -> None:
    steps = begin()
    assert len(steps.source.claim(1, BatchLimit(1, 1 << 20), keep=False)) == 1
    steps.source.release()
    assert len(steps.source.claim(1, BatchLimit(100, 1), keep=False)) == 1
    steps.source.release()
    assert len(steps.source.claim(1, BatchLimit(100, 2), keep=False)) == 2
