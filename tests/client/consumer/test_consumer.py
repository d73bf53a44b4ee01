"""Reading: which records are handed out, what is committed when, and what rebalances change."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
import time
from collections.abc import Callable

import pytest

from harness.process.broker_process import wait_until
from millstream.client import (
    Admin,
    ClosedError,
    CommitFailed,
    Consumer,
    Partition,
    Producer,
    Record,
    UsageError,
)

SECONDS_MAX = 90.0
#: Members learn of each other by heartbeats.
QUICK = {"heartbeat.interval.ms": 300}


def fill(
    bootstrap: str, topic: str, count: int, partitions: int = 1, *, start: int = 0
) -> set[int]:
    """Send the numbers from `start` on, to all partitions in turn."""
    numbers = range(start, start + count)
    with Producer(bootstrap) as producer:
        for number in numbers:
            producer.send(topic, str(number), partition=number % partitions)
    return set(numbers)


def drain(consumer: Consumer, count: int, max_records: int = 500) -> list[Record]:
    found: list[Record] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        found += consumer.poll(max_records)
    return found


def values(records: list[Record]) -> list[int]:
    return [int(record.value) for record in records]


def committed(bootstrap: str, group: str) -> dict[Partition, int]:
    with Admin(bootstrap) as admin:
        return dict(admin.list_group_offsets(group))


def test_poll_hands_out_in_order(bootstrap: str, topic: str, name: Callable[[str], str]) -> None:
    fill(bootstrap, topic, 1200)
    with Consumer(bootstrap, group_id=name("group"), topics=[topic]) as consumer:
        first = drain(consumer, 1, max_records=7)
        assert len(first) <= 7
        assert values(first + drain(consumer, 1200 - len(first))) == list(range(1200))
        batch = consumer.poll(timeout=0)
        assert not batch
        assert repr(batch) == "<0 records>"


def test_a_batch_is_a_sequence(bootstrap: str, topic: str) -> None:
    fill(bootstrap, topic, 3)
    with Consumer(bootstrap, topics=[topic]) as consumer:
        wait_until(lambda: consumer.assignment, "an assignment")
        batch = consumer.poll(timeout=SECONDS_MAX)
        while len(batch) < 3:
            consumer.seek(topic, offset="earliest")
            batch = consumer.poll(timeout=SECONDS_MAX)
    assert batch[-1].offset == 2
    assert [record.offset for record in batch[1:]] == [1, 2]
    assert repr(batch[0]) == f"<Record {topic}-0@0>"


def test_commit_covers_handed_out_records_only(
    bootstrap: str, topic: str, name: Callable[[str], str]
) -> None:
    fill(bootstrap, topic, 100)
    group = name("group")
    with Consumer(bootstrap, group_id=group, topics=[topic], commit_interval=0) as consumer:
        for record in itertools.islice(consumer, 10):
            if record.offset == 4:
                consumer.commit()
                assert committed(bootstrap, group) == {(topic, 0): 5}
        assert consumer.offsets() == {(topic, 0): 10}
        consumer.commit(record)
        assert consumer.committed() == {(topic, 0): 10}
        drain(consumer, 1, max_records=1)
    assert committed(bootstrap, group) == {(topic, 0): 10}


def test_close_commits_processed_records(
    bootstrap: str, topic: str, name: Callable[[str], str]
) -> None:
    fill(bootstrap, topic, 100)
    group = name("group")
    with Consumer(bootstrap, group_id=group, topics=[topic]) as consumer:
        for record in consumer:
            if record.offset == 20:
                break
    assert committed(bootstrap, group) == {(topic, 0): 21}

    def fail_at_a_record() -> None:
        with Consumer(bootstrap, group_id=group, topics=[topic]) as consumer:
            for record in consumer:
                assert record.offset >= 21
                if record.offset == 30:
                    raise ZeroDivisionError

    def fail_at_a_batch() -> None:
        with Consumer(bootstrap, group_id=group, topics=[topic]) as consumer:
            drain(consumer, 5, max_records=5)
            raise ZeroDivisionError

    for fail in (fail_at_a_record, fail_at_a_batch):
        with pytest.raises(ZeroDivisionError):
            fail()
        assert committed(bootstrap, group) == {(topic, 0): 30}


def test_at_most_once_commits_first(bootstrap: str, topic: str, name: Callable[[str], str]) -> None:
    fill(bootstrap, topic, 10)
    group = name("group")
    with Consumer(bootstrap, group_id=group, topics=[topic], delivery="at_most_once") as consumer:
        last = drain(consumer, 3, max_records=3)[-1]
        assert committed(bootstrap, group) == {(topic, 0): last.offset + 1}


def test_at_most_once_does_not_repeat_failed_records(
    bootstrap: str, topic: str, name: Callable[[str], str]
) -> None:
    fill(bootstrap, topic, 10)
    group = name("group")

    def fail_at(offset: int) -> None:
        with Consumer(
            bootstrap, group_id=group, topics=[topic], delivery="at_most_once"
        ) as consumer:
            for record in consumer:
                if record.offset == offset:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at(3)
    # The rest of the batch was not handed out: the next member gets it.
    assert committed(bootstrap, group) == {(topic, 0): 4}


@pytest.mark.parametrize("call", ["pause", "resume", "seek"])
def test_pause_and_seek_do_not_count_the_current_batch_as_processed(
    bootstrap: str, wide_topic: str, name: Callable[[str], str], call: str
) -> None:
    with Producer(bootstrap) as producer:
        for number in range(5):
            producer.send(wide_topic, str(number), partition=0)
    group = name("group")

    def fail_after_the_call() -> None:
        with Consumer(bootstrap, group_id=group, topics=[wide_topic]) as consumer:
            drain(consumer, 1, max_records=5)
            if call == "seek":
                consumer.seek(wide_topic, 1, offset=0)
            else:
                getattr(consumer, call)(wide_topic, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_the_call()
    assert committed(bootstrap, group) == {}


def test_a_callback_that_raises_loses_no_records(
    bootstrap: str, topic: str, name: Callable[[str], str]
) -> None:
    fill(bootstrap, topic, 20)

    def assigned(_: Consumer, partitions: list[Partition]) -> None:
        raise ZeroDivisionError

    with Consumer(
        bootstrap, group_id=name("group"), topics=[topic], on_assign=assigned
    ) as consumer:
        with pytest.raises(ZeroDivisionError):
            drain(consumer, 1)
        assert values(drain(consumer, 20)) == list(range(20))


def test_commits_at_intervals(bootstrap: str, topic: str, name: Callable[[str], str]) -> None:
    fill(bootstrap, topic, 10)
    group = name("group")
    with Consumer(bootstrap, group_id=group, topics=[topic], commit_interval=0.05) as consumer:
        drain(consumer, 10)
        wait_until(
            lambda: (
                not consumer.poll(timeout=0.1) and committed(bootstrap, group) == {(topic, 0): 10}
            ),
            "the commit",
            SECONDS_MAX,
        )


def test_seek_by_offset_and_time(
    bootstrap: str, wide_topic: str, name: Callable[[str], str]
) -> None:
    start_ms = 1_700_000_000_000
    with Producer(bootstrap) as producer:
        for number in range(100):
            producer.send(wide_topic, str(number), partition=0, timestamp=start_ms + number)
    with Consumer(bootstrap, group_id=name("group"), topics=[wide_topic]) as consumer:
        drain(consumer, 100)
        consumer.seek(wide_topic, 0, offset=95)
        assert values(drain(consumer, 5)) == [95, 96, 97, 98, 99]
        consumer.seek(wide_topic, time=dt.datetime.fromtimestamp(start_ms / 1000 + 0.098, dt.UTC))
        assert values(drain(consumer, 2)) == [98, 99]
        consumer.seek(wide_topic, 0, offset="earliest")
        iterator = iter(consumer)
        assert [int(next(iterator).value) for _ in range(3)] == [0, 1, 2]
        consumer.seek(wide_topic, 0, time=start_ms + 50)
        assert int(next(iter(consumer)).value) == 50
        with pytest.raises(UsageError, match="-9 is not assigned to this consumer"):
            consumer.seek(wide_topic, 9, offset=1)
        with pytest.raises(UsageError, match="an offset or to a time"):
            consumer.seek(wide_topic, 0)
        with pytest.raises(UsageError, match="has no time zone"):
            consumer.seek(wide_topic, 0, time=dt.datetime(2026, 1, 1))  # noqa: DTZ001


def test_seek_in_on_assign_sets_the_start(
    bootstrap: str, topic: str, name: Callable[[str], str]
) -> None:
    fill(bootstrap, topic, 50)

    def assigned(consumer: Consumer, partitions: list[Partition]) -> None:
        for partition in partitions:
            consumer.seek(*partition, offset=40)

    with Consumer(
        bootstrap, group_id=name("group"), topics=[topic], on_assign=assigned
    ) as consumer:
        assert values(drain(consumer, 10)) == list(range(40, 50))


def test_a_paused_partition_returns_no_records(
    bootstrap: str, wide_topic: str, name: Callable[[str], str]
) -> None:
    fill(bootstrap, wide_topic, 400, partitions=4)
    with Consumer(bootstrap, group_id=name("group"), topics=[wide_topic]) as consumer:
        seen: list[Record] = []
        iterator = iter(consumer)
        while len({record.partition for record in seen}) < 1:
            seen.append(next(iterator))
        quiet = (seen[-1].partition + 1) % 4
        consumer.pause(wide_topic, quiet)
        while len(seen) < 300:
            seen += consumer.poll()
        assert quiet not in {record.partition for record in seen}
        assert not consumer.poll(timeout=0.3)
        consumer.resume(wide_topic, quiet)
        seen += drain(consumer, 100)
    assert sorted(values(seen)) == list(range(400))


def test_ended_names_partitions_that_are_read_to_their_end(bootstrap: str, wide_topic: str) -> None:
    fill(bootstrap, wide_topic, 20, partitions=4)
    everything = {Partition(wide_topic, number) for number in range(4)}
    config = {"enable.partition.eof": True}
    with Consumer(bootstrap, topics=[wide_topic], config=config) as consumer:
        found = 0
        while found < 20:
            assert consumer.ended != everything, "records are missing"
            found += len(consumer.poll(3))
        wait_until(lambda: not consumer.poll(timeout=0.1) and consumer.ended == everything, "ends")
        consumer.seek(wide_topic, offset="earliest")
        assert consumer.ended == frozenset()


def test_without_a_group_everything_is_read_and_nothing_committed(
    bootstrap: str, wide_topic: str
) -> None:
    fill(bootstrap, wide_topic, 40, partitions=4)
    with Consumer(bootstrap, topics=[wide_topic]) as consumer:
        assert sorted(values(drain(consumer, 40))) == list(range(40))
        with pytest.raises(UsageError, match="without a group cannot commit"):
            consumer.commit()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rebalance_moves_partitions_and_repeats_no_record(
    bootstrap: str, wide_topic: str, name: Callable[[str], str], protocol: str
) -> None:
    fill(bootstrap, wide_topic, 400, partitions=4)
    group = name("group")
    told: list[tuple[str, int]] = []

    def consumer_of(who: str) -> Consumer:
        return Consumer(
            bootstrap,
            group_id=group,
            topics=[wide_topic],
            group_protocol=protocol,  # type: ignore[arg-type]
            config=QUICK if protocol == "classic" else {},
            on_assign=lambda _, partitions: told.append((f"{who} +", len(partitions))),
            on_revoke=lambda _, partitions: told.append((f"{who} -", len(partitions))),
        )

    with consumer_of("first") as first:
        seen = drain(first, 400)
        assert sum(count for what, count in told if what == "first +") == 4
        with consumer_of("second") as second:
            deadline = time.monotonic() + SECONDS_MAX
            while len(second.assignment) < 2 or len(first.assignment) > 2:
                assert time.monotonic() < deadline, told
                seen += [*first.poll(timeout=0.1), *second.poll(timeout=0.1)]
            assert ("first -", 2) in told
            assert not first.assignment & second.assignment
        # Records that came again would arrive before the last record of their partition.
        last = fill(bootstrap, wide_topic, 4, partitions=4, start=400)
        deadline = time.monotonic() + SECONDS_MAX
        while not last <= set(values(seen)):
            assert time.monotonic() < deadline, told
            seen += first.poll(timeout=0.1)
        assert len(first.assignment) == 4
    assert sorted(values(seen)) == list(range(404))


def test_a_slow_handler_stays_in_its_group(
    bootstrap: str, wide_topic: str, name: Callable[[str], str]
) -> None:
    fill(bootstrap, wide_topic, 40, partitions=4)
    group = name("group")
    lost: list[Partition] = []
    short = {"max.poll.interval.ms": 4000}
    with Consumer(
        bootstrap,
        group_id=group,
        topics=[wide_topic],
        session_timeout=4,
        config=short,
        on_lost=lambda _, partitions: lost.extend(partitions),
    ) as slow:
        records = drain(slow, 40)
        with Consumer(bootstrap, group_id=group, topics=[wide_topic]) as other:
            # The handler of `slow` runs: the application does not poll for longer than
            # `max.poll.interval.ms`.
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline or len(other.assignment) < 2:
                other.poll(timeout=0.2)
                assert time.monotonic() < deadline + SECONDS_MAX
            kept = slow.assignment
            assert len(kept) == 2
            assert not lost
            with pytest.raises(CommitFailed, match="assigned to another member"):
                slow.commit(records)
            slow.poll(timeout=0.1)
            assert slow.assignment == kept


def test_close_from_another_thread_ends_iteration(
    bootstrap: str, topic: str, name: Callable[[str], str]
) -> None:
    consumer = Consumer(bootstrap, group_id=name("group"), topics=[topic])
    seen: list[Record] = []
    thread = threading.Thread(target=lambda: seen.extend(consumer))
    thread.start()
    wait_until(lambda: consumer.assignment, "an assignment", SECONDS_MAX)
    consumer.close()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()
    assert seen == []


def test_use_after_close_raises(bootstrap: str, topic: str, name: Callable[[str], str]) -> None:
    consumer = Consumer(bootstrap, group_id=name("group"), topics=[topic])
    consumer.close()
    consumer.close()
    for use in (
        consumer.commit,
        consumer.poll,
        consumer.group_metadata,
        consumer.committed,
        lambda: consumer.pause(topic),
        lambda: consumer.seek(topic, offset=1),
    ):
        with pytest.raises(ClosedError, match="The consumer is closed"):
            use()


async def coroutine_function(*_: object) -> None: ...


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"delivery": "twice"},
            "'twice' is unknown: use one of at_most_once, at_least",
        ),
        ({"delivery": "exactly_once"}, r"needs producer=Producer\(transactional_id"),
        ({"delivery": "exactly_once", "producer": 7}, "needs a Millstream producer with a trans"),
        ({"producer": 7}, "is for delivery='exactly_once' only"),
        ({"on_assign": 7}, "on_assign=7 is not callable"),
        ({"on_revoke": coroutine_function}, "is a coroutine function: pass a plain one"),
        ({"auto_offset_reset": "middle"}, "auto_offset_reset='middle' is unknown"),
        ({"topics": "orders"}, r"is a string: pass a list of names, \['orders'\]"),
        ({"topics": []}, "pass a list of names"),
        ({"groups": "x"}, "There is no option 'groups'"),
        ({"group_id": None, "delivery": "at_most_once"}, "needs a group"),
    ],
)
def test_bad_options_are_explained(options: dict[str, object], sentence: str) -> None:
    given = {"group_id": "g", "topics": ["t"], **options}
    with pytest.raises(UsageError, match=sentence):
        Consumer("127.0.0.1:1", **given)  # type: ignore[arg-type]
