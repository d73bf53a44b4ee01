"""The consumers against a simple model: calls, rebalances, faults, cancellations and closes in any
order.

The model knows the next record of each partition that the application has to get. Each step checks:

    nothing is skipped     a record that is handed out is the next one of its partition
    nothing comes twice    a record comes again only from the last commit on, after an abort, a
                           rebalance, a failure or a crash, or after a seek
    commits are behind     at least once commits only processed records, at most once hands out only
                           committed records, exactly once commits a record's offset and output
                           together, once

CONSUMER_STEPS sets the number of steps of the soak.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from harness.consumer_face import AsyncFace, SyncFace
from harness.in_process.memory_kafka import TOPIC, MemoryCluster, MemoryConsumer, MemoryProducer
from millstream.client import (
    AsyncConsumer,
    Consumer,
    MillstreamError,
    OutcomeUnknown,
    Partition,
    Record,
    TimedOut,
    TransactionAborted,
)
from millstream.client.consumer import (
    async_consumer,
    committer,
    consumer_core,
    consumer_handle,
    fetcher,
)
from millstream.client.producer import transaction
from millstream.client.producer.transaction import State, TransactionDriver

STEPS_EACH = 50
PARTITIONS = range(3)
partitions = st.sets(st.sampled_from(PARTITIONS), min_size=1)
partition_numbers = st.sampled_from(PARTITIONS)
COUNTS = st.sampled_from([1, 2, 3, 5, 20, 500])

FAULTS = st.sampled_from(
    ["begin", "offsets", "commit", "unknown, then committed", "unknown, then aborted"]
)

_IN_PROGRESS = (State.OPEN, State.UNKNOWN)


class CallbackError(Exception):
    """Raised by a callback of the application."""


class ConsumerMachine(RuleBasedStateMachine):
    """The model, and the calls of an application. Subclasses choose the kind of consumer."""

    face_type: type[SyncFace | AsyncFace] = SyncFace
    steps_run = 0

    @initialize(
        delivery=st.sampled_from(["at_least_once", "at_most_once", "exactly_once"]),
        interval_s=st.sampled_from([0.0, 5.0]),
        chunk=st.integers(1, 3),
        counts=st.lists(st.sampled_from([0, 5, 40]), min_size=3, max_size=3),
    )
    def begin(self, delivery: str, interval_s: float, chunk: int, counts: list[int]) -> None:
        self.delivery, self.interval_s, self.chunk = delivery, interval_s, chunk
        self.cluster = MemoryCluster(
            logs={number: list(range(count)) for number, count in enumerate(counts)}
        )
        self.cluster.on_commit = self._on_commit
        self.patch = pytest.MonkeyPatch()
        for module in (consumer_core, committer, consumer_handle, fetcher, transaction):
            self.patch.setattr(module, "time", self.cluster.clock)
        self.patch.setattr(async_consumer, "clock", self.cluster.clock)
        self.patch.setattr(consumer_handle, "RdKafkaConsumer", lambda *_, **__: self.handle)
        self.patch.setattr(consumer_core, "IdlePoller", _NoIdlePoller)
        self.visible: list[tuple[int, int]] = []
        #: Partitions that a seek or an explicit commit moved: their records may come twice or
        #: never.
        self.moved: set[int] = set()
        self.times_handed_out: Counter[tuple[int, int]] = Counter()
        self.join()

    def join(self) -> None:
        """Add a new member to the group."""
        self.owned: dict[int, None] = {}
        self.paused: set[int] = set()
        #: By partition: the next offset to hand out, the offset that an abort returns to, and the
        #: first offset that is not processed.
        self.position: dict[int, int] = {}
        self.base: dict[int, int] = {}
        self.in_hand: dict[int, int] = {}
        self.context = ""
        #: Handed-out records whose output was not sent.
        self.unsent: list[Record] = []
        self.last: Record | None = None
        self.is_fragile = False
        #: What the callbacks of the application do next.
        self.starts: dict[int, int] = {}
        self.is_callback_failing = False
        self.joined_at = type(self).steps_run
        self.handle = MemoryConsumer(self.cluster, self.chunk)
        self.handle.on_rebalance = self._on_rebalance
        self.handle.due.append(("assign", list(PARTITIONS)))
        options: dict[str, Any] = {
            "topics": [TOPIC],
            "group_id": "g",
            "delivery": self.delivery,
            "commit_interval": self.interval_s,
            "on_assign": self._on_assign,
            "on_revoke": self._on_revoke,
        }
        if self.delivery == "exactly_once":
            self.producer = MemoryProducer(self.cluster)
            self.producer.visible = self.visible
            self.producer.on_abort = self._on_abort
            self.producer.on_late_commit = self._on_late_commit
            self.driver = TransactionDriver(self.producer, lambda _: None)  # type: ignore[arg-type]
            options["producer"] = SimpleNamespace(transactions=self.driver)
        kind = Consumer if self.face_type is SyncFace else AsyncConsumer
        self.face: Any = self.face_type(lambda: kind("memory", **options))

    def teardown(self) -> None:
        try:
            if hasattr(self, "face"):
                self._end()
        finally:
            if hasattr(self, "patch"):
                self.patch.undo()

    def _end(self) -> None:
        try:
            self._drain()
        finally:
            self.face.dispose()

    # Callbacks of the cluster and the consumer

    def _on_assign(self, consumer: Consumer, added: list[Partition]) -> None:
        assert isinstance(consumer, Consumer)
        for each in added:
            if each.partition in self.starts:
                consumer.seek(*each, offset=self.starts[each.partition])
        self._fail_callback()

    def _on_revoke(self, consumer: Consumer, revoked: list[Partition]) -> None:
        self._fail_callback()

    def _fail_callback(self) -> None:
        if self.is_callback_failing:
            self.is_callback_failing = False
            raise CallbackError

    def _on_rebalance(self, kind: str, served: list[int]) -> None:
        for number in served:
            if kind == "assign":
                start = self.cluster.committed.get(number, 0)
                if number in self.starts:
                    start = self.starts.pop(number)
                    self.moved.add(number)
                self.owned[number] = None
                self.position[number] = self.base[number] = start
                continue
            is_strict = number not in self.moved and not self.is_fragile
            if kind == "revoke" and self.delivery == "at_most_once" and is_strict:
                # The next member skips no record that was committed here and not handed out.
                committed = self.cluster.committed.get(number, 0)
                assert self._next(number, committed) == self._next(number, self.position[number])
            del self.owned[number], self.position[number], self.base[number]
            self.paused.discard(number)
            self._exclude(number)

    def _on_commit(self, offsets: dict[int, int]) -> None:
        for number, offset in offsets.items():
            assert number in self.owned, "a commit of another member's partition"
            if self.delivery == "at_most_once" or self.context == "explicit":
                continue
            bound = self.position[number]
            if self.context != "commit":
                bound = self.in_hand.get(number, bound)
            assert offset <= bound, f"{number}: {offset} is committed, {bound} is processed"
        for number, offset in offsets.items():
            if number in self.base:
                self.base[number] = offset
        if self.delivery == "exactly_once":
            self._check_output(offsets)

    def _check_output(self, offsets: dict[int, int]) -> None:
        counts = Counter(self.visible)
        for number in set(PARTITIONS) - self.moved:
            end = offsets.get(number, self.cluster.committed.get(number, 0))
            wanted = {(number, each) for each in self.cluster.logs[number] if each < end}
            found = {position for position in counts if position[0] == number}
            assert found == wanted, "output and offsets differ"
            assert all(counts[position] == 1 for position in found), "output is there twice"

    def _on_late_commit(self) -> None:
        if self.context == "poll":
            # The output of records after that commit could not be sent.
            self._rewind()

    def _on_abort(self) -> None:
        self._rewind()

    def _rewind(self) -> None:
        self.position |= self.base
        self.in_hand.clear()
        self.unsent.clear()
        self.last = None

    # The application

    def _next(self, number: int, position: int) -> int | None:
        return next((each for each in self.cluster.logs[number] if each >= position), None)

    def _is_available(self) -> bool:
        """Whether a record can be handed out now."""
        return not self.handle.due and any(
            number not in self.paused and self._next(number, self.position[number]) is not None
            for number in self.owned
        )

    def _handed_out(self, records: Any) -> None:
        for record in records:
            number = record.partition
            assert number in self.owned, "a record of another member's partition"
            assert number not in self.paused, "a record of a paused partition"
            wanted = self._next(number, self.position[number])
            assert record.offset == wanted, f"{number}: {record.offset} came, {wanted} is next"
            if self.delivery == "at_most_once":
                assert self.cluster.committed[number] > record.offset
            if self.delivery == "exactly_once":
                assert self.driver.state is State.OPEN, "a record without a transaction"
            self.in_hand.setdefault(number, record.offset)
            self.position[number] = record.offset + 1
            self.times_handed_out[number, record.offset] += 1
            if self.delivery == "at_most_once" and number not in self.moved:
                assert self.times_handed_out[number, record.offset] == 1, "it came twice"
            self.last = record
            self.unsent.append(record)

    def _send(self) -> None:
        """Send the output of all handed-out records, if a transaction is open."""
        if self.delivery == "exactly_once" and self.driver.state is State.OPEN:
            for record in self.unsent:
                self.producer.send((record.partition, record.offset))
            self.unsent.clear()

    def _attempt(self, context: str, call: Callable[[], Any]) -> Any:
        """Call the consumer. Injected errors end the call, not the test."""
        self.context = context
        if context == "poll":
            # The application polls again: it has processed its records.
            self.in_hand = {}
            if self.delivery == "exactly_once" and self.driver.state not in _IN_PROGRESS:
                # Records without a transaction come again.
                self._rewind()
        self.failure: Exception | None = None
        try:
            return call()
        except (CallbackError, MillstreamError) as error:
            self.failure = error
            self._explain(error)
            return None
        finally:
            self.context = ""

    def _explain(self, error: Exception) -> None:
        if isinstance(error, TransactionAborted | OutcomeUnknown):
            assert self.delivery == "exactly_once"

    # Rules

    @rule(number=partition_numbers, count=st.integers(1, 9), gap=st.sampled_from([0, 0, 1, 5]))
    def append(self, number: int, count: int, gap: int) -> None:
        for _ in range(count):
            self.cluster.append(number, self.cluster.end(number) + gap)

    @rule(count=COUNTS)
    def work(self, count: int) -> None:
        self.poll(count)
        self.commit()

    @rule(count=COUNTS)
    def poll(self, count: int) -> None:
        self.face.leave_loop()
        records = self._attempt("poll", lambda: self.face.call("poll", count, 0))
        self._handed_out(records or [])
        self._send()

    @rule(count=st.integers(1, 4))
    def iterate(self, count: int) -> None:
        self._serve()
        for _ in range(count):
            if not self._is_available():
                return
            record = self._attempt("poll", self.face.next)
            self._handed_out([] if record is None else [record])
            self._send()

    @rule(count=st.integers(2, 4))
    def commit_each_record_of_a_loop(self, count: int) -> None:
        """`for record in consumer: send; commit()`."""
        for _ in range(count):
            self.iterate(1)
            self.commit()

    @rule()
    def leave_the_loop(self) -> None:
        self.face.leave_loop()

    @rule(count=COUNTS, is_done_before=st.booleans())
    def cancel_a_poll(self, count: int, is_done_before: bool) -> None:
        if isinstance(self.face, AsyncFace):
            self.face.leave_loop()
            records = self._attempt(
                "poll", lambda: self.face.cancelled_poll(count, is_done_before=is_done_before)
            )
            self._handed_out(records or [])
            self._send()

    @rule()
    def commit(self) -> None:
        if self.unsent and self.delivery == "exactly_once":
            # An application does not commit records whose output it could not send.
            return
        self._attempt("commit", lambda: self.face.call("commit"))

    @rule(is_retried=st.booleans(), fault=FAULTS | st.none(), good=st.integers(0, 3))
    def commit_each_record_of_a_batch(self, is_retried: bool, fault: str | None, good: int) -> None:
        """`for record in consumer.poll(): send; commit(record)`. One of the commits may fail."""
        if self.delivery != "exactly_once":
            return
        self.poll_only()
        while self.unsent and self.driver.state is State.OPEN:
            if good == 0 and fault is not None:
                self.producer.faults.add(fault)
            good -= 1
            record = self.unsent.pop(0)
            self.producer.send((record.partition, record.offset))
            self._attempt("commit", lambda record=record: self.face.call("commit", record))
            while is_retried and self.driver.state is State.UNKNOWN:
                self._attempt("commit", lambda record=record: self.face.call("commit", record))
            if self.unsent and self.failure is None:
                assert self.driver.state is State.OPEN, "the rest of a batch without a transaction"

    def poll_only(self) -> None:
        self.face.leave_loop()
        # Output that was sent before has its own commit.
        if not self.unsent:
            self._attempt("commit", lambda: self.face.call("commit"))
        if self.driver.state is State.OPEN or self.unsent:
            return
        records = self._attempt("poll", lambda: self.face.call("poll", 5, 0))
        self._handed_out(records or [])

    @precondition(lambda self: self.last is not None and self.delivery != "exactly_once")
    @rule()
    def commit_up_to_the_last_record(self) -> None:
        assert self.last is not None
        self.moved.add(self.last.partition)
        self.is_fragile = True
        last = self.last
        self._attempt("explicit", lambda: self.face.call("commit", last))

    @rule(number=partition_numbers)
    def pause(self, number: int) -> None:
        self._serve()
        if number in self.owned:
            self._attempt("pause", lambda: self.face.call("pause", TOPIC, number))
            self.paused.add(number)

    @rule(number=partition_numbers)
    def resume(self, number: int) -> None:
        self._serve()
        if number in self.owned:
            self._attempt("resume", lambda: self.face.call("resume", TOPIC, number))
            self.paused.discard(number)

    @rule(number=partition_numbers | st.none(), offset=st.integers(0, 12) | st.just("earliest"))
    def seek(self, number: int | None, offset: Any) -> None:
        self._serve()
        chosen = set(self.owned) if number is None else {number} & set(self.owned)
        if not chosen:
            return
        self.moved |= chosen
        for each in chosen:
            self.position[each] = self.base[each] = 0 if offset == "earliest" else offset
            self._exclude(each)
        # Also if the seek fails: the consumer still has to get there.
        self._attempt("seek", lambda: self.face.call("seek", TOPIC, number, offset=offset))

    def _exclude(self, number: int) -> None:
        self.in_hand.pop(number, None)
        self.unsent = [each for each in self.unsent if each.partition != number]
        if self.last is not None and self.last.partition == number:
            self.last = None

    @rule(chosen=partitions, settling=st.sampled_from([0, 0, 3]))
    def assign(self, chosen: set[int], settling: int) -> None:
        self.handle.settling = settling
        added = sorted(chosen - self._expected())
        if added:
            self.handle.due.append(("assign", added))

    @rule(chosen=partitions, kind=st.sampled_from(["revoke", "revoke", "lost"]))
    def unassign(self, chosen: set[int], kind: str) -> None:
        removed = sorted(chosen & self._expected())
        if removed:
            self.handle.due.append((kind, removed))

    def _expected(self) -> set[int]:
        """Return the partitions that are owned after all pending rebalances."""
        found = set(self.owned)
        for kind, chosen in self.handle.due:
            found = found | set(chosen) if kind == "assign" else found - set(chosen)
        return found

    def _serve(self) -> None:
        """Run the pending rebalances."""
        while self.handle.due:
            self.poll_while_idle()

    @rule()
    def poll_while_idle(self) -> None:
        """The idle poller polls while the application is busy."""
        self.context = "idle"
        self.face.core._poll_while_idle()
        self.context = ""

    @rule(number=partition_numbers, offset=st.integers(0, 12))
    def choose_a_start(self, number: int, offset: int) -> None:
        if number not in self._expected():
            self.starts[number] = offset

    @rule(seconds=st.sampled_from([0.1, 6.0]))
    def wait(self, seconds: float) -> None:
        self.cluster.clock.now += seconds

    @rule(fault=FAULTS)
    def break_a_transaction(self, fault: str) -> None:
        if self.delivery == "exactly_once":
            self.producer.faults.add(fault)

    @rule()
    def abort_elsewhere(self) -> None:
        if self.delivery == "exactly_once" and self.driver.state is State.OPEN:
            self.face.leave_loop()
            self.driver.abort()

    @rule(method=st.sampled_from(["commit", "seek", "fetch"]))
    def break_a_call(self, method: str) -> None:
        if method == "commit":
            self.is_fragile = True
        code = KafkaError._FAIL if method != "commit" else KafkaError.REBALANCE_IN_PROGRESS
        self.handle.faults[method] = deque([KafkaError(code, "broken")])

    @rule()
    def break_a_callback(self) -> None:
        self.is_callback_failing = True

    def has_worked(self) -> bool:
        """Whether the member has done enough steps to be replaced."""
        return type(self).steps_run - self.joined_at > 12

    @precondition(has_worked)
    @rule(is_failing=st.booleans())
    def close(self, is_failing: bool) -> None:
        self._mend()
        self.face.leave_loop()
        if not is_failing or self.delivery == "at_most_once":
            self.in_hand = {}
        if self.unsent and self.delivery == "exactly_once":
            is_failing = True
        error = ZeroDivisionError() if is_failing else None
        self._attempt("close", lambda: self.face.close(error))
        if self.delivery == "exactly_once" and self.driver.state is State.OPEN:
            # Closing the producer does the same.
            self.driver.abort()
        self.face.dispose()
        self.join()

    @precondition(has_worked)
    @rule()
    def crash(self) -> None:
        """The process dies. At most once loses records that were not handed out yet."""
        self.face.dispose()
        self.join()

    def _mend(self) -> None:
        self.handle.faults.clear()
        self.is_callback_failing = False
        if self.delivery == "exactly_once":
            self.producer.faults.clear()

    def _drain(self) -> None:
        """Check that all records are handed out and committed in the end."""
        self._mend()
        self.starts.clear()
        self.face.leave_loop()
        missing = sorted(set(PARTITIONS) - self._expected())
        if missing:
            self.handle.due.append(("assign", missing))
        for _ in range(50):
            self.poll(500)
            for number in sorted(self.paused):
                self.resume(number)
            if not self.handle.due and not self.paused and not self._is_available():
                break
        assert set(self.owned) == set(PARTITIONS)
        for number in PARTITIONS:
            assert self._next(number, self.position[number]) is None, "records were not handed out"
        for _ in range(4):
            self._attempt("commit", lambda: self.face.call("commit"))
            self.poll(500)
        self._check_all()
        self.face.close(None)

    def _check_all(self) -> None:
        output = Counter(self.visible)
        for number in set(PARTITIONS) - self.moved:
            for offset in self.cluster.logs[number]:
                if self.delivery == "exactly_once":
                    assert output[number, offset] == 1
                if self.delivery == "at_least_once":
                    assert self.times_handed_out[number, offset] >= 1

    def check_invariants(self, *arguments: Any, **keywords: Any) -> None:
        super().check_invariants(*arguments, **keywords)
        type(self).steps_run += 1


class AsyncConsumerMachine(ConsumerMachine):
    face_type = AsyncFace


class _NoIdlePoller:
    """Does nothing: the machine itself calls what the idle poller would."""

    def __init__(self, *_: Any) -> None:
        pass

    def stop(self) -> None:
        pass


def run(machine: type[ConsumerMachine], steps: int, *, is_random: bool) -> None:
    """Run the machine. `is_random`: with other steps in each run. Otherwise all runs are the
    same."""
    machine.steps_run = 0
    run_state_machine_as_test(
        machine,
        settings=settings(
            # Some examples end early.
            max_examples=steps * 3 // 2 // STEPS_EACH,
            stateful_step_count=STEPS_EACH,
            deadline=None,
            derandomize=not is_random,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )
    assert machine.steps_run >= steps


@pytest.mark.parametrize("machine", [ConsumerMachine, AsyncConsumerMachine])
def test_any_order_of_calls_agrees_with_the_model(machine: type[ConsumerMachine]) -> None:
    run(machine, 10_000, is_random=False)


@pytest.mark.parametrize("machine", [ConsumerMachine, AsyncConsumerMachine])
def test_after_a_transaction_that_cannot_begin_the_batch_is_read_again(
    machine: type[ConsumerMachine],
) -> None:
    state = machine()
    state.begin(chunk=1, interval_s=5.0, delivery="exactly_once", counts=[40, 40, 5])
    try:
        state.commit_each_record_of_a_batch(fault="begin", good=1, is_retried=False)
        assert isinstance(state.failure, TimedOut)
    finally:
        state.teardown()


def test_records_without_a_transaction_are_not_committed() -> None:
    """No transaction can begin after the first record of a batch, and the next poll fails as
    well."""
    machine = ConsumerMachine()
    try:
        machine.begin(delivery="exactly_once", interval_s=0.0, chunk=1, counts=[0, 0, 40])
        machine.commit_each_record_of_a_loop(count=2)
        machine.break_a_callback()
        machine.commit_each_record_of_a_batch(fault="begin", good=0, is_retried=False)
        machine.unassign(chosen={0}, kind="revoke")
        machine.commit_each_record_of_a_loop(count=2)
    finally:
        machine.teardown()


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("machine", [ConsumerMachine, AsyncConsumerMachine])
def test_a_million_steps(machine: type[ConsumerMachine]) -> None:
    run(machine, int(os.environ.get("CONSUMER_STEPS", "1000000")) // 2, is_random=True)
