"""Links to other brokers: items share requests, and fail if the other broker does not respond."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from millstream.broker import peer_link as link_module
from millstream.broker.peer_link import PeerApi, PeerConnector, PeerLink, PeerLinks, known_code
from millstream.env.supervisor import Supervisor
from millstream.metadata.cluster_record import BrokerRecord, Endpoint
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.model.error import ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.map import Map
from millstream.replication.peer import PeerError
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

ENDPOINT = Endpoint("PLAINTEXT", "nowhere", 9092)


class FakeApi(PeerApi[str]):
    """A heartbeat's group id carries the items."""

    version = 4
    response = HeartbeatResponse

    def __init__(self) -> None:
        self.responses: dict[str, Any] = {}

    def request(self, items: Sequence[str]) -> HeartbeatRequest:
        return HeartbeatRequest(group_id=",".join(items))

    def complete(self, items: Sequence[str], response: Any) -> None:
        self.responses |= dict.fromkeys(items, response)

    def fail(self, item: str, code: ErrorCode) -> None:
        self.responses[item] = code


class FakePeer:
    """Stands in for every connection."""

    def __init__(self) -> None:
        self.closed = False
        self.sent: list[tuple[str, asyncio.Future[Any]]] = []
        #: Number of connections made.
        self.connects = 0
        self.is_reachable = True
        self.bug: Exception | None = None

    async def connect(self, *_: object) -> FakePeer:
        self.connects += 1
        await asyncio.sleep(0)
        if self.bug is not None:
            raise self.bug
        if not self.is_reachable:
            raise PeerError("connection refused")
        self.closed = False
        return self

    def send(self, request: HeartbeatRequest, *_: object) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.sent.append((request.group_id, future))
        return future

    def close(self) -> None:
        self.closed = True
        for _, future in self.sent:
            if not future.done():
                future.set_exception(PeerError("closed"))


class World:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.peer = FakePeer()
        network: Any = None
        self.supervisor = Supervisor()
        connector = PeerConnector(network, "PLAINTEXT", "test", self.supervisor, CallbackFailures())
        self.link: PeerLink[str] = PeerLink(ENDPOINT, self.api, connector)
        self.links: PeerLinks[str] = PeerLinks(self.api, connector, image(1))

    @property
    def requests(self) -> list[str]:
        return [items for items, _ in self.peer.sent]


def image(*broker_ids: int) -> ClusterImage:
    brokers = {n: BrokerRecord(node_id=n, endpoints=(ENDPOINT,)) for n in broker_ids}
    return ClusterImage(brokers=Map(brokers))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    def run_body(body: Callable[[World], Awaitable[None]]) -> None:
        async def main() -> None:
            world = World()
            monkeypatch.setattr(link_module.Peer, "connect", world.peer.connect)
            await body(world)
            world.link.close()
            world.links.close()

        asyncio.run(main())

    return run_body


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_items_of_one_turn_share_a_request_and_a_connection(run: Any) -> None:
    async def body(world: World) -> None:
        for item in "abc":
            world.link.put(item)
        await turns()
        assert world.requests == ["a,b,c"]
        world.link.put("d")
        await turns()
        assert world.requests == ["a,b,c", "d"]
        for (_, future), response in zip(world.peer.sent, ("first", "second"), strict=True):
            future.set_result(response)
        await turns()
        assert world.api.responses == {"a": "first", "b": "first", "c": "first", "d": "second"}
        assert world.peer.connects == 1

    run(body)


def test_items_wait_while_enough_requests_are_in_flight(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_REQUESTS_MAX", 1)
    monkeypatch.setattr(link_module, "_REQUEST_ITEMS_MAX", 2)

    async def body(world: World) -> None:
        for item in "abcde":
            world.link.put(item)
        await turns()
        assert world.requests == ["a,b"]
        world.peer.sent[0][1].set_result("done")
        await turns()
        assert world.requests == ["a,b", "c,d"]
        world.peer.sent[1][1].set_result("done")
        await turns()
        assert world.requests == ["a,b", "c,d", "e"]

    run(body)


def test_an_item_that_cannot_be_delivered_fails(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_PENDING_MAX", 2)

    async def body(world: World) -> None:
        world.peer.is_reachable = False
        for item in "abc":
            world.link.put(item)
        # One item above the limit.
        assert world.api.responses == {"c": ErrorCode.NETWORK_EXCEPTION}
        await turns()
        assert world.api.responses == dict.fromkeys("abc", ErrorCode.NETWORK_EXCEPTION)
        # The next item connects again.
        world.peer.is_reachable = True
        world.link.put("d")
        await turns()
        assert world.requests == ["d"]
        world.peer.close()
        await turns()
        assert world.api.responses["d"] == ErrorCode.NETWORK_EXCEPTION
        world.link.put("e")
        await turns()
        assert (world.requests, world.peer.connects) == (["d", "e"], 3)

    run(body)


def test_a_missing_response_closes_the_connection(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_RESPONSE_S_MAX", 0.001)

    async def body(world: World) -> None:
        world.link.put("a")
        deadline = asyncio.get_running_loop().time() + 60
        while "a" not in world.api.responses:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.001)
        assert world.api.responses["a"] == ErrorCode.NETWORK_EXCEPTION
        assert world.peer.closed

    run(body)


def test_a_closed_link_fails_its_items(run: Any) -> None:
    async def body(world: World) -> None:
        world.link.put("a")
        await turns()
        world.link.put("b")
        world.link.close()
        await turns()
        world.link.put("c")
        assert world.api.responses == dict.fromkeys("abc", ErrorCode.NETWORK_EXCEPTION)
        assert world.requests == ["a"]

    run(body)


def test_a_broker_that_leaves_or_restarts_loses_its_link(run: Any) -> None:
    async def body(world: World) -> None:
        world.links.put(1, "a")
        world.links.put(2, "b")
        assert world.api.responses == {"b": ErrorCode.NETWORK_EXCEPTION}
        await turns()
        assert world.requests == ["a"]
        # The broker restarted: earlier items get no response.
        after = image(1, 2)
        world.links.apply_delta(after, ImageDelta(brokers=dict(after.brokers)))
        await turns()
        assert world.api.responses["a"] == ErrorCode.NETWORK_EXCEPTION
        world.links.put(2, "c")
        await turns()
        assert world.requests == ["a", "c"]

    run(body)


def test_an_error_code_of_a_newer_broker_is_unknown() -> None:
    assert known_code(3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert known_code(9999) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_bug_while_connecting_fails_pending_items(run: Any) -> None:
    async def body(world: World) -> None:
        world.peer.bug = RuntimeError("a bug")
        world.link.put("a")
        await turns()
        assert world.api.responses == {"a": ErrorCode.NETWORK_EXCEPTION}
        assert world.supervisor.failures["broker-link"] == 1
        world.peer.bug = None
        world.link.put("b")
        await turns()
        assert world.requests == ["b"]

    run(body)
