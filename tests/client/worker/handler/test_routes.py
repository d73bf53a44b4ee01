"""Handlers by topic, middleware and typed payloads on a real broker."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from harness.process.broker_process import wait_until
from millstream.client import Admin, Job, Producer, UsageError, Worker
from millstream.client.dead_letter import DeadLetterTopic

SECONDS_MAX = 60.0
Name = Callable[[str], str]


@dataclasses.dataclass
class Order:
    id: int


@pytest.fixture
def topics(bootstrap: str, name: Name) -> list[str]:
    made = [name("topic"), name("topic")]
    with Admin(bootstrap) as admin:
        for topic in made:
            admin.create_topic(topic, partitions=1)
    return made


def send(bootstrap: str, topic: str, *values: str | bytes, **options: Any) -> None:
    with Producer(bootstrap) as producer:
        for value in values:
            producer.send(topic, value, **options)


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "tasks"])
def test_each_topic_has_its_handler(
    bootstrap: str, topics: list[str], name: Name, is_async: bool
) -> None:
    """The topics come from the handlers, and middleware runs around each of them."""
    orders, refunds = topics
    send(bootstrap, orders, '{"id": 1}', '{"id": "one"}')
    send(bootstrap, refunds, "2")
    seen: list[Any] = []
    worker = Worker(bootstrap, group_id=name("group"))
    if is_async:

        async def bill(order: Order) -> None:
            seen.append(order)

        async def refund(job: Job) -> None:
            seen.append(job.value)

        async def outer(job: Job, call_next: Any) -> None:
            seen.append("outer")
            await call_next(job)

        async def inner(job: Job, call_next: Any) -> None:
            seen.append("inner")
            await call_next(job)
            seen.append("end")
    else:

        def bill(order: Order) -> None:  # type: ignore[misc]
            seen.append(order)

        def refund(job: Job) -> None:  # type: ignore[misc]
            seen.append(job.value)

        def outer(job: Job, call_next: Any) -> None:  # type: ignore[misc]
            seen.append("outer")
            call_next(job)

        def inner(job: Job, call_next: Any) -> None:  # type: ignore[misc]
            seen.append("inner")
            call_next(job)
            seen.append("end")

    worker.handler(orders)(bill)
    worker.handler(refunds)(refund)
    worker.middleware(outer)
    worker.middleware(inner)
    assert worker.topics == topics
    with worker:
        wait_until(lambda: worker.counts.done == 2, "the jobs", SECONDS_MAX)
        wait_until(lambda: worker.counts.dead == 1, "the dead letter", SECONDS_MAX)
    assert [each for each in seen if not isinstance(each, str)] == [Order(1), b"2"] or [
        each for each in seen if not isinstance(each, str)
    ] == [b"2", Order(1)]
    # The invalid payload passed through the middleware, and was tried once.
    assert (seen.count("outer"), seen.count("inner"), seen.count("end")) == (3, 3, 2)
    assert worker.counts.retried == 0
    [letter] = DeadLetterTopic(orders, bootstrap).letters()
    assert letter.error_type == "millstream.client.worker.failure.InvalidPayload"
    assert "not a valid Order: Expected `int`, got `str`" in letter.error_message
    assert letter.value == b'{"id": "one"}'


def test_plain_handlers_beside_coroutine_functions(
    bootstrap: str, topics: list[str], name: Name
) -> None:
    """The plain handler waits for the other one: it does not block the event loop."""
    orders, refunds = topics
    gate = threading.Event()
    seen: dict[str, str] = {}
    worker = Worker(bootstrap, group_id=name("group"), attempts_max=1)

    @worker.handler(orders)
    def bill(order: Order) -> None:
        assert gate.wait(SECONDS_MAX)
        seen["bill"] = threading.current_thread().name

    @worker.handler(refunds)
    async def refund(job: Job) -> None:
        seen["refund"] = threading.current_thread().name
        gate.set()

    @worker.cron("0 0 1 1 *")
    def close_year() -> None: ...

    @worker.middleware
    async def around(job: Job, call_next: Any) -> None:
        await call_next(job)

    send(bootstrap, orders, '{"id": 1}', '{"id": "one"}')
    with worker:
        wait_until(lambda: worker.in_progress == 1, "the plain handler", SECONDS_MAX)
        send(bootstrap, refunds, "2")
        wait_until(lambda: worker.counts.done == 2, "the jobs", SECONDS_MAX)
        wait_until(lambda: worker.counts.dead == 1, "the dead letter", SECONDS_MAX)
    assert seen == {"bill": "millstream-worker-call", "refund": "millstream-worker-tasks"}
    [letter] = DeadLetterTopic(orders, bootstrap).letters()
    assert letter.error_type == "millstream.client.worker.failure.InvalidPayload"


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
def test_an_exit_of_a_handler_beside_a_coroutine_function_ends_only_its_attempt(
    bootstrap: str, topics: list[str], name: Name, is_async: bool
) -> None:
    failing, working = topics
    worker = Worker(bootstrap, group_id=name("group"), attempts_max=1)
    if is_async:

        @worker.handler(failing)
        async def leave(job: Job) -> None:
            sys.exit(3)
    else:

        @worker.handler(failing)
        def leave_plainly(job: Job) -> None:
            sys.exit(3)

    @worker.handler(working)
    async def work(job: Job) -> None: ...

    with worker:
        send(bootstrap, failing, "x")
        wait_until(lambda: worker.counts.dead == 1, "the dead letter", SECONDS_MAX)
        send(bootstrap, working, "y")
        wait_until(lambda: worker.counts.done == 1, "the other job", SECONDS_MAX)
    [letter] = DeadLetterTopic(failing, bootstrap).letters()
    assert letter.error_type == "SystemExit"


def test_a_late_plain_handler_beside_a_coroutine_function(
    bootstrap: str, topics: list[str], name: Name
) -> None:
    """Its attempt has failed, and its thread does not take the place of another handler."""
    late, other = topics
    gate = threading.Event()
    attempts: list[int] = []
    worker = Worker(
        bootstrap, group_id=name("group"), concurrency=1, visibility_timeout=2.0, backoff=0.01
    )

    @worker.handler(late)
    def wait(job: Job) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            assert gate.wait(SECONDS_MAX)

    @worker.handler(other)
    async def work(job: Job) -> None: ...

    with worker:
        send(bootstrap, late, "x")
        wait_until(lambda: worker.counts.done == 1, "the second attempt", SECONDS_MAX)
        gate.set()
    assert attempts[:2] == [1, 2]
    assert worker.counts.timed_out >= 1


def test_a_default_handler_beside_one_of_a_topic(
    bootstrap: str, topics: list[str], name: Name
) -> None:
    seen: list[tuple[str, bytes]] = []
    worker = Worker(bootstrap, topics=topics, group_id=name("group"))

    @worker.handler
    def rest(job: Job) -> None:
        seen.append(("rest", job.value))

    @worker.handler(topics[0])
    def first(job: Job) -> None:
        seen.append(("first", job.value))

    for number, topic in enumerate(topics):
        send(bootstrap, topic, str(number))
    durations: list[str] = []
    worker.observe(lambda topic, seconds: durations.append(topic))
    with worker:
        wait_until(lambda: len(seen) == 2, "the jobs", SECONDS_MAX)
    assert sorted(seen) == [("first", b"0"), ("rest", b"1")]
    assert sorted(durations) == sorted(topics)


def test_messages_past_their_time_to_live(bootstrap: str, topics: list[str], name: Name) -> None:
    """The header of a message takes precedence over the worker's default."""
    topic = topics[0]
    old = int((time.time() - 7200) * 1000)
    send(bootstrap, topic, "expired", timestamp=old)
    send(bootstrap, topic, "kept", timestamp=old, headers={"millstream.ttl": "86400"})
    send(bootstrap, topic, "short", headers={"millstream.ttl": "0"})
    send(bootstrap, topic, "fresh")
    group, seen = name("group"), list[bytes]()
    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=group,
        handler=lambda job: seen.append(job.value),
        ttl=3600,
        on_expired="dead_letter",
    )
    with worker:
        wait_until(lambda: worker.counts.done + worker.counts.expired == 4, "all", SECONDS_MAX)
        wait_until(lambda: worker.held == 0, "the commit", SECONDS_MAX)
    assert sorted(seen) == [b"fresh", b"kept"]
    assert worker.counts.expired == worker.counts.dead == 2
    letters = list(DeadLetterTopic(topic, bootstrap).letters())
    assert sorted(letter.value for letter in letters) == [b"expired", b"short"]
    assert letters[0].error_type == "millstream.client.worker.failure.MessageExpired"
    with Admin(bootstrap) as admin:
        assert sum(admin.list_group_offsets(group).values()) == 4


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_expired_messages_are_dropped(
    bootstrap: str, topics: list[str], name: Name, transactional: bool
) -> None:
    topic, group = topics[0], name("group")
    send(bootstrap, topic, *["x"] * 50, headers={"millstream.ttl": "0"})
    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=group,
        handler=print,
        transactional=transactional,
        commit_interval=0.05,
    )
    with worker:
        wait_until(lambda: worker.counts.expired == 50, "the messages", SECONDS_MAX)
    assert worker.counts.done == worker.counts.dead == 0
    with Admin(bootstrap) as admin:
        assert sum(admin.list_group_offsets(group).values()) == 50


