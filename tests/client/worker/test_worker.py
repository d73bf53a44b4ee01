"""Handlers on a real broker: their results, and what happens to the messages."""

from __future__ import annotations

import asyncio
import datetime as dt
import doctest
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from harness.process.broker_process import wait_until
from millstream import client
from millstream.client import (
    Admin,
    AsyncProducer,
    Breaker,
    Consumer,
    Job,
    Partition,
    Producer,
    Record,
    UsageError,
    Worker,
)
from millstream.client.worker import worker as worker_module

SECONDS_MAX = 90.0
Name = Callable[[str], str]


def fill(bootstrap: str, topic: str, count: int, keys: int = 5) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, str(number), key=f"key-{number % keys}")


def read(bootstrap: str, topic: str, count: int) -> list[Record]:
    """The first committed records of a topic."""
    found: list[Record] = []
    deadline = time.monotonic() + SECONDS_MAX
    with Consumer(bootstrap, topics=[topic]) as consumer:
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records of {topic}"
            found += consumer.poll(timeout=0.2)
    return found


def committed(bootstrap: str, group: str, topic: str) -> int:
    with Admin(bootstrap) as admin:
        offsets = admin.list_group_offsets(group)
    return sum(offset for partition, offset in offsets.items() if partition.topic == topic)


def run_until(worker: Worker, condition: Callable[[], object], what: str) -> None:
    with worker:
        wait_until(condition, what, SECONDS_MAX)


def test_a_message_is_done_when_its_handler_returns(
    bootstrap: str, wide_topic: str, name: Name
) -> None:
    fill(bootstrap, wide_topic, 200)
    seen: list[int] = []
    group = name("group")
    worker = Worker(
        bootstrap,
        topics=[wide_topic],
        group_id=group,
        handler=lambda job: seen.append(int(job.value)),
    )
    run_until(worker, lambda: len(seen) == 200, "all messages")
    assert sorted(seen) == list(range(200))
    assert committed(bootstrap, group, wide_topic) == 200
    assert worker.hint().workers == 0


@pytest.mark.parametrize("order", ["key", "none"])
@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_a_failing_message_is_retried_and_becomes_a_dead_letter(
    bootstrap: str, wide_topic: str, name: Name, order: Any, transactional: bool
) -> None:
    fill(bootstrap, wide_topic, 40)
    group, attempts = name("group"), defaultdict[int, list[int]](list)
    done: set[int] = set()

    def handle(job: Job) -> None:
        number = int(job.value)
        attempts[number].append(job.attempt)
        if number == 7:
            raise ZeroDivisionError("seven")
        if number % 10 == 3 and job.attempt < 3:
            job.nack(delay=0.01)
            return
        if number == 11:
            job.reject("eleven")
            return
        done.add(number)

    worker = Worker(
        bootstrap,
        topics=[wide_topic],
        group_id=group,
        handler=handle,
        order=order,
        transactional=transactional,
        attempts_max=4,
        backoff=0.02,
    )
    run_until(worker, lambda: len(done) == 38 and worker.counts.dead == 2, "all messages")
    assert attempts[3] == attempts[33] == [1, 2, 3]
    assert attempts[7] == [1, 2, 3, 4]
    assert attempts[11] == [1]
    assert committed(bootstrap, group, wide_topic) == 40
    letters = {int(letter.value): letter for letter in read(bootstrap, f"{wide_topic}.dlq", 2)}
    assert letters.keys() == {7, 11}
    headers = dict(letters[7].headers)
    stack = headers.pop("millstream.error.stack")
    assert stack is not None
    assert b"line" in stack
    assert b"ZeroDivisionError: seven" in stack
    dead_at = headers.pop("millstream.dead.timestamp")
    original = next(each for each in read(bootstrap, wide_topic, 40) if each.value == b"7")
    assert headers == {
        "millstream.original.topic": wide_topic.encode(),
        "millstream.original.partition": str(original.partition).encode(),
        "millstream.original.offset": str(original.offset).encode(),
        "millstream.original.timestamp": str(original.timestamp).encode(),
        "millstream.group": group.encode(),
        "millstream.attempts": b"4",
        "millstream.error.type": b"ZeroDivisionError",
        "millstream.error.message": b"seven",
    }
    assert letters[7].key == original.key
    assert dead_at is not None
    assert int(dead_at) >= (original.timestamp or 0)
    assert letters[11].header("millstream.error.message") == b"eleven"


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_many_keys_run_at_once_each_in_order(
    bootstrap: str, topic: str, name: Name, kind: str
) -> None:
    """All handlers wait until one per key runs: one partition does not limit them."""
    fill(bootstrap, topic, 200, keys=20)
    seen = defaultdict[bytes, list[int]](list)
    gate, async_gate, arrived = threading.Event(), asyncio.Event(), set[bytes]()

    def record_start(job: Job) -> None:
        seen[job.key].append(int(job.value))

    def handle(job: Job) -> None:
        arrived.add(job.key)
        if len(arrived) == 20:
            gate.set()
        assert gate.wait(SECONDS_MAX)
        record_start(job)

    async def handle_async(job: Job) -> None:
        arrived.add(job.key)
        if len(arrived) == 20:
            async_gate.set()
        await async_gate.wait()
        record_start(job)

    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=name("group"),
        handler=handle if kind == "threads" else handle_async,
        concurrency=20,
    )
    run_until(worker, lambda: sum(map(len, seen.values())) == 200, "all messages")
    for number in range(20):
        assert seen[b"key-%d" % number] == list(range(number, 200, 20))


