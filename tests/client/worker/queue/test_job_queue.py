"""The worker's queue without brokers: offset metadata, process deaths, parked messages."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from millstream.client.record import OffsetAndMetadata, Partition, Record
from millstream.client.schedule import PARKED_S, parked_level
from millstream.client.worker.message.header import OutputRecord
from millstream.client.worker.message.job import Job
from millstream.client.worker.policy.policy import AttemptResult, WorkerSettings
from millstream.client.worker.queue.job_queue import JobQueue
from millstream.client.worker.queue.offset_metadata import (
    TRACKED_MAX,
    OffsetMetadata,
    fit_unfinished,
)
from millstream.client.worker.queue.outcome import Counts

HERE = Partition("t", 0)
ACK = AttemptResult("ack")


class FakeRecord:
    def __init__(
        self, offset: int, topic: str = "t", partition: int = 0, **headers: object
    ) -> None:
        self.topic, self.partition, self.offset = topic, partition, offset
        self.raw_key, self.raw_value = b"%d" % offset, b"value"
        self.timestamp = 0
        self.headers = [
            (f"millstream.{name}", f"{each}".encode()) for name, each in headers.items()
        ]


def record(offset: int, topic: str = "t", partition: int = 0, **headers: object) -> Record:
    return cast("Record", cast("Any", FakeRecord(offset, topic, partition, **headers)))


def queue(owner: str = "me", **options: Any) -> JobQueue:
    return JobQueue(WorkerSettings.of(options), "group", Counts(), owner)


def take_over(
    after: OffsetAndMetadata | None, *, owner: str, count: int = 10, **options: Any
) -> JobQueue:
    """Return a worker that continues a partition after what another worker committed."""
    made = queue(owner, **options)
    made.open(HERE, int(after or 0), OffsetMetadata.of(after))
    made.add(record(offset) for offset in range(int(after or 0), count))
    return made


def commit(worker: JobQueue) -> OffsetAndMetadata:
    return worker.take_commits([HERE])[HERE].offset


def start_tracked(worker: JobQueue) -> tuple[list[Job], OffsetAndMetadata]:
    """Commit the metadata that is due. Return the jobs that start then, and the metadata."""
    assert worker.next_job_nowait() is None
    assert worker.plan_tracked() == {HERE}
    metadata = commit(worker)
    worker.tracked_recorded(is_committed=True)
    jobs = []
    while (job := worker.next_job_nowait()) is not None:
        jobs.append(job)
    return jobs, metadata


# Metadata


@pytest.mark.parametrize(
    "metadata",
    [
        OffsetMetadata(),
        OffsetMetadata("me", 20, (3, 7, 19), True, (7, 19), False, {7: 1}),
        OffsetMetadata(None, 9, (), False),
        OffsetMetadata("me", running=(4,), is_exclusive=True, deaths={4: 3}),
    ],
)
def test_metadata_survives_encoding(metadata: OffsetMetadata) -> None:
    assert OffsetMetadata.of(metadata.at(3)) == metadata


@pytest.mark.parametrize(
    "text", ["", "somebody else's", "millstream-worker {", "millstream-worker 5"]
)
def test_foreign_metadata_decodes_as_empty(text: str) -> None:
    assert OffsetMetadata.of(OffsetAndMetadata(7, text)) == OffsetMetadata()
    assert OffsetMetadata.of(None) == OffsetMetadata()


def test_the_metadata_always_fits() -> None:
    start = 10**12
    unfinished, end = fit_unfinished(start, range(start, start + 10**9, 12_345), start + 10**9)
    many = range(start, start + 10**9, 10**9 // TRACKED_MAX)
    metadata = OffsetMetadata(
        "0" * 12, end, unfinished, True, tuple(many), False, dict.fromkeys(many, 99)
    )
    assert len(metadata.at(start).metadata) < 4096
    assert OffsetMetadata.of(metadata.at(start)) == metadata


def test_the_next_worker_skips_finished_messages() -> None:
    first = take_over(None, owner="a", concurrency=4)
    jobs = [first.next_job_nowait() for _ in range(6)]
    for number in (1, 2, 4):
        job = jobs[number]
        assert job is not None
        first.complete(job, ACK)
    first.release([HERE])
    second = take_over(commit(first), owner="b")
    offsets = []
    while (job := second.next_job_nowait()) is not None:
        offsets.append(job.offset)
    assert offsets == [0, 3, 5, 6, 7, 8, 9]


# Deaths


def test_a_released_partition_has_no_tracked_messages() -> None:
    first = take_over(None, owner="a")
    first.release([HERE])
    second = take_over(commit(first), owner="b")
    assert second.next_job_nowait() is not None
    assert second.plan_tracked() == set()


def test_a_worker_does_not_suspect_itself() -> None:
    first = take_over(None, owner="a")
    assert take_over(commit(first), owner="a").next_job_nowait() is not None


def test_a_message_that_kills_each_time_is_found_and_becomes_a_dead_letter() -> None:
    """Six messages in progress, the third is deadly: none of the five others is blamed."""
    options: dict[str, Any] = {"attempts_max": 2, "count": 6}
    worker = take_over(None, owner="0", **options)
    metadata = commit(worker)
    # The first death: which message caused it is unknown.
    worker = take_over(metadata, owner="1", **options)
    jobs, metadata = start_tracked(worker)
    assert [job.offset for job in jobs] == [0, 1, 2, 3, 4, 5]
    # The second: one of six. They run one by one, each with metadata of its own.
    worker = take_over(metadata, owner="2", **options)
    for offset in (0, 1):
        jobs, metadata = start_tracked(worker)
        assert [(job.offset, job.attempt) for job in jobs] == [(offset, 2)]
        assert OffsetMetadata.of(metadata).is_exclusive
        worker.complete(jobs[0], ACK)
        # Metadata without it is committed before anything else starts.
        assert start_tracked(worker)[0] == []
    jobs, metadata = start_tracked(worker)
    assert [job.offset for job in jobs] == [2]
    # The second attempt that counts, and the last.
    worker = take_over(metadata, owner="3", **options)
    [item] = worker.take_unsent()
    assert item.offset == 2
    assert item.outputs[0].topic == "t.dlq"
    assert dict(item.outputs[0].headers)["millstream.attempts"] == b"2"
    worker.finish([item])
    for offset in (3, 4, 5):
        jobs, metadata = start_tracked(worker)
        assert [job.offset for job in jobs] == [offset]
        worker.complete(jobs[0], ACK)
        assert start_tracked(worker)[0] == []
    final = commit(worker)
    assert int(final) == 6
    assert not OffsetMetadata.of(final).deaths


def test_tracked_messages_do_not_start_before_their_metadata_is_committed() -> None:
    worker = take_over(commit(take_over(None, owner="0")), owner="1")
    assert worker.plan_tracked() == {HERE}
    worker.tracked_recorded(is_committed=False)
    assert worker.next_job_nowait() is None
    assert len(start_tracked(worker)[0]) == 10


def test_a_suspect_waits_until_nothing_else_runs() -> None:
    metadata = OffsetMetadata("0", running=(5,)).at(0)
    worker = queue("1")
    other = Partition("other", 0)
    worker.open(other, 0, OffsetMetadata())
    worker.add([record(0, "other"), record(1, "other")])
    job = worker.next_job_nowait()
    assert job is not None
    worker.open(HERE, 0, OffsetMetadata.of(metadata))
    worker.add([record(5)])
    assert worker.plan_tracked() == set()
    assert worker.next_job_nowait() is None
    worker.complete(job, ACK)
    assert [each.offset for each in start_tracked(worker)[0]] == [5]


def test_a_dropped_partition_drops_its_suspect() -> None:
    worker = queue("1")
    worker.open(HERE, 0, OffsetMetadata("0", running=(5,)))
    other = Partition("other", 0)
    worker.open(other, 0, OffsetMetadata())
    worker.add([record(5), record(0, "other")])
    assert worker.plan_tracked() == {HERE}
    worker.drop([HERE])
    worker.tracked_recorded(is_committed=True)
    job = worker.next_job_nowait()
    assert job is not None
    assert job.record.topic == "other"


# Delayed messages


def later(seconds: float) -> int:
    return int((time.time() + seconds) * 1000)


def delivered(worker: JobQueue) -> list[OutputRecord]:
    """Deliver the output that is due, and return it."""
    moves = worker.take_unsent()
    worker.finish(moves)
    return [output for item in moves for output in item.outputs]


def test_messages_with_a_long_delay_are_parked_once_many_wait() -> None:
    worker = queue(window=5)
    partition = Partition("t.scheduled", 0)
    worker.open(partition, 0, OffsetMetadata())
    worker.add(record(offset, *partition, due=later(7200)) for offset in range(20))
    outputs = delivered(worker)
    assert len(outputs) == 15
    assert {(each.topic, each.partition) for each in outputs} == {
        ("t.parked", PARKED_S.index(3600))
    }
    assert worker.full_and_resumable()[0] == set()
    worker.add([record(20, *partition, due=later(10)), record(21, *partition, due=later(-1))])
    job = worker.next_job_nowait()
    assert job is not None
    assert (job.offset, delivered(worker)) == (21, [])


def test_a_parked_message_moves_on_when_it_has_waited() -> None:
    worker = queue()
    partition = Partition("t.parked", 2)
    worker.open(partition, 0, OffsetMetadata())
    names = {"original.topic": "t", "original.offset": 4, "attempts": 1}
    worker.add(
        [
            # Due late: to the next partition. Due soon, and due: here.
            record(0, *partition, due=later(1000), parked=later(-1), **names),
            record(1, *partition, due=later(5), parked=later(-1), **names),
            record(2, *partition, due=later(-1), parked=later(-1), **names),
            # It is overdue, but parked until later.
            record(3, *partition, due=later(-1), parked=later(600), **names),
        ]
    )
    worker.tick()
    [output] = delivered(worker)
    assert (output.topic, output.partition) == ("t.parked", PARKED_S.index(300))
    headers = dict(output.headers)
    assert headers["millstream.original.offset"] == b"4"
    assert headers["millstream.group"] == b"group"
    job = worker.next_job_nowait()
    assert job is not None
    assert (job.record.offset, job.topic, job.attempt) == (2, "t", 2)
    assert worker.next_job_nowait() is None


def test_a_parked_message_moves_a_few_dozen_times() -> None:
    """However late a message is due, it moves a few dozen times, and never waits too long."""
    for days in (1, 30, 365):
        left_s, moves = days * 86_400.0, 0
        while (level := parked_level(left_s)) is not None:
            left_s -= PARKED_S[level]
            moves += 1
        assert 0 <= left_s < PARKED_S[0]
        assert moves <= 120