def test_a_retry_keeps_the_time_to_live(bootstrap: str, topics: list[str], name: Name) -> None:
    """The time counts from the message's own timestamp, also in a retry topic."""
    topic = topics[0]
    worker = Worker(
        bootstrap,
        topics=[topic],
        group_id=name("group"),
        handler=lambda job: job.nack(delay=0.3),
        order="none",
        attempts_max=1000,
    )
    with worker:
        wait_until(lambda: worker.is_ready, "the group", SECONDS_MAX)
        send(bootstrap, topic, "x", headers={"millstream.ttl": "2"})
        wait_until(lambda: worker.counts.expired == 1, "the end of the message", SECONDS_MAX)
    assert 1 <= worker.counts.retried < 20


def test_priorities_divide_the_starts(bootstrap: str, topics: list[str], name: Name) -> None:
    bulk, urgent = topics
    for topic in topics:
        send(bootstrap, topic, *["x"] * 400)
    seen: list[str] = []
    gate = threading.Event()
    worker = Worker(
        bootstrap,
        topics=topics,
        group_id=name("group"),
        concurrency=1,
        priorities={urgent: 9, bulk: 1},
    )

    @worker.handler
    def handle(job: Job) -> None:
        assert gate.wait(SECONDS_MAX)
        seen.append(job.topic)

    with worker:
        wait_until(lambda: worker.held == 800, "all messages", SECONDS_MAX)
        gate.set()
        wait_until(lambda: len(seen) == 800, "all jobs", SECONDS_MAX)
    # The first job started before the other topic was read.
    assert seen[1:401].count(urgent) in range(355, 365)


