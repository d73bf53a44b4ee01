"""librdkafka's consumer and transactional producer in memory, without threads or a clock.

`MemoryConsumer` implements the part of `confluent_kafka.Consumer` that `ConsumerCore` uses.
`tests/client/test_memory_kafka.py` runs the same tests on both. A test decides which rebalances are
due (`due`, served inside `poll` and `consume`) and which calls fail (`faults`).

A callback that raises loses the records that the same call fetched, as in librdkafka.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

TOPIC = "t"
#: A consumer that polls this often without a record would wait forever.
_VAIN_POLLS_MAX = 2000


class Clock:
    """Replaces the module `time`: it advances when a caller waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class MemoryCluster:
    """The partitions of one topic, the committed offsets of one group, and a clock."""

    clock: Clock = field(default_factory=Clock)
    #: The offsets of each partition's records, ascending, with gaps.
    logs: dict[int, list[int]] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    #: Called with the offsets of a commit before it happens.
    on_commit: Callable[[dict[int, int]], None] = lambda offsets: None

    def append(self, partition: int, offset: int) -> None:
        self.logs[partition].append(offset)

    def end(self, partition: int) -> int:
        log = self.logs[partition]
        return log[-1] + 1 if log else 0

    def commit(self, rows: Iterable[TopicPartition]) -> None:
        offsets = {row.partition: row.offset for row in rows}
        self.on_commit(offsets)
        self.committed |= offsets


@dataclass
class _Cursor:
    position: int
    is_paused: bool = False
    #: The number of polls until the start position of the partition is known.
    settling: int = 0


