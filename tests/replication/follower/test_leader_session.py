"""A follower's fetch session with a leader: its partitions, offsets and epochs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.in_process.log_home import StillClock, UnsyncedDisk, append
from harness.raw.raw_client import values_batch
from millstream.log.directory.data_directory import LogDirectory
from millstream.metadata.cluster_record import PartitionRecord
from millstream.model.config import TopicConfig
from millstream.model.failure import CallbackFailures
from millstream.model.topic import TopicPartition
from millstream.replication.follower.leader_session import FetchLimits, LeaderSession
from millstream.replication.partition import Partition
from millstream.wire.messages.fetch import FetchRequest

FOLLOWS = PartitionRecord(replicas=(1, 2), leader=1, leader_epoch=4, isr=(1, 2))
TOPIC_ID = b"t" * 16


class Host:
    failures = CallbackFailures()

    def truncated(self, partition: Partition, offset: int) -> None: ...

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    directory = LogDirectory.open(tmp_path, UnsyncedDisk(), StillClock(), random.Random(1))
    yield directory
    directory.close(clean=False)


@pytest.fixture
def session() -> LeaderSession:
    return LeaderSession(FetchLimits())


def make(directory: LogDirectory, number: int = 0) -> Partition:
    log = directory.log(TopicPartition("t", number), TOPIC_ID, TopicConfig())
    return Partition(2, log, FOLLOWS, Host(), flushes_before_ack=False)  # type: ignore[arg-type]


def named(request: FetchRequest) -> dict[int, tuple[int, int, int]]:
    """Return offset, leader epoch and last epoch of each partition in the request."""
    return {
        row.partition: (row.fetch_offset, row.current_leader_epoch, row.last_fetched_epoch)
        for topic in request.topics
        for row in topic.partitions
    }


def ask(session: LeaderSession) -> FetchRequest:
    return session.request(2, 77)


def test_a_session_starts_with_all_partitions_and_continues_with_changes(
    directory: LogDirectory, session: LeaderSession
) -> None:
    first, second = make(directory, 0), make(directory, 1)
    append(first.log, values_batch(b"a", b"b", timestamp=0), epoch=3)
    session.add(first)
    session.add(second)
    request = ask(session)
    assert named(request) == {0: (2, 4, 3), 1: (0, 4, -1)}
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert request.replica_state == FetchRequest.ReplicaState(replica_id=2, replica_epoch=77)
    session.opened(5)
    request = ask(session)
    assert named(request) == {}
    assert (request.session_id, request.session_epoch) == (5, 1)
    append(first.log, values_batch(b"c", timestamp=0), epoch=4)
    followed = session.find((TOPIC_ID, 1), 2)
    assert followed is not None
    session.moved(followed)
    assert named(ask(session)) == {1: (0, 4, -1)}


def test_a_removed_partition_is_in_the_forgotten_topics_once(
    directory: LogDirectory, session: LeaderSession
) -> None:
    session.add(make(directory))
    ask(session)
    session.remove((TOPIC_ID, 0))
    assert session.has_news
    (forgotten,) = ask(session).forgotten_topics_data
    assert (forgotten.topic_id, forgotten.partitions) == (TOPIC_ID, [0])
    assert ask(session).forgotten_topics_data == []
    assert session.find((TOPIC_ID, 0), 9) is None


def test_a_new_session_has_all_partitions_except_delayed_ones(
    directory: LogDirectory, session: LeaderSession
) -> None:
    session.add(make(directory, 0))
    session.add(make(directory, 1))
    ask(session)
    session.opened(5)
    followed = session.find((TOPIC_ID, 0), 1)
    assert followed is not None
    session.delay(followed, 10.0)
    session.reset()
    assert not session.is_open
    request = ask(session)
    assert set(named(request)) == {1}
    assert request.session_epoch == 0
    assert session.delay_left_s(4.0) == 6.0
    session.wake_delayed(9.0)
    assert not session.has_news
    session.wake_delayed(10.0)
    assert set(named(ask(session))) == {0}
    assert session.delay_left_s(4.0) == float("inf")


def test_new_metadata_ends_a_delay(directory: LogDirectory, session: LeaderSession) -> None:
    partition = make(directory)
    session.add(partition)
    ask(session)
    followed = session.find((TOPIC_ID, 0), 1)
    assert followed is not None
    session.delay(followed, 10.0)
    assert not session.has_news
    session.add(partition)
    assert set(named(ask(session))) == {0}


def test_a_stale_response_is_ignored(directory: LogDirectory, session: LeaderSession) -> None:
    partition = make(directory)
    session.add(partition)
    ask(session)
    assert session.find((TOPIC_ID, 0), 1) is not None
    # A later request, already sent, includes the partition again.
    session.add(partition)
    ask(session)
    assert session.find((TOPIC_ID, 0), 1) is None
    assert session.find((TOPIC_ID, 0), 2) is not None
    # Another leader epoch, another log end offset.
    partition.state = PartitionRecord(replicas=(1, 2), leader=1, leader_epoch=5, isr=(1, 2))
    assert session.find((TOPIC_ID, 0), 2) is None
    partition.state = FOLLOWS
    append(partition.log, epoch=4)
    assert session.find((TOPIC_ID, 0), 2) is None


def test_an_epoch_without_records_is_not_the_last_fetched_epoch(
    directory: LogDirectory, session: LeaderSession
) -> None:
    """Records of an earlier epoch may still arrive, and are appended under that epoch."""
    partition = make(directory)
    append(partition.log, epoch=3)
    partition.log.assign_epoch(4)
    assert partition.log.latest_epoch == 4
    session.add(partition)
    assert named(ask(session)) == {0: (1, 4, 3)}
    assert partition.log.latest_epoch == 3
