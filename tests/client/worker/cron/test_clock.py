"""Periodic jobs on a real broker.

A tick that was missed is due at once, so no test waits for a minute to pass.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from harness.process.broker_process import wait_until
from millstream.client import Admin, Consumer, Job, Producer, UsageError, Worker
from millstream.client.worker.cron.tick_log import TOPIC_CONFIG

SECONDS_MAX = 15.0
MINUTE_MS = 60_000
Name = Callable[[str], str]


def missed(bootstrap: str, group: str, *names: str) -> None:
    """Leave a tick of an hour ago, which is committed: no worker has run since."""
    topic = f"{group}.cron"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1, config=TOPIC_CONFIG)
    before = int(time.time() - 3600) // 60 * MINUTE_MS
    with Producer(bootstrap) as producer:
        for name in names:
            producer.send(topic, "an hour ago", key=name, timestamp=before)
    with Consumer(bootstrap, topics=[topic], group_id=group, commit_interval=0) as consumer:
        read = 0
        while read < len(names):
            read += len(consumer.poll(timeout=1.0))
        consumer.commit()


def ticks(bootstrap: str, group: str) -> list[int]:
    topic = f"{group}.cron"
    with Admin(bootstrap) as admin:
        end = sum(admin.list_topic_offsets(topic).values())
    found: list[int] = []
    with Consumer(bootstrap, topics=[topic]) as consumer:
        while len(found) < end:
            found += [record.timestamp or 0 for record in consumer.poll(timeout=1.0)]
    return found


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_a_tick_runs_once_in_a_group_of_workers(
    bootstrap: str, name: Name, transactional: bool
) -> None:
    group = name("group")
    missed(bootstrap, group, "close_invoices")
    ran: list[int] = []
    with ExitStack() as stack:
        for _ in range(3):
            worker = Worker(bootstrap, group_id=group, transactional=transactional)

            @worker.cron("* * * * *")
            def close_invoices(job: Job) -> None:
                ran.append(job.record.timestamp or 0)

            stack.enter_context(worker)
        wait_until(lambda: ran, "the missed tick", SECONDS_MAX)
    # A minute may have begun while the test ran.
    assert len(ran) in (1, 2)
    assert max(Counter(ran).values()) == 1
    now = time.time() * 1000
    assert all(tick % MINUTE_MS == 0 and now - 3 * MINUTE_MS < tick <= now for tick in ran)
    assert sorted(ran) == ticks(bootstrap, group)[1:]


def test_the_next_owner_continues_after_the_last_tick(bootstrap: str, name: Name) -> None:
    """A worker that gets the partition sends no tick that is in the topic already."""
    group = name("group")
    missed(bootstrap, group, "report", "fail")
    ran: list[int] = []

    def run_until(condition: Callable[[], object]) -> Worker:
        worker = Worker(bootstrap, group_id=group, attempts_max=1)

        @worker.cron("@hourly", name="report")
        def report(job: Job) -> None:
            ran.append(job.record.timestamp or 0)

        @worker.cron("0 * * * *")
        def fail() -> None:
            raise ZeroDivisionError

        with worker:
            wait_until(condition, "the worker", SECONDS_MAX)
        return worker

    first = run_until(lambda: len(ran) == 1)
    second = run_until(lambda: second_is_ready(bootstrap, group))
    # The hour may have ended in between.
    assert max(Counter(ran).values()) == 1
    assert first.counts.dead + second.counts.dead == len(ran)
    with Admin(bootstrap) as admin:
        assert sum(admin.list_topic_offsets(f"{group}.cron.dlq").values()) == len(ran)


def second_is_ready(bootstrap: str, group: str) -> bool:
    """Whether the committed offset is at the end: everything that was sent has run."""
    with Admin(bootstrap) as admin:
        end = sum(admin.list_topic_offsets(f"{group}.cron").values())
        offsets = admin.list_group_offsets(group)
    committed = [offset for each, offset in offsets.items() if each.topic == f"{group}.cron"]
    return sum(committed) == end


def test_wrong_periodic_jobs() -> None:
    worker = Worker("127.0.0.1:1", group_id="g")
    with pytest.raises(UsageError, match="has 2 fields"):
        worker.cron("5 minutes")(print)
    worker.cron("@daily")(print)
    with pytest.raises(UsageError, match="job 'print' already: pass name="):
        worker.cron("@hourly")(print)
