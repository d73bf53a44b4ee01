"""The leader's side of replication. The test sends the follower's requests one by one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.in_process.log_home import StillClock, UnsyncedDisk
from harness.in_process.replica_set import HOST, LISTENER, ReplicaSet, run, until
from harness.in_process.reply_receiver import RecordedReplies
from harness.raw.raw_client import records_of, values_batch
from millstream.env.supervisor import Supervisor
from millstream.log.directory.data_directory import LogDirectory
from millstream.metadata.cluster_record import BrokerRecord, Endpoint, PartitionRecord, broker_key
from millstream.metadata.store.port import Delete, MetadataStoreError
from millstream.metadata.topic_change import NewPartitions, NewTopic
from millstream.model.config import TopicConfig
from millstream.model.error import ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.topic import TopicPartition
from millstream.records.batch import check_produced
from millstream.replication.leader.follower_session import (
    FollowerSession,
    LeaderContext,
    RequestLimits,
)
from millstream.replication.leader.isr_change import IsrChanges
from millstream.replication.partition import Partition
from millstream.replication.partition_port import Counters, Latency
from millstream.replication.peer import Peer
from millstream.replication.replicas import Replicas
from millstream.replication.stats import ReplicationStats
from millstream.replication.throttle import ReplicaLimit
from millstream.wire.messages.fetch import FetchRequest, FetchResponse

VERSION = 18
FOLLOWER = 2
TOPIC_ID = b"t" * 16
_Wanted = FetchRequest.Topic.Partition
_Row = FetchResponse.Topic.Partition


async def refuse(*_: object) -> PartitionRecord:
    raise MetadataStoreError("no store")


class Host:
    def __init__(self, clock: StillClock) -> None:
        self.monotonic = clock.monotonic
        self.failures = CallbackFailures()

    def wake_later(self, partition: Partition) -> None: ...

    def flush(self, partition: Partition) -> None: ...

    def truncated(self, partition: Partition, offset: int) -> None: ...

    def counters(self, partition: Partition) -> tuple[Counters, Latency]:
        raise NotImplementedError


class Follower:
    """Sends requests in the name of broker 2, which does not exist."""

    def __init__(self, brokers: ReplicaSet, peer: Peer, broker_epoch: int) -> None:
        self.brokers = brokers
        self.peer = peer
        self.broker_epoch = broker_epoch
        self.session_id = 0
        self.session_epoch = 0

    @property
    def leader(self) -> Partition:
        return self.brokers[1].partition("t")

    def send(self, *wanted: _Wanted, wait_ms: int = 0, **fields: Any) -> asyncio.Future[Any]:
        """Send the next request of the session, with these partitions of the topic."""
        topics = []
        if wanted:
            topic_id = self.leader.log.topic_id
            topics = [FetchRequest.Topic(topic_id=topic_id, partitions=list(wanted))]
        state = FetchRequest.ReplicaState(replica_id=FOLLOWER, replica_epoch=self.broker_epoch)
        given = {
            "replica_state": state,
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "session_id": self.session_id,
            "session_epoch": self.session_epoch,
            "topics": topics,
            **fields,
        }
        self.session_epoch += 1
        return self.peer.send(FetchRequest(**given), VERSION, FetchResponse)

    async def fetch(self, *wanted: _Wanted, **fields: Any) -> FetchResponse:
        response: FetchResponse = await self.send(*wanted, **fields)
        if self.session_id == 0:
            self.session_id = response.session_id
        return response

    async def row(self, *wanted: _Wanted, **fields: Any) -> _Row | None:
        """Return the partition's row of the response, if it has one."""
        response = await self.fetch(*wanted, **fields)
        assert response.error_code == 0
        rows = [row for topic in response.responses for row in topic.partitions]
        assert len(rows) <= 1
        return rows[0] if rows else None

    def state(self) -> tuple[int, int]:
        """Return the follower's log end offset as the leader knows it, and the high watermark."""
        assert self.leader.leadership is not None
        return (
            self.leader.leadership.followers[FOLLOWER].log_end_offset,
            self.leader.high_watermark,
        )


