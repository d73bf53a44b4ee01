"""What is decided where the worker's threads meet, without brokers: notes, deaths, parking."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from millstream.client.record import NotedOffset, Partition, Record
from millstream.client.schedule import PARKED_S, parking
from millstream.client.worker.header import Output
from millstream.client.worker.job import Job
from millstream.client.worker.job_queue import Counts, Desk
from millstream.client.worker.offset_metadata import NOTED_MAX, Note, fitting
from millstream.client.worker.policy import Verdict, WorkerSettings

HERE = Partition("t", 0)
ACK = Verdict("ack")


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


def desk(owner: str = "me", **options: Any) -> Desk:
    return Desk(WorkerSettings.of(options), "group", Counts(), owner)


def take_over(after: NotedOffset | None, *, owner: str, count: int = 10, **options: Any) -> Desk:
    """A worker that reads a partition from what another has committed on."""
    made = desk(owner, **options)
    made.open(HERE, int(after or 0), Note.of(after))
    made.add(record(offset) for offset in range(int(after or 0), count))
    return made


def commit(worker: Desk) -> NotedOffset:
    return worker.take_finished([HERE])[HERE].offset


def start_careful(worker: Desk) -> tuple[list[Job], NotedOffset]:
    """Write the note that is due; what starts then, and the note."""
    assert worker.take_now() is None
    assert worker.plan_notes() == {HERE}
    note = commit(worker)
    worker.noted(is_committed=True)
    jobs = []
    while (job := worker.take_now()) is not None:
        jobs.append(job)
    return jobs, note


# Notes


@pytest.mark.parametrize(
    "note",
    [
        Note(),
        Note("me", 20, (3, 7, 19), True, (7, 19), False, {7: 1}),
        Note(None, 9, (), False),
        Note("me", running=(4,), is_alone=True, deaths={4: 3}),
    ],
)
def test_a_note_survives_the_metadata(note: Note) -> None:
    assert Note.of(note.at(3)) == note


@pytest.mark.parametrize(
    "text", ["", "somebody else's", "millstream-worker {", "millstream-worker 5"]
)
def test_metadata_that_is_no_note(text: str) -> None:
    assert Note.of(NotedOffset(7, text)) == Note()
    assert Note.of(None) == Note()


def test_a_note_always_fits() -> None:
    start = 10**12
    unfinished, end = fitting(start, range(start, start + 10**9, 12_345), start + 10**9)
    many = range(start, start + 10**9, 10**9 // NOTED_MAX)
    note = Note("0" * 12, end, unfinished, True, tuple(many), False, dict.fromkeys(many, 99))
    assert len(note.at(start).metadata) < 4096
    assert Note.of(note.at(start)) == note


def test_a_successor_skips_what_is_finished() -> None:
    first = take_over(None, owner="a", concurrency=4)
    jobs = [first.take_now() for _ in range(6)]
    for number in (1, 2, 4):
        job = jobs[number]
        assert job is not None
        first.settle(job, ACK)
    first.leave([HERE])
    second = take_over(commit(first), owner="b")
    offsets = []
    while (job := second.take_now()) is not None:
        offsets.append(job.offset)
    assert offsets == [0, 3, 5, 6, 7, 8, 9]


# Deaths


def test_a_worker_that_gave_its_partition_up_leaves_no_suspicion() -> None:
    first = take_over(None, owner="a")
    first.leave([HERE])
    second = take_over(commit(first), owner="b")
    assert second.take_now() is not None
    assert second.plan_notes() == set()


def test_the_same_worker_is_no_stranger() -> None:
    first = take_over(None, owner="a")
    assert take_over(commit(first), owner="a").take_now() is not None


def test_a_message_that_kills_each_time_is_found_and_becomes_a_dead_letter() -> None:
    """Six messages in progress, the third is deadly: five bystanders, none of which is blamed."""
    options: dict[str, Any] = {"attempts_max": 2, "count": 6}
    worker = take_over(None, owner="0", **options)
    note = commit(worker)
    # The first death: nothing is known but that there was one.
    worker = take_over(note, owner="1", **options)
    jobs, note = start_careful(worker)
    assert [job.offset for job in jobs] == [0, 1, 2, 3, 4, 5]
    # The second: one of six. They run one by one, each with a note of its own.
    worker = take_over(note, owner="2", **options)
    for offset in (0, 1):
        jobs, note = start_careful(worker)
        assert [(job.offset, job.attempt) for job in jobs] == [(offset, 2)]
        assert Note.of(note).is_alone
        worker.settle(jobs[0], ACK)
        # A note without it, before anything else starts.
        assert start_careful(worker)[0] == []
    jobs, note = start_careful(worker)
    assert [job.offset for job in jobs] == [2]
    # The second and last attempt that is counted.
    worker = take_over(note, owner="3", **options)
    [entry] = worker.take_moves()
    assert entry.offset == 2
    assert entry.outputs[0].topic == "t.dlq"
    assert dict(entry.outputs[0].headers)["millstream.attempts"] == b"2"
    worker.finish([entry])
    for offset in (3, 4, 5):
        jobs, note = start_careful(worker)
        assert [job.offset for job in jobs] == [offset]
        worker.settle(jobs[0], ACK)
        assert start_careful(worker)[0] == []
    final = commit(worker)
    assert int(final) == 6
    assert not Note.of(final).deaths


def test_a_note_that_could_not_be_committed_starts_nothing() -> None:
    worker = take_over(commit(take_over(None, owner="0")), owner="1")
    assert worker.plan_notes() == {HERE}
    worker.noted(is_committed=False)
    assert worker.take_now() is None
    assert len(start_careful(worker)[0]) == 10


def test_a_suspect_waits_until_nothing_else_runs() -> None:
    note = Note("0", running=(5,)).at(0)
    worker = desk("1")
    other = Partition("other", 0)
    worker.open(other, 0, Note())
    worker.add([record(0, "other"), record(1, "other")])
    job = worker.take_now()
    assert job is not None
    worker.open(HERE, 0, Note.of(note))
    worker.add([record(5)])
    assert worker.plan_notes() == set()
    assert worker.take_now() is None
    worker.settle(job, ACK)
    assert [each.offset for each in start_careful(worker)[0]] == [5]


def test_a_partition_that_goes_takes_its_suspicion_along() -> None:
    worker = desk("1")
    worker.open(HERE, 0, Note("0", running=(5,)))
    other = Partition("other", 0)
    worker.open(other, 0, Note())
    worker.add([record(5), record(0, "other")])
    assert worker.plan_notes() == {HERE}
    worker.drop([HERE])
    worker.noted(is_committed=True)
    job = worker.take_now()
    assert job is not None
    assert job.record.topic == "other"


# Messages for later


def later(seconds: float) -> int:
    return int((time.time() + seconds) * 1000)


def delivered(worker: Desk) -> list[Output]:
    """What is to be sent; it is."""
    moves = worker.take_moves()
    worker.finish(moves)
    return [output for entry in moves for output in entry.outputs]


def test_far_messages_are_parked_once_many_wait() -> None:
    worker = desk(window=5)
    place = Partition("t.scheduled", 0)
    worker.open(place, 0, Note())
    worker.add(record(offset, *place, due=later(7200)) for offset in range(20))
    outputs = delivered(worker)
    assert len(outputs) == 15
    assert {(each.topic, each.partition) for each in outputs} == {
        ("t.parked", PARKED_S.index(3600))
    }
    assert worker.pressure()[0] == set()
    worker.add([record(20, *place, due=later(10)), record(21, *place, due=later(-1))])
    job = worker.take_now()
    assert job is not None
    assert (job.offset, delivered(worker)) == (21, [])


def test_a_parked_message_moves_on_when_it_has_waited() -> None:
    worker = desk()
    place = Partition("t.parked", 2)
    worker.open(place, 0, Note())
    names = {"original.topic": "t", "original.offset": 4, "attempts": 1}
    worker.add(
        [
            # Still far: to the next partition. Soon due, and due: here.
            record(0, *place, due=later(1000), parked=later(-1), **names),
            record(1, *place, due=later(5), parked=later(-1), **names),
            record(2, *place, due=later(-1), parked=later(-1), **names),
            # Its wait is not over, though it is overdue.
            record(3, *place, due=later(-1), parked=later(600), **names),
        ]
    )
    worker.tick()
    [output] = delivered(worker)
    assert (output.topic, output.partition) == ("t.parked", PARKED_S.index(300))
    headers = dict(output.headers)
    assert headers["millstream.original.offset"] == b"4"
    assert headers["millstream.group"] == b"group"
    job = worker.take_now()
    assert job is not None
    assert (job.record.offset, job.topic, job.attempt) == (2, "t", 2)
    assert worker.take_now() is None


def test_the_way_to_the_due_time_is_short() -> None:
    """However late a message is due, it is moved a few dozen times, and is never late itself."""
    for days in (1, 30, 365):
        left_s, moves = days * 86_400.0, 0
        while (level := parking(left_s)) is not None:
            left_s -= PARKED_S[level]
            moves += 1
        assert 0 <= left_s < PARKED_S[0]
        assert moves <= 120