class MemoryConsumer:
    """One member of the group. It returns up to `chunk` records of a partition in a row."""

    def __init__(self, cluster: MemoryCluster, chunk: int = 2) -> None:
        self._cluster = cluster
        self._chunk = chunk
        self._cursors: dict[int, _Cursor] = {}
        self._callbacks: dict[str, Any] = {}
        #: Rebalances to serve: "assign", "revoke" or "lost", and the partitions.
        self.due: deque[tuple[str, list[int]]] = deque()
        #: Called after a rebalance.
        self.on_rebalance: Callable[[str, list[int]], None] = lambda kind, partitions: None
        #: Errors to raise or return, by method.
        self.faults: dict[str, deque[KafkaError]] = {}
        #: The number of polls for which seeks of a newly assigned partition fail.
        self.settling = 0
        self._vain_polls = 0
        self.is_closed = False

    # Partitions

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        assert topics == [TOPIC]
        self._callbacks = callbacks

    def list_topics(self, topic: str, timeout: float) -> Any:
        found = SimpleNamespace(error=None, partitions=dict.fromkeys(self._cluster.logs))
        return SimpleNamespace(topics={topic: found})

    def assign(self, rows: list[TopicPartition]) -> None:
        self._cursors.clear()
        self.incremental_assign(rows)

    def incremental_assign(self, rows: list[TopicPartition]) -> None:
        for row in rows:
            assert row.partition not in self._cursors, (
                f"partition {row.partition} is already assigned"
            )
            offset = row.offset
            if offset == OFFSET_INVALID:
                offset = self._cluster.committed.get(row.partition, OFFSET_BEGINNING)
            position = self._resolve(row.partition, offset)
            self._cursors[row.partition] = _Cursor(position, settling=self.settling)

    def unassign(self) -> None:
        self._cursors.clear()

    def incremental_unassign(self, rows: list[TopicPartition]) -> None:
        for row in rows:
            del self._cursors[row.partition]

    def pause(self, rows: list[TopicPartition]) -> None:
        self._set_paused(rows, True)

    def resume(self, rows: list[TopicPartition]) -> None:
        self._set_paused(rows, False)

    def seek(self, row: TopicPartition) -> None:
        self._fail("seek")
        cursor = self._cursors.get(row.partition)
        if cursor is None or cursor.settling:
            raise KafkaException(KafkaError(KafkaError._STATE, "not assigned yet"))
        cursor.position = self._resolve(row.partition, row.offset)

    def _resolve(self, partition: int, offset: int) -> int:
        if offset == OFFSET_BEGINNING:
            return 0
        if offset == OFFSET_END:
            return self._cluster.end(partition)
        assert offset >= 0
        return offset

    def _set_paused(self, rows: list[TopicPartition], is_paused: bool) -> None:
        for row in rows:
            if row.partition in self._cursors:
                self._cursors[row.partition].is_paused = is_paused

    # Records

    def poll(self, timeout: float) -> Message | None:
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        assert not self.is_closed
        if not self.due:
            found = self._fetch(num_messages)
        else:
            # A rebalance in the middle discards fetched records of revoked partitions.
            before = dict(self._cursors)
            found = self._fetch(num_messages // 2)
            self._serve()
            kept = {key for key, cursor in before.items() if self._cursors.get(key) is cursor}
            found = [each for each in found if each.error() or each.partition() in kept]
            found += self._fetch(num_messages - len(found))
        for cursor in self._cursors.values():
            cursor.settling = max(0, cursor.settling - 1)
        if found:
            self._vain_polls = 0
        else:
            self._vain_polls += 1
            assert self._vain_polls < _VAIN_POLLS_MAX, (
                f"{_VAIN_POLLS_MAX} polls in a row returned no record"
            )
            self._cluster.clock.now += timeout
        return found

    def _fetch(self, count_max: int) -> list[Message]:
        if count_max and self.faults.get("fetch"):
            return [Message(topic=TOPIC, partition=0, error=self.faults["fetch"].popleft())]
        found: list[Message] = []
        is_more = True
        while is_more and len(found) < count_max:
            is_more = False
            for partition, cursor in self._cursors.items():
                if cursor.is_paused or cursor.settling:
                    continue
                room = min(self._chunk, count_max - len(found))
                log = self._cluster.logs[partition]
                ahead = (offset for offset in log if offset >= cursor.position)
                for offset in itertools.islice(ahead, room):
                    found.append(Message(topic=TOPIC, partition=partition, offset=offset))
                    cursor.position = offset + 1
                    is_more = True
        return found

    def _serve(self) -> None:
        while self.due:
            kind, partitions = self.due.popleft()
            rows = [TopicPartition(TOPIC, partition) for partition in partitions]
            try:
                self._callbacks[f"on_{kind}"](self, rows)
            finally:
                self.on_rebalance(kind, partitions)

    # Offsets

    def committed(self, rows: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        known = self._cluster.committed
        return [
            TopicPartition(TOPIC, row.partition, known.get(row.partition, OFFSET_INVALID))
            for row in rows
        ]

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        self._fail("commit")
        self._cluster.commit(offsets)
        return offsets

    def consumer_group_metadata(self) -> object:
        return self

    def close(self) -> None:
        if self._cursors and "on_revoke" in self._callbacks:
            self.due.clear()
            self.due.append(("revoke", list(self._cursors)))
            self._serve()
        self.is_closed = True

    def _fail(self, method: str) -> None:
        if self.faults.get(method):
            raise KafkaException(self.faults[method].popleft())


TIMEOUT = KafkaError(KafkaError._TIMED_OUT, "no response", retriable=True)
ABORTABLE = KafkaError(KafkaError.INVALID_TXN_STATE, "abort", txn_requires_abort=True)


class MemoryProducer:
    """librdkafka's transactional producer, as `TransactionDriver` uses it."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._is_open = False
        self._sent: list[tuple[int, int]] = []
        self._offsets: list[TopicPartition] = []
        #: Partition and offset of the input records whose results are committed.
        self.visible: list[tuple[int, int]] = []
        self.on_abort: Callable[[], None] = lambda: None
        #: Called when the outcome of a commit with a lost response becomes known.
        self.on_late_commit: Callable[[], None] = lambda: None
        #: The step that fails once: begin, offsets, commit, or "unknown, then" and the outcome.
        self.faults: set[str] = set()
        #: The outcome of a commit whose response was lost.
        self._late: str | None = None

    def __len__(self) -> int:
        return 0

    def send(self, place: tuple[int, int]) -> None:
        assert self._is_open
        self._sent.append(place)

    def init_transactions(self, timeout: float) -> None:
        pass

    def begin_transaction(self) -> None:
        if self._pop_fault("begin"):
            self._pass(61)
            raise KafkaException(TIMEOUT)
        assert not self._is_open
        self._is_open = True

    def send_offsets_to_transaction(
        self, rows: list[TopicPartition], metadata: object, timeout: float
    ) -> None:
        assert self._is_open
        if self._pop_fault("offsets"):
            raise KafkaException(ABORTABLE)
        self._offsets += rows

    def commit_transaction(self, timeout: float) -> None:
        assert self._is_open
        if self._late is not None:
            self._report_outcome()
            return
        for outcome in ("committed", "aborted"):
            if self._pop_fault(f"unknown, then {outcome}"):
                # The commit happens, but its response is lost.
                self._late = outcome
                if outcome == "committed":
                    self._commit()
                self._pass(timeout + 1)
                raise KafkaException(TIMEOUT)
        if self._pop_fault("commit"):
            raise KafkaException(ABORTABLE)
        self._commit()
        self._end()

    def _report_outcome(self) -> None:
        if self._late == "aborted":
            raise KafkaException(ABORTABLE)
        self._end()
        self.on_late_commit()

    def _commit(self) -> None:
        self.visible += self._sent
        self._cluster.commit(self._offsets)

    def abort_transaction(self, timeout: float) -> None:
        assert self._is_open
        was_committed = self._late == "committed"
        self._end()
        if not was_committed:
            self.on_abort()

    def _end(self) -> None:
        self._is_open = False
        self._late = None
        self._sent = []
        self._offsets = []

    def _pop_fault(self, fault: str) -> bool:
        found = fault in self.faults
        self.faults.discard(fault)
        return found

    def _pass(self, seconds: float) -> None:
        self._cluster.clock.now += seconds