def test_a_stuck_key_blocks_only_itself(bootstrap: str, topic: str, name: Name) -> None:
    """The offset stays at the stuck message. More messages than the window continue, and the
    next worker knows which ones are finished."""
    with Producer(bootstrap) as producer:
        producer.send(topic, "0", key="stuck")
        for number in range(1, 3000):
            producer.send(topic, str(number), key=f"key-{number % 7}")
    gate, seen, group = threading.Event(), list[int](), name("group")

    def handle(job: Job) -> None:
        if job.key == b"stuck":
            assert gate.wait(SECONDS_MAX)
        seen.append(int(job.value))

    def worker() -> Worker:
        return Worker(
            bootstrap,
            topics=[topic],
            group_id=group,
            handler=handle,
            window=400,
            drain_timeout=0,
            commit_interval=0.01,
        )

    with worker() as first:
        wait_until(lambda: len(seen) == 2999 and first.held == 1, "the others", SECONDS_MAX)
        assert committed(bootstrap, group, topic) == 0
    with worker():
        gate.set()
        wait_until(lambda: committed(bootstrap, group, topic) == 3000, "the rest", SECONDS_MAX)
    # The stuck handler of the first worker has returned too.
    assert sorted(seen) == [0, 0, *range(1, 3000)]


@pytest.mark.parametrize("limit", [{"window": 100}, {"window_bytes": 100_000}])
def test_the_window_limits_held_messages(
    bootstrap: str, topic: str, name: Name, limit: dict[str, Any]
) -> None:
    """Each limit holds at 100 messages, and more are read only once those are done."""
    with Producer(bootstrap) as producer:
        for _ in range(700):
            producer.send(topic, b"x" * 1000)
    gate, done = threading.Event(), list[int]()

    def handle(job: Job) -> None:
        assert gate.wait(SECONDS_MAX)
        done.append(job.offset)

    worker = Worker(bootstrap, topics=[topic], group_id=name("group"), handler=handle, **limit)
    with worker:
        wait_until(lambda: worker.is_full, "a full window", SECONDS_MAX)
        # The poll that filled the window may have returned more: 500 messages, or as many bytes
        # again.
        assert worker.held < (600 if "window" in limit else 200)
        gate.set()
        wait_until(lambda: len(done) == 700, "all messages", SECONDS_MAX)


def test_a_late_handler_has_failed_unless_it_extends_its_deadline(
    bootstrap: str, topic: str, name: Name
) -> None:
    fill(bootstrap, topic, 2, keys=2)
    gate, attempts = threading.Event(), defaultdict[bytes, int](int)
    done: list[bytes] = []

    def handle(job: Job) -> None:
        attempts[job.value] += 1
        if job.value == b"0" and job.attempt == 1:
            assert gate.wait(SECONDS_MAX)
            return
        if job.value == b"1":
            job.extend(SECONDS_MAX)
            assert gate.wait(SECONDS_MAX)
        done.append(job.value)

    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=name("group"),
        handler=handle,
        visibility_timeout=2.0,
        backoff=0.01,
        concurrency=2,
    )
    with worker:
        wait_until(lambda: done == [b"0"], "the second attempt", SECONDS_MAX)
        gate.set()
        wait_until(lambda: len(done) == 2, "the other", SECONDS_MAX)
    assert attempts[b"0"] >= 2
    assert attempts[b"1"] == 1
    assert worker.counts.timed_out >= 1


