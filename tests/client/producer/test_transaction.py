"""Transactions: all or nothing for readers, with offsets, and the errors of unknown outcomes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from millstream.client import (
    Consumer,
    OutcomeUnknown,
    Partition,
    Producer,
    ProducerFenced,
    TransactionAborted,
    UsageError,
)
from millstream.client.error import librdkafka_error
from millstream.client.producer.transaction import State, TransactionDriver

SECONDS_MAX = 90.0


def visible(bootstrap: str, topic: str, count: int) -> list[int]:
    """Return the first records that a read-committed consumer sees, at least `count`."""
    found: list[int] = []
    deadline = time.monotonic() + SECONDS_MAX
    with Consumer(bootstrap, topics=[topic]) as consumer:
        while len(found) < count:
            assert time.monotonic() < deadline, found
            found += [int(record.value) for record in consumer.poll()]
    return found


def test_a_block_commits_and_an_exception_aborts(
    bootstrap: str, topic: str, name: Callable[[str], str]
) -> None:
    with Producer(bootstrap, transactional_id=name("id")) as producer:
        with producer.transaction() as txn:
            delivery = txn.send(topic, "1")
        assert txn.state is State.COMMITTED
        assert delivery.result(0).offset == 0

        def fail() -> None:
            with producer.transaction() as txn:
                txn.send(topic, "2")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        with producer.transaction() as txn:
            txn.send(topic, "3").result(SECONDS_MAX)
            txn.abort()
        with producer.transaction() as txn:
            producer.send(topic, "4")
            txn.commit()
        for late in (txn.commit, txn.abort, lambda: txn.send_offsets(None)):
            with pytest.raises(UsageError, match="The transaction is committed"):
                late()
    assert visible(bootstrap, topic, 2) == [1, 4]


def test_sending_outside_and_nesting_raise(
    bootstrap: str, topic: str, name: Callable[[str], str]
) -> None:
    with Producer(bootstrap, transactional_id=name("id")) as producer:
        with pytest.raises(UsageError, match=r"send inside `with producer.transaction\(\):`"):
            producer.send(topic, "1")
        with producer.transaction(), pytest.raises(UsageError, match="has an open transaction"):
            producer.transaction()
        with pytest.raises(UsageError, match="send inside"):
            producer.send(topic, "1")


def test_the_newer_producer_fences_the_older(
    bootstrap: str, topic: str, name: Callable[[str], str]
) -> None:
    name_of_both = name("id")
    older = Producer(bootstrap, transactional_id=name_of_both)
    txn = older.transaction()
    txn.send(topic, "1").result(SECONDS_MAX)
    with Producer(bootstrap, transactional_id=name_of_both) as newer:
        with newer.transaction():
            newer.send(topic, "2")
        with pytest.raises(ProducerFenced):
            txn.commit()
        assert txn.state is State.BROKEN
        older.close()
    assert visible(bootstrap, topic, 1) == [2]


def test_offsets_are_committed_with_the_output(
    bootstrap: str, topic: str, wide_topic: str, name: Callable[[str], str]
) -> None:
    with Producer(bootstrap) as producer:
        for number in range(10):
            producer.send(wide_topic, str(number), partition=0)
    with (
        Producer(bootstrap, transactional_id=name("id")) as producer,
        Consumer(
            bootstrap, group_id=name("group"), topics=[wide_topic], commit_interval=0
        ) as consumer,
    ):
        done = 0
        while done < 10:
            batch = consumer.poll(4)
            with producer.transaction() as txn:
                for record in batch:
                    txn.send(topic, record.value)
                txn.send_offsets(consumer)
            done += len(batch)
        assert consumer.committed() == {(wide_topic, 0): 10}
        with producer.transaction() as txn:
            txn.send_offsets(consumer, {Partition(wide_topic, 0): 3})
        assert consumer.committed() == {(wide_topic, 0): 3}
    assert visible(bootstrap, topic, 10) == list(range(10))


def test_exactly_once_through_failures(
    bootstrap: str, topic: str, wide_topic: str, name: Callable[[str], str]
) -> None:
    """Handlers fail now and then, and members join and leave: each record is output once."""
    with Producer(bootstrap) as producer:
        for number in range(300):
            producer.send(wide_topic, str(number), partition=number % 4)
    group = name("group")
    failures = iter((5, 60, 61, 130))
    next_failure = next(failures)
    handled = 0
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        assert time.monotonic() < deadline
        try:
            with (
                Producer(bootstrap, transactional_id=f"{group}-1") as producer,
                Consumer(
                    bootstrap,
                    group_id=group,
                    topics=[wide_topic],
                    delivery="exactly_once",
                    producer=producer,
                    commit_interval=0.01,
                ) as consumer,
            ):
                idle = 0
                while idle < 3:
                    batch = consumer.poll(40)
                    idle = 0 if batch else idle + 1
                    for record in batch:
                        handled += 1
                        if handled == next_failure:
                            next_failure = next(failures, 0)
                            raise ZeroDivisionError
                        producer.send(topic, record.value)
            break
        except ZeroDivisionError:
            continue
    assert handled > 300
    assert sorted(visible(bootstrap, topic, 300)) == list(range(300))


def test_exactly_once_is_aborted_when_partitions_are_revoked(
    bootstrap: str, topic: str, wide_topic: str, name: Callable[[str], str]
) -> None:
    with Producer(bootstrap) as producer:
        for number in range(40):
            producer.send(wide_topic, str(number), partition=number % 4)
    group = name("group")

    def member(producer: Producer) -> Consumer:
        return Consumer(
            bootstrap,
            group_id=group,
            topics=[wide_topic],
            delivery="exactly_once",
            producer=producer,
            commit_interval=0,
            config={"heartbeat.interval.ms": 300},
        )

    with (
        Producer(bootstrap, transactional_id=name("id")) as first_producer,
        Producer(bootstrap, transactional_id=name("id")) as second_producer,
        member(first_producer) as first,
    ):
        seen = 0
        while seen < 40:
            batch = first.poll()
            seen += len(batch)
            for record in batch:
                first_producer.send(topic, record.value)
        with member(second_producer) as second:
            ended = threading.Event()

            def drive() -> None:
                while not ended.is_set():
                    for record in second.poll(timeout=0.2):
                        second_producer.send(topic, record.value)
                    second.commit()

            thread = threading.Thread(target=drive)
            thread.start()
            try:
                # The handler of `first` runs while half of its partitions are revoked.
                deadline = time.monotonic() + SECONDS_MAX
                while len(first.assignment) > 2:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                with pytest.raises(TransactionAborted, match="were revoked"):
                    first.commit()
                again = 0
                while again < 20:
                    assert time.monotonic() < deadline
                    batch = first.poll(timeout=0.2)
                    again += len(batch)
                    for record in batch:
                        first_producer.send(topic, record.value)
                first.commit()
                assert sorted(visible(bootstrap, topic, 40)) == list(range(40))
            finally:
                ended.set()
                thread.join()


class _Silent:
    """A librdkafka producer whose coordinator does not respond at first."""

    def __init__(self, answers: Iterable[KafkaError | None]) -> None:
        self._answers = iter(answers)
        self.on_their_way = 0
        self.arrived_before_the_end: bool | None = None

    def __len__(self) -> int:
        return self.on_their_way

    def flush(self, timeout: float) -> int:
        self.on_their_way = 0
        return 0

    def init_transactions(self, timeout: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def abort_transaction(self, timeout: float) -> None:
        self.arrived_before_the_end = self.on_their_way == 0

    def commit_transaction(self, timeout: float) -> None:
        error = next(self._answers)
        if error is not None:
            raise KafkaException(error)


def driver_of(*answers: KafkaError | None) -> TransactionDriver:
    driver = TransactionDriver(_Silent(answers), lambda is_allowed: None)  # type: ignore[arg-type]
    driver.begin()
    return driver


TIMEOUT = KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True)
ABORTABLE = KafkaError(KafkaError.INVALID_TXN_STATE, "abort", txn_requires_abort=True)


def test_a_commit_without_a_response_has_an_unknown_outcome() -> None:
    driver = driver_of(TIMEOUT, None)
    with pytest.raises(OutcomeUnknown, match="may have happened, or may still happen"):
        driver.commit(0)
    assert driver.state is State.UNKNOWN
    with pytest.raises(UsageError, match=r"is unknown: call its commit\(\) again"):
        driver.begin()
    driver.commit(60)
    assert driver.state is State.COMMITTED
    driver.begin()


def test_a_commit_is_retried_until_its_timeout() -> None:
    driver = driver_of(TIMEOUT, TIMEOUT, None)
    driver.commit(60)
    assert driver.state is State.COMMITTED


def test_an_abortable_error_aborts() -> None:
    driver = driver_of(ABORTABLE)
    with pytest.raises(TransactionAborted):
        driver.commit(60)
    assert driver.state is State.ABORTED


def test_an_interrupt_after_the_commit_leaves_nothing_to_abort(
    bootstrap: str, topic: str, name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = TransactionDriver._retry

    def interrupted(self: TransactionDriver, *arguments: Any) -> None:
        retry(self, *arguments)
        if "Committing" in arguments[1]:
            raise KeyboardInterrupt

    monkeypatch.setattr(TransactionDriver, "_retry", interrupted)
    producer = Producer(bootstrap, transactional_id=name("id"))
    txn = producer.transaction()
    txn.send(topic, "1")
    with pytest.raises(KeyboardInterrupt):
        txn.commit()
    producer.close()
    assert producer.transactions is not None
    assert producer.transactions.state is State.UNKNOWN
    assert visible(bootstrap, topic, 1) == [1]


def test_an_abort_waits_for_records_in_flight() -> None:
    """librdkafka would end a transaction that its coordinator may not know yet."""
    silent = _Silent([])
    driver = TransactionDriver(silent, lambda is_allowed: None)  # type: ignore[arg-type]
    driver.begin()
    silent.on_their_way = 3
    driver.abort()
    assert silent.arrived_before_the_end
    assert driver.state is State.ABORTED


def test_a_fenced_producer_with_pending_records_raises_its_own_error(
    bootstrap: str, topic: str, name: Callable[[str], str]
) -> None:
    """The fatal error arrives together with the reports of the records."""
    name_of_both = name("id")
    older = Producer(bootstrap, transactional_id=name_of_both)
    with older.transaction():
        older.send(topic, "1")
    with Producer(bootstrap, transactional_id=name_of_both) as newer, newer.transaction():
        newer.send(topic, "2")
    txn = older.transaction()
    delivery = txn.send(topic, "3")
    with pytest.raises(ProducerFenced):
        delivery.result(SECONDS_MAX)
    with pytest.raises(ProducerFenced):
        older.close()
    assert txn.state is State.BROKEN


class _Fatal:
    """librdkafka's producer after a fatal error, while it still runs delivery callbacks."""

    def __init__(self) -> None:
        fenced = KafkaError(KafkaError._FENCED, "fenced by a newer instance", fatal=True)
        self._error = KafkaException(fenced)

    def __len__(self) -> int:
        return 1

    def flush(self, timeout: float) -> int:
        raise SystemError("a callback returned a result with an exception set") from self._error


def test_a_fatal_error_during_callbacks_is_that_of_librdkafka() -> None:
    driver = TransactionDriver(_Fatal(), lambda is_allowed: None)  # type: ignore[arg-type]
    driver.state = State.OPEN
    with pytest.raises(ProducerFenced, match="fenced by a newer instance"):
        driver.abort()
    assert driver.state is State.BROKEN


def test_another_system_error_stays() -> None:
    with pytest.raises(SystemError, match="of the interpreter"):
        librdkafka_error(SystemError("of the interpreter"))