def test_a_rate_limit_of_a_handler_and_of_the_worker(
    bootstrap: str, topics: list[str], name: Name
) -> None:
    limited, free = topics
    for topic in topics:
        send(bootstrap, topic, *["x"] * 100)
    seen: list[str] = []
    worker = Worker(bootstrap, topics=topics, group_id=name("group"), rate_limit="100000/s")

    @worker.handler(limited, rate_limit="1/h")
    def slow(job: Job) -> None:
        seen.append(job.topic)

    @worker.handler
    def fast(job: Job) -> None:
        seen.append(job.topic)

    with worker:
        wait_until(lambda: seen.count(free) == 100, "the other topic", SECONDS_MAX)
        wait_until(lambda: seen.count(limited) == 1, "the first job", SECONDS_MAX)
    assert len(seen) == 101


def test_a_worker_that_cannot_start() -> None:
    def started(worker: Worker) -> None:
        worker.run()

    worker = Worker("127.0.0.1:1", topics=["a"], group_id="g")
    with pytest.raises(UsageError, match="no handler: pass handler="):
        started(worker)
    worker.handler("b")(print)
    with pytest.raises(UsageError, match=r"Topic 'a' has no handler: .*@worker.handler\('a'\)"):
        started(worker)
    worker.handler(print)
    with pytest.raises(UsageError, match="topic 'b' would never be called"):
        started(worker)
    worker = Worker("127.0.0.1:1", group_id="g", handler=print)
    with pytest.raises(UsageError, match=r"no topics: pass topics=\[...\]"):
        started(worker)

    async def task(job: Job) -> None: ...

    worker = Worker("127.0.0.1:1", topics=["a"], group_id="g", handler=task)
    worker.middleware(lambda job, call_next: call_next(job))
    with pytest.raises(UsageError, match=r"middleware .* make it `async def`, and await call_next"):
        started(worker)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"ttl": 0}, "ttl=0 is out of range"),
        ({"on_expired": "forget"}, "use one of drop, dead_letter"),
        ({"priorities": {"a": 0}}, "'a'.* is out of range"),
        ({"rate_limit": "fast"}, "'100/s'"),
    ],
)
def test_wrong_options(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Worker("127.0.0.1:1", topics=["a"], group_id="g", **options)


def test_a_topic_has_one_handler() -> None:
    worker = Worker("127.0.0.1:1", group_id="g")
    worker.handler("a")(print)
    with pytest.raises(UsageError, match="has a handler already"):
        worker.handler("b", "a")(print)
    with pytest.raises(UsageError, match="is not callable: pass a function of a job"):
        worker.middleware("x")  # type: ignore[type-var]
    with pytest.raises(UsageError, match="'100/s'"):
        worker.handler("c", rate_limit="1")(print)