def test_an_open_breaker_makes_no_dead_letters(bootstrap: str, topic: str, name: Name) -> None:
    fill(bootstrap, topic, 100, keys=100)
    is_up, done, calls = threading.Event(), list[int](), list[float]()

    def handle(job: Job) -> None:
        calls.append(time.monotonic())
        if not is_up.is_set():
            raise ConnectionError("the database is away")
        done.append(int(job.value))

    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=name("group"),
        handler=handle,
        attempts_max=2,
        backoff=0.0,
        concurrency=4,
        breaker=Breaker(failures=5, rest=0.2, on=(ConnectionError,)),
    )
    with worker:
        # Without the breaker each second call would have made a dead letter by then.
        wait_until(lambda: len(calls) > 12, "some trials", SECONDS_MAX)
        is_up.set()
        wait_until(lambda: len(done) + worker.counts.dead == 100, "the rest", SECONDS_MAX)
    assert worker.counts.dead <= 4


def test_delayed_messages(bootstrap: str, topic: str, name: Name) -> None:
    seen: list[tuple[str, bytes, float]] = []

    def handle(job: Job) -> None:
        seen.append((job.topic, job.value, time.time()))
        if job.value == b"first":
            job.send(topic, "third", key="key", delay=0.3)

    worker = Worker(bootstrap, topics=[topic], group_id=name("group"), handler=handle)
    with worker:
        wait_until(lambda: f"{topic}.scheduled" in names(bootstrap), "the topic", SECONDS_MAX)
        start = time.time()
        with Producer(bootstrap) as producer:
            producer.send(topic, "second", key="key", deliver_at=int((start + 1.5) * 1000))
            producer.send(topic, "first", key="key", delay=0.5, headers={"app": "x"})
            producer.send(topic, "zeroth", key="key")
            far = producer.send(topic, "far", key="key", delay=dt.timedelta(days=40)).result()
            # Retention counts from the due time.
            assert (far.timestamp or 0) > (start + 39 * 86_400) * 1000
        asyncio.run(send_later(bootstrap, topic))
        wait_until(lambda: len(seen) == 5, "all messages", SECONDS_MAX)
    at = {value: moment - start for _, value, moment in seen}
    assert at[b"first"] >= 0.499
    assert at[b"second"] >= 1.499
    assert at[b"third"] >= 0.799
    assert at[b"async"] >= 0.099
    assert at.keys() == {b"zeroth", b"first", b"second", b"third", b"async"}
    assert {name for name, _, _ in seen} == {topic}


def test_messages_with_a_long_delay_do_not_block_nearer_ones(
    bootstrap: str, topic: str, name: Name
) -> None:
    """More messages than the window holds are not due, and they precede the others."""
    group, seen = name("group"), list[bytes]()
    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=group,
        handler=lambda job: seen.append(job.value),
        window=20,
        commit_interval=0.05,
    )
    with worker:
        wait_until(lambda: f"{topic}.scheduled" in names(bootstrap), "the topic", SECONDS_MAX)
        with Producer(bootstrap) as producer:
            for number in range(200):
                producer.send(
                    topic, str(number), key="far", delay=dt.timedelta(days=number % 40 + 1)
                )
            producer.flush()
            producer.send(topic, "near", key="near", delay=0.2)
        wait_until(lambda: seen == [b"near"], "the nearer one", SECONDS_MAX)
        wait_until(lambda: worker.counts.parked >= 180, "the rest to be parked", SECONDS_MAX)
        with Admin(bootstrap) as admin:
            wait_until(
                lambda: sum(admin.list_topic_offsets(f"{topic}.parked").values()) >= 180,
                "them to be there",
            )


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_a_long_delay_blocks_only_its_key(
    bootstrap: str, topic: str, name: Name, transactional: bool
) -> None:
    """More messages than the window continue although the first waits, and so does their output."""
    output, group = name("output"), name("group")
    with Admin(bootstrap) as admin:
        admin.create_topic(output, partitions=1)
    with Producer(bootstrap) as producer:
        for number in range(300):
            key = "slow" if number % 10 == 0 else f"key-{number}"
            producer.send(topic, str(number), key=key)

    def handle(job: Job) -> None:
        if job.key == b"slow":
            job.nack(delay=3600)
        else:
            job.send(output, job.value, key=job.key)

    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=group,
        handler=handle,
        window=20,
        transactional=transactional,
        commit_interval=0.05,
    )
    with worker:
        found = {record.value for record in read(bootstrap, output, 270)}
        wait_until(lambda: worker.held == 30, "the others to be finished", SECONDS_MAX)
    assert found == {b"%d" % number for number in range(300) if number % 10}
    assert committed(bootstrap, group, topic) == 0