def at(offset: int, epoch: int = 0, last_epoch: int = -1, **fields: Any) -> _Wanted:
    return _Wanted(
        partition=0,
        fetch_offset=offset,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_epoch if offset else -1,
        log_start_offset=0,
        **{"partition_max_bytes": 1 << 20, **fields},
    )


@asynccontextmanager
async def follower_of(folder: Path) -> AsyncIterator[Follower]:
    """Start broker 1 as leader, with brokers 1 and 2 in sync. The test acts as broker 2."""
    async with ReplicaSet(folder, 1) as brokers:
        catalog = brokers[1].catalog
        endpoint = Endpoint(LISTENER, HOST, 1)
        registered = await catalog.register_broker(
            BrokerRecord(node_id=FOLLOWER, endpoints=(endpoint,))
        )
        await catalog.create_topics([NewTopic("t", [[1, FOLLOWER]], {})])
        peer = await brokers.peer(1, "follower")
        yield Follower(brokers, peer, registered.epoch)


def test_a_fetch_reports_the_followers_log_end_offset(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            for _ in range(3):
                await follower.brokers.produce("t", b"v", acks=1)
            row = await follower.row(at(0))
            assert row is not None
            assert [record.offset for record in records_of(row.records)] == [0, 1, 2]
            assert (row.high_watermark, row.log_start_offset) == (0, 0)
            assert follower.state() == (0, 0)
            row = await follower.row(at(3, last_epoch=0))
            assert row is not None
            assert (row.high_watermark, row.records) == (3, b"")
            assert follower.state() == (3, 3)
            # Nothing is new, so the response has no row.
            assert await follower.row() is None

    run(scenario())


def test_records_are_sent_again_only_on_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            await follower.brokers.produce("t", b"v", acks=1)
            assert await follower.row(at(0)) is not None
            await follower.brokers.produce("t", b"w", acks=1)
            assert await follower.row() is None
            row = await follower.row(at(0))
            assert row is not None
            assert len(records_of(row.records)) == 2

    run(scenario())


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (1, ErrorCode.FENCED_LEADER_EPOCH),
        (3, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_a_fetch_of_another_leader_epoch_never_counts(
    tmp_path: Path, epoch: int, code: ErrorCode
) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            await follower.brokers.elect("t", 1)
            await follower.brokers.elect("t", 1)
            await follower.brokers.produce("t", b"v", acks=1)
            row = await follower.row(at(1, epoch, last_epoch=2))
            assert row is not None
            assert (row.error_code, row.records) == (code, b"")
            assert follower.state() == (-1, 0)

    run(scenario())


def test_a_fetch_of_an_earlier_registration_never_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            await follower.brokers.produce("t", b"v", acks=1)
            follower.broker_epoch -= 1
            response = await follower.fetch(at(1, last_epoch=0))
            assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
            assert follower.state() == (-1, 0)

    run(scenario())


def test_an_unregistered_broker_gets_no_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            state = FetchRequest.ReplicaState(replica_id=99, replica_epoch=1 << 40)
            response = await follower.fetch(at(0), replica_state=state)
            assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
            assert len(follower.brokers[1].replicator.sessions) == 0

    run(scenario())


def test_a_diverged_log_gets_the_diverging_epoch_and_does_not_count(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            await follower.brokers.produce("t", b"a", acks=1)
            await follower.brokers.elect("t", 1)
            await follower.brokers.elect("t", 1)
            await follower.brokers.produce("t", b"b", acks=1)
            # Two records of an epoch in which the leader has no records.
            row = await follower.row(at(2, epoch=2, last_epoch=1))
            assert row is not None
            assert row.diverging_epoch == _Row.EpochEndOffset(epoch=0, end_offset=1)
            # More records of the latest epoch than the leader has.
            row = await follower.row(at(5, epoch=2, last_epoch=2))
            assert row is not None
            assert row.diverging_epoch == _Row.EpochEndOffset(epoch=2, end_offset=2)
            # Records of an unknown epoch.
            row = await follower.row(at(2, epoch=2))
            assert row is not None
            assert row.diverging_epoch == _Row.EpochEndOffset(epoch=2, end_offset=0)
            # An empty log that starts beyond the leader's end.
            row = await follower.row(_Wanted(partition=0, current_leader_epoch=2, fetch_offset=9))
            assert row is not None
            assert row.diverging_epoch == _Row.EpochEndOffset(epoch=2, end_offset=2)
            assert follower.state() == (-1, 0)

    run(scenario())


def test_a_log_that_ends_before_the_leaders_start_gets_the_log_start_offset(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            for _ in range(3):
                await follower.brokers.produce("t", b"v", acks=1)
            await follower.row(at(0))
            await follower.row(at(3, last_epoch=0))
            follower.leader.delete_records(2)
            row = await follower.row(at(1, last_epoch=0))
            assert row is not None
            assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert row.log_start_offset == 2
            assert follower.state() == (3, 3)

    run(scenario())


def test_records_wake_a_waiting_fetch_and_a_second_request_ends_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            await follower.row(at(0))
            waiting = follower.send(wait_ms=60_000)
            await follower.brokers.produce("t", b"v", acks=1)
            response = await waiting
            assert len(records_of(response.responses[0].partitions[0].records)) == 1
            waiting = follower.send(wait_ms=60_000)
            assert await follower.row(at(1, last_epoch=0)) is not None
            assert (await waiting).responses == []

    run(scenario())


def test_records_appended_while_a_fetch_is_processed_wake_it(tmp_path: Path) -> None:
    """A fetch commits a record. A callback for that offset appends to another partition, as a
    coordinator does. The same fetch gets the new records, not the next fetch after a long poll."""

    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            catalog = follower.brokers[1].catalog
            await catalog.create_topics([NewTopic("u", [[1, FOLLOWER]], {})])
            other = follower.brokers[1].partition("u")
            first = FetchRequest.Topic(topic_id=other.log.topic_id, partitions=[at(0)])
            await follower.fetch(topics=[first])
            await follower.row(at(0))
            await follower.brokers.produce("t", b"v", acks=1)
            await follower.fetch()

            def write() -> None:
                batch = memoryview(values_batch(b"w"))
                other.append(batch, check_produced(batch), acks_all=False)

            follower.leader.when_acknowledged(1, write, None, acks_all=True)
            response = await follower.fetch(at(1, last_epoch=0), wait_ms=600_000)
            found = [row for topic in response.responses for row in topic.partitions if row.records]
            assert [len(records_of(row.records)) for row in found] == [1]

    run(scenario())


def test_a_fetch_of_a_partition_the_leader_does_not_know_yet_waits(tmp_path: Path) -> None:
    """If it got an error, the follower would pause, and records would wait."""

    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            await follower.row(at(0))
            wanted = at(0)
            wanted.partition = 1
            overtaken = follower.send(wanted, wait_ms=600_000)
            waiting = follower.send(wait_ms=600_000)
            assert (await overtaken).responses == []
            catalog = follower.brokers[1].catalog
            await catalog.create_partitions([NewPartitions("t", 2, [[1, FOLLOWER]])])
            await follower.brokers.produce("t", b"v", partition=1, acks=1)
            (row,) = (await waiting).responses[0].partitions
            assert (row.partition_index, row.error_code) == (1, ErrorCode.NONE)
            assert len(records_of(row.records)) == 1

    run(scenario())


def test_a_fetch_of_a_later_epoch_waits_for_the_leader(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            await follower.brokers.produce("t", b"v", acks=1)
            waiting = follower.send(at(0, epoch=1), wait_ms=600_000)
            await follower.brokers.elect("t", 1)
            (row,) = (await waiting).responses[0].partitions
            assert row.error_code == ErrorCode.NONE
            assert len(records_of(row.records)) == 1

    run(scenario())


@pytest.mark.parametrize("wait_ms", [0, 50])
def test_a_fetch_of_a_later_epoch_fails_after_its_wait(tmp_path: Path, wait_ms: int) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            row = await follower.row(at(0, epoch=1), wait_ms=wait_ms)
            assert row is not None
            assert row.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    run(scenario())


def test_a_partition_that_is_no_longer_led_ends_the_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            await follower.row(at(0))
            waiting = follower.send(wait_ms=60_000)
            await follower.brokers.elect("t", FOLLOWER)
            row = (await waiting).responses[0].partitions[0]
            assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert row.current_leader == _Row.Leader(leader_id=FOLLOWER, leader_epoch=1)

    run(scenario())


def test_unknown_topics_and_replicas_are_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            unknown = FetchRequest.Topic(topic_id=b"?" * 16, partitions=[at(0)])
            response = await follower.fetch(topics=[unknown])
            row = response.responses[0].partitions[0]
            assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID
            (session,) = follower.brokers[1].replicator.sessions.of(FOLLOWER)
            assert len(session) == 0
            await follower.brokers.change("t", replicas=(1,), isr=(1,))
            row = await follower.row(at(0))
            assert row is not None
            assert row.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    run(scenario())


def test_invalid_session_ids_and_epochs_are_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            response = await follower.fetch(at(0), session_id=9, session_epoch=1)
            assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            follower.session_epoch = 0
            await follower.fetch(at(0))
            response = await follower.fetch(session_epoch=7)
            assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
            sessions = follower.brokers[1].replicator.sessions
            assert len(sessions) == 1
            # The session ends with the broker's registration.
            follower.brokers.store.transact([], [Delete(broker_key(FOLLOWER))])
            await until(lambda: len(sessions) == 0, "the session to end")
            assert follower.leader.readers == ()

    run(scenario())


def test_a_size_limit_starves_no_partition(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with follower_of(tmp_path) as follower:
            catalog = follower.brokers[1].catalog
            await catalog.create_topics([NewTopic("many", [[1, FOLLOWER]] * 3, {})])
            partitions = [follower.brokers[1].partition("many", n) for n in range(3)]
            for number in range(3):
                await follower.brokers.produce("many", b"x" * 1000, acks=1, partition=number)
            topic_id = partitions[0].log.topic_id
            wanted = [at(0) for _ in range(3)]
            for number, each in enumerate(wanted):
                each.partition = number
            topics = [FetchRequest.Topic(topic_id=topic_id, partitions=wanted)]
            served = []
            for _ in range(3):
                response = await follower.fetch(topics=topics, max_bytes=1)
                topics = []
                served += [
                    row.partition_index
                    for topic in response.responses
                    for row in topic.partitions
                    if row.records
                ]
            assert sorted(served) == [0, 1, 2]

    run(scenario())


class Scene:
    """A leader and a follower's session, on a manual clock. By default the leader is alone in the
    ISR."""

    def __init__(
        self,
        folder: Path,
        *,
        limit: ReplicaLimit,
        config: TopicConfig,
        isr: tuple[int, ...] = (1,),
    ) -> None:
        self.clock = StillClock()
        self.directory = LogDirectory.open(folder, UnsyncedDisk(), self.clock, random.Random(1))
        log = self.directory.log(TopicPartition("t", 0), TOPIC_ID, config)
        record = PartitionRecord(replicas=(1, FOLLOWER), leader=1, leader_epoch=0, isr=isr)
        self.partition = Partition(1, log, record, Host(self.clock), flushes_before_ack=False)
        self.partition.apply_state(record, 0)
        stats = ReplicationStats()
        self.isr = IsrChanges(refuse, [self.partition], self.clock, 10_000, stats, Supervisor())
        replicas = cast("Replicas", SimpleNamespace(find_by_id=lambda *_: self.partition))
        leader = LeaderContext(replicas, self.isr, self.clock, stats, limit, 1 << 20)
        self.session = FollowerSession(leader, FOLLOWER, 5, 1)

    def append(self, size: int = 1) -> None:
        batch = memoryview(values_batch(b"v" * size, timestamp=self.clock.now_ms))
        self.partition.append(batch, check_produced(batch), acks_all=False)

    def fetch(self, *wanted: _Wanted) -> None:
        topics = [FetchRequest.Topic(topic_id=TOPIC_ID, partitions=list(wanted))]
        self.session.apply_request(FetchRequest(topics=topics))

    def response_after(self, count: int, size: int, limits: RequestLimits) -> FetchResponse:
        """Append batches after the follower caught up; return the response a second later."""
        self.fetch(at(0, partition_max_bytes=10 << 20))
        assert self.session.collect(limits) is None
        for _ in range(count):
            self.append(size)
        self.clock.now_ms += 1000
        response = self.session.collect(limits)
        assert response is not None
        return response

    async def close(self) -> None:
        await self.isr.stop()
        self.session.close()
        self.directory.close(clean=False)


def test_a_waiting_follower_is_caught_up_until_the_next_append(tmp_path: Path) -> None:
    """Requests do not repeat idle partitions. The next append must not make the follower lag."""

    async def scenario() -> None:
        it = Scene(tmp_path, limit=ReplicaLimit(), config=TopicConfig())
        it.fetch(at(0))
        limits = RequestLimits(60_000, 1, 1 << 20)
        assert it.session.collect(limits) is None
        assert it.partition.leadership is not None
        follower = it.partition.leadership.followers[FOLLOWER]
        began = follower.caught_up_at
        kept = RecordedReplies()
        responses = kept.results
        it.session.wait(limits, kept.reply())
        it.clock.now_ms += 3_600_000
        it.session.respond_now()
        it.session.wait(limits, kept.reply())
        it.clock.now_ms += 3_600_000
        it.append()
        assert follower.caught_up_at == it.clock.monotonic() == began + 7200
        it.clock.now_ms += 5_000
        it.append()
        assert follower.caught_up_at == began + 7200
        await until(lambda: len(responses) == 2, "the response")
        await it.close()

    run(scenario())


def test_a_follower_that_catches_up_is_paced_while_producers_write(tmp_path: Path) -> None:
    async def scenario() -> None:
        it = Scene(tmp_path, limit=ReplicaLimit(), config=TopicConfig())
        # The minimum size is larger than one portion.
        limits = RequestLimits(60_000, 5 << 20, 10 << 20)
        response = it.response_after(12, 900_000, limits)
        # The portion is small, although the follower requests more.
        sent = response.responses[0].partitions[0].records
        assert sent
        assert len(sent) < 2 << 20
        it.fetch(at(len(records_of(sent)), last_epoch=0))
        assert it.session.collect(limits) is None
        kept = RecordedReplies()
        responses = kept.results
        it.session.wait(limits, kept.reply())
        # An append does not shorten the pause.
        it.append(10)
        await asyncio.sleep(0)
        assert not responses
        it.clock.now_ms += 1000
        await until(lambda: responses, "the pause to end")
        assert responses[0].responses[0].partitions[0].records
        await it.close()

    run(scenario())


def test_an_in_sync_follower_is_not_paced(tmp_path: Path) -> None:
    async def scenario() -> None:
        it = Scene(tmp_path, limit=ReplicaLimit(), config=TopicConfig(), isr=(1, FOLLOWER))
        response = it.response_after(5, 900_000, RequestLimits(60_000, 1, 10 << 20))
        assert len(records_of(response.responses[0].partitions[0].records)) == 5
        await it.close()

    run(scenario())


@pytest.mark.parametrize("replicas", [("*",), ("0:1",), (f"0:{FOLLOWER}",), ()])
def test_a_throttled_replica_is_delayed(tmp_path: Path, replicas: tuple[str, ...]) -> None:
    async def scenario() -> None:
        config = TopicConfig(leader_replication_throttled_replicas=replicas)
        it = Scene(tmp_path, limit=ReplicaLimit(1000), config=config)
        limits = RequestLimits(0, 1, 1 << 20)
        is_throttled = replicas in (("*",), ("0:1",))
        served = []
        for _ in range(8):
            it.append(900)
            it.fetch(at(len(served), last_epoch=0))
            response = it.session.collect(limits, is_final=True)
            assert response is not None
            served += records_of(response.responses[0].partitions[0].records)
            it.clock.now_ms += 250
        assert is_throttled == (len(served) < 8)
        # The delayed records arrive in the end.
        it.clock.now_ms += 60_000
        it.fetch(at(len(served), last_epoch=0))
        response = it.session.collect(limits, is_final=True)
        assert response is not None
        served += records_of(response.responses[0].partitions[0].records)
        assert len(served) == 8
        await it.close()

    run(scenario())
