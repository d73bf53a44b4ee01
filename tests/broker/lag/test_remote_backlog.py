"""Queries to leaders on other brokers: their wire format, and queries without a response."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.lag.lag_home import World, run
from harness.in_process.server_set import ServerSet
from harness.raw.raw_client import Closed, RawClient, values_batch
from millstream.broker.handlers import describe_backlog
from millstream.broker.lag.partition_backlog import (
    UNLIMITED,
    Backlog,
    KnownRecord,
    PartitionBacklogs,
)
from millstream.broker.lag.remote_backlog import (
    BacklogApi,
    BacklogQuery,
    RemoteBacklogs,
    backlog_of,
)
from millstream.broker.peer_link import PeerConnector, PeerLinks
from millstream.env.supervisor import Supervisor
from millstream.metadata.image import EMPTY_IMAGE
from millstream.model.error import ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.wire.api import PRIVATE_FROM, ApiKey
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.describe_backlog import (
    DescribeBacklogRequest,
    DescribeBacklogResponse,
)
from millstream.wire.schema import codec

ID = bytes(range(16))
OTHER_ID = bytes(range(1, 17))
_Topic = DescribeBacklogResponse.Topic


def ask(*queries: BacklogQuery, links: Any, timeout_s: float = 60.0) -> None:
    async def main() -> None:
        await RemoteBacklogs(links).query(queries, timeout_s)

    asyncio.run(main())


class Mailbox:
    """Keeps the items put into it; `respond` is called in the next turn of the loop."""

    def __init__(self, respond: Any = None) -> None:
        self.items: dict[int, list[BacklogQuery]] = {}
        self._respond = respond

    def put(self, broker_id: int, item: BacklogQuery) -> None:
        if not self.items and self._respond is not None:
            asyncio.get_running_loop().call_soon(lambda: self._respond(self))
        self.items.setdefault(broker_id, []).append(item)


@pytest.mark.parametrize(
    "backlog",
    [
        Backlog(5, 5),
        Backlog(5, 9),
        Backlog(5, 9, True, 1_700_000_000_000, 12.5),
        Backlog(5, 9, True, 0, 0.0),
        Backlog(5, 9, True, None, UNLIMITED),
        Backlog(5, 9, True, None, None),
    ],
)
def test_a_backlog_survives_the_wire(backlog: Backlog) -> None:
    row = _Topic.Position(partition_index=1, committed_offset=5)
    describe_backlog._fill(row, backlog)
    response = DescribeBacklogResponse(topics=[_Topic(topic_id=ID, positions=[row])])
    encoded = b"".join(codec(DescribeBacklogResponse, 0).encode(response))
    decoded = codec(DescribeBacklogResponse, 0).decode(encoded)
    assert backlog_of(decoded.topics[0].positions[0]) == backlog


def test_an_endless_headroom_stays_within_the_protocol() -> None:
    row = _Topic.Position()
    describe_backlog._fill(row, Backlog(0, 1, True, 0, 1e300))
    response = DescribeBacklogResponse(topics=[_Topic(topic_id=ID, positions=[row])])
    assert b"".join(codec(DescribeBacklogResponse, 0).encode(response))
    assert (backlog_of(row).headroom_seconds or 0) > 1e15


def test_positions_of_a_topic_share_its_row() -> None:
    queries = [
        BacklogQuery(2, (ID, 0, 5), None),
        BacklogQuery(2, (OTHER_ID, 0, 5), KnownRecord(7, 1234)),
        BacklogQuery(2, (ID, 0, 6), None),
    ]
    request = BacklogApi().request(queries)
    assert [(topic.topic_id, len(topic.positions)) for topic in request.topics] == [
        (ID, 2),
        (OTHER_ID, 1),
    ]
    (known,) = request.topics[1].positions
    assert (known.known_offset, known.known_timestamp) == (7, 1234)


def test_each_query_gets_its_own_response() -> None:
    queries = [BacklogQuery(2, (ID, number, 5), None) for number in range(4)]

    def respond(links: Mailbox) -> None:
        rows = [
            _Topic.Position(partition_index=1, committed_offset=5, error_code=32_000),
            _Topic.Position(partition_index=0, committed_offset=5, offset=5, end_offset=5),
            _Topic.Position(
                partition_index=3,
                committed_offset=5,
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ),
        ]
        response = DescribeBacklogResponse(topics=[_Topic(topic_id=ID, positions=rows)])
        BacklogApi().complete(links.items[2], response)

    ask(*queries, links=Mailbox(respond))
    assert queries[0].backlog == Backlog(5, 5)
    assert [each.error for each in queries] == [
        None,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]


def test_a_query_has_a_deadline_and_a_late_response_changes_nothing() -> None:
    prompt, late = BacklogQuery(2, (ID, 0, 5), None), BacklogQuery(3, (ID, 1, 5), None)
    ask(
        prompt,
        late,
        links=Mailbox(lambda links: links.items[2][0].succeed(Backlog(5, 6))),
        timeout_s=0.01,
    )
    assert (prompt.backlog, prompt.error) == (Backlog(5, 6), None)
    assert (late.backlog, late.error) == (None, ErrorCode.REQUEST_TIMED_OUT)
    late.succeed(Backlog(5, 6))
    assert late.backlog is None


def test_a_stopped_broker_fails_at_once() -> None:
    async def main() -> None:
        network: Any = None
        connector = PeerConnector(network, "PLAINTEXT", "test", Supervisor(), CallbackFailures())
        links = PeerLinks(BacklogApi(), connector, EMPTY_IMAGE)
        query = BacklogQuery(2, (ID, 0, 5), None)
        await RemoteBacklogs(links).query([query], 60)
        assert query.error == ErrorCode.NETWORK_EXCEPTION

    asyncio.run(main())


# The broker's side


def describe(client: RawClient, *positions: tuple[bytes, int, int]) -> Any:
    topics = [
        DescribeBacklogRequest.Topic(
            topic_id=topic_id,
            positions=[
                DescribeBacklogRequest.Topic.Position(
                    partition_index=number, committed_offset=offset
                )
            ],
        )
        for topic_id, number, offset in positions
    ]
    response = client.call(DescribeBacklogRequest(topics=topics), 0)
    return [topic.positions[0] for topic in response.topics]


def test_a_leader_describes_what_it_leads(tmp_path: Path) -> None:
    with ServerSet(tmp_path, count=2, default_replication_factor="2") as brokers:
        with brokers.client(1) as client:
            client.create_topic("t", 1, {"retention.ms": 3_600_000}, replication_factor=2)
        brokers.lead("t", 0, 2)
        topic = brokers.ask(lambda: brokers._topic("t"))
        assert topic is not None
        with brokers.client(1) as other, brokers.client(2) as leader:
            assert leader.produce("t", values_batch(b"a", b"b", b"c")).error_code == 0
            positions = [(topic.topic_id, 0, 1), (topic.topic_id, 0, 3)]
            unread, read = describe(leader, *positions)
            assert (unread.error_code, unread.offset, unread.end_offset) == (0, 1, 3)
            assert unread.has_unread
            assert unread.first_timestamp > 0
            # The batch has the time of its creation plus a millisecond for each later record.
            assert 0 < unread.headroom_ms <= 3_600_001
            assert (read.end_offset, read.has_unread, read.headroom_ms) == (3, False, -1)
            rows = describe(other, *positions) + describe(leader, (ID, 0, 1))
            assert {row.error_code for row in rows} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
            assert [row.committed_offset for row in rows] == [1, 3, 1]
            listed = leader.call(ApiVersionsRequest(), 0).api_keys
            assert all(each.api_key < PRIVATE_FROM for each in listed)
            assert ApiKey.DESCRIBE_BACKLOG >= PRIVATE_FROM


def test_too_many_positions_close_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe_backlog, "POSITIONS_MAX", 2)
    with ServerSet(tmp_path, count=1) as brokers, brokers.client(1) as client:
        assert len(describe(client, (ID, 0, 0), (ID, 1, 0))) == 2
        with pytest.raises(Closed):
            describe(client, (ID, 0, 0), (ID, 1, 0), (ID, 2, 0))


def test_rates_are_sampled_for_other_brokers(tmp_path: Path) -> None:
    """A broker that serves no metrics samples the rates for other brokers."""

    async def body(world: World) -> None:
        backlogs = PartitionBacklogs(world.replicas, world.clock)
        world.produce("t")
        backlogs.start(1, Supervisor())
        async with asyncio.timeout(60):
            while not backlogs.rates.bytes_per_second(world.partition_of("t").topic_partition):
                world.produce("t", value=b"x" * 1000)
                world.clock.now_ms += 1000
                await asyncio.sleep(0.001)
        await backlogs.stop()

    run(World(tmp_path), body)