def test_the_largest_message_fits_into_the_dead_letter_topic(
    bootstrap: str, topic: str, name: Name
) -> None:
    value = b"x" * 1_048_400
    with Producer(bootstrap, config={"message.max.bytes": 2_000_000}) as producer:
        producer.send(topic, value, key="key")
    worker = Worker(
        bootstrap, topics=[topic], group_id=name("group"), handler=lambda job: job.reject("r" * 999)
    )
    with worker:
        wait_until(lambda: worker.counts.dead == 1, "the letter", SECONDS_MAX)
        [letter] = read(bootstrap, f"{topic}.dlq", 1)
    assert letter.value == value


async def send_later(bootstrap: str, topic: str) -> None:
    async with AsyncProducer(bootstrap) as producer:
        await producer.send_and_wait(topic, "async", key="key", delay=dt.timedelta(seconds=0.1))


def names(bootstrap: str) -> list[str]:
    with Admin(bootstrap) as admin:
        return admin.list_topics()


def test_retries_of_another_group_are_ignored(bootstrap: str, topic: str, name: Name) -> None:
    fill(bootstrap, topic, 1)
    tries = defaultdict[str, int](int)

    def handler_of(group: str, fails: bool) -> Callable[[Job], None]:
        def handle(job: Job) -> None:
            tries[group] += 1
            if fails and job.attempt == 1:
                raise ZeroDivisionError

        return handle

    workers = [
        Worker(
            bootstrap,
            topics=[topic],
            group_id=name("group"),
            handler=handler_of(who, who == "failing"),
            order="none",
            backoff=0.0,
        )
        for who in ("failing", "other")
    ]
    groups = [worker._group for worker in workers]
    with workers[0], workers[1]:
        for group in groups:
            wait_until(
                lambda group=group: committed(bootstrap, group, f"{topic}.retry.1") == 1,
                "the retry to be read",
                SECONDS_MAX,
            )
    assert tries == {"failing": 2, "other": 1}


def test_partitions_change_owners_without_loss_or_repetition(
    bootstrap: str, wide_topic: str, name: Name
) -> None:
    """A worker whose partitions are revoked finishes and commits its running jobs."""
    fill(bootstrap, wide_topic, 400, keys=40)
    group, seen, lock = name("group"), list[tuple[bytes, int]](), threading.Lock()

    def handle(job: Job) -> None:
        time.sleep(0.005)
        with lock:
            seen.append((job.key, int(job.value)))

    def worker() -> Worker:
        return Worker(bootstrap, topics=[wide_topic], group_id=group, handler=handle, concurrency=4)

    with worker():
        wait_until(lambda: len(seen) > 20, "a beginning", SECONDS_MAX)
        with worker() as second:
            wait_until(lambda: second.counts.done > 0 or len(seen) >= 400, "help", SECONDS_MAX)
        wait_until(lambda: len(seen) >= 400, "the rest", SECONDS_MAX)
    assert sorted(number for _, number in seen) == list(range(400))
    for key in {key for key, _ in seen}:
        mine = [number for each, number in seen if each == key]
        assert mine == sorted(mine)


def test_wrong_use_is_explained(bootstrap: str, topic: str) -> None:
    with pytest.raises(UsageError, match="not callable"):
        Worker(bootstrap, topics=[topic], group_id="g", handler=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no handler"):
        Worker(bootstrap, topics=[topic], group_id="g").run()
    with pytest.raises(UsageError, match="order='sometimes' is unknown"):
        Worker(bootstrap, topics=[topic], group_id="g", order="sometimes")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="did you mean 'attempts_max'"):
        Worker(bootstrap, topics=[topic], group_id="g", atempts_max=3)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="deliver_at or delay"), Producer(bootstrap) as producer:
        producer.send(topic, "value", key="key", deliver_at=1, delay=1)


def test_the_example_works(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", bootstrap)
    with Admin(bootstrap) as admin:
        for example in ("parcels", "shipped"):
            admin.create_topic(example, partitions=1, if_missing=True)
    names = {each: getattr(client, each) for each in ("Worker", "Producer", "Consumer")}
    outcome = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(worker_module.Worker, "Worker", globs=names):
        outcome.run(example)
    assert outcome.summarize(verbose=False).failed == 0
    assert Partition("parcels.dlq", 0) in Admin(bootstrap).list_topic_offsets("parcels.dlq")
