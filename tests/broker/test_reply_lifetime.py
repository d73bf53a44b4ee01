"""Responses and their files are released when they are sent or when the client disconnects.

The garbage collector is off, so their owners release them.
"""

from __future__ import annotations

import gc
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from harness.in_process.server_set import ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import (
    RawClient,
    fetch_request,
    produce_request,
    records_of,
    values_batch,
)
from harness.raw.raw_transaction import GROUP, find_coordinator
from millstream.broker.acknowledgement import Acknowledgement
from millstream.broker.handlers import fetch
from millstream.broker.session import _Slot
from millstream.log.files import FileHandle
from millstream.log.reading.slice import HeldSlice
from millstream.model.reply import Reply
from millstream.wire.messages.fetch import FetchRequest, FetchResponse
from millstream.wire.messages.find_coordinator import FindCoordinatorResponse
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.produce import ProduceResponse

NODE = 1
_names = (f"t{number}" for number in count())
#: Large enough to be sent from a file, and larger than the buffers of a socket.
LARGE = 300_000
HUGE = 8 << 20
#: The classes of all objects that are created for a request.
KINDS = (
    _Slot,
    Reply,
    HeldSlice,
    FetchResponse,
    ProduceResponse,
    JoinGroupResponse,
    FindCoordinatorResponse,
    fetch._Fetch,
    Acknowledgement,
)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSet]:
    folder: Path = tmp_path_factory.mktemp("lifetime")
    settings = {"log_flush_before_ack": "true", "message_max_bytes": str(2 * HUGE)}
    with ServerSet(folder, 1, **settings) as running:
        yield running


@pytest.fixture
def topic(brokers: ServerSet) -> str:
    name = next(_names)
    with brokers.client(NODE) as client:
        client.create_topic(name)
    return name


#: Objects left by earlier tests in this process, which are not counted.
_earlier: list[object] = []


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    _earlier[:] = [each for each in gc.get_objects() if type(each) in (*KINDS, FileHandle)]
    yield
    _earlier.clear()
    gc.enable()


def living(brokers: ServerSet) -> Counter[str]:
    """Return the number of live objects of requests by class, and of open files."""

    def look() -> Counter[str]:
        found = Counter[str]()
        earlier = set(map(id, _earlier))
        for each in gc.get_objects():
            kind = type(each)
            if id(each) in earlier:
                continue
            if kind in KINDS:
                found[kind.__name__] += 1
            elif kind is FileHandle and each.pins:
                found["pinned"] += each.pins
        return found

    return brokers.ask(look)


def nothing_is_left(brokers: ServerSet) -> None:
    """Check that nothing is left, after the loop iterations that detect a disconnect."""
    deadline = time.monotonic() + 10.0
    while (left := living(brokers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == {}


def large_batch(size: int = LARGE) -> bytearray:
    return values_batch(bytes(size))


def whole_topic(topic: str) -> FetchRequest:
    return fetch_request([(topic, 0, 0)], min_bytes=1, max_wait_ms=60_000, max_bytes=16 << 20)


def waiting_fetch(client: RawClient, topic: str) -> None:
    client.send(whole_topic(topic), 12)
    client.socket.settimeout(30)


def is_waiting(brokers: ServerSet, topic: str) -> bool:
    partition = brokers.services(NODE).replicas.find(topic, 0)
    return brokers.ask(lambda: bool(partition.watchers))


def test_nothing_is_left_after_a_fetch_that_waited(brokers: ServerSet, topic: str) -> None:
    with brokers.client(NODE) as reader, brokers.client(NODE) as writer:
        waiting_fetch(reader, topic)
        wait_until(lambda: is_waiting(brokers, topic), "the fetch to wait")
        assert living(brokers)
        assert writer.produce(topic, large_batch()).error_code == 0
        row = reader.receive().responses[0].partitions[0]
        assert [len(record.value or b"") for record in records_of(row.records)] == [LARGE]
        nothing_is_left(brokers)


def test_nothing_is_left_after_a_fetch_that_timed_out(brokers: ServerSet, topic: str) -> None:
    with brokers.client(NODE) as reader:
        assert reader.fetch(topic, 0, wait_ms_max=20).error_code == 0
        nothing_is_left(brokers)


def test_nothing_is_left_after_a_disconnect_during_a_fetch(brokers: ServerSet, topic: str) -> None:
    with brokers.client(NODE) as reader:
        waiting_fetch(reader, topic)
        wait_until(lambda: is_waiting(brokers, topic), "the fetch to wait")
    nothing_is_left(brokers)
    assert not is_waiting(brokers, topic)


def test_nothing_is_left_after_a_disconnect_with_an_unread_response(
    brokers: ServerSet, topic: str
) -> None:
    """Part of the first response was sent from its file; the second response waits behind it.

    Both requests leave in one write, so that the broker reads them together. After the first
    response it reads no further request: more than `WRITE_BUFFER_BYTES_MAX` is unsent."""
    with brokers.client(NODE) as reader, brokers.client(NODE) as writer:
        reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert writer.produce(topic, large_batch(HUGE)).error_code == 0
        reader.send_together([whole_topic(topic), whole_topic(topic)], 12)
        wait_until(lambda: living(brokers)["pinned"] == 2, "files to be held open")
    nothing_is_left(brokers)


def test_nothing_is_left_after_a_disconnect_with_a_response_held_back(
    brokers: ServerSet, topic: str
) -> None:
    with brokers.client(NODE) as reader, brokers.client(NODE) as writer:
        assert writer.produce(topic, large_batch()).error_code == 0
        end = fetch_request([(topic, 0, 1)], min_bytes=1, max_wait_ms=60_000)
        reader.send(end, 12)
        waiting_fetch(reader, topic)
        wait_until(lambda: living(brokers)["pinned"] == 1, "the second response to be ready")
    nothing_is_left(brokers)


def test_nothing_is_left_after_produces_that_waited_for_a_flush(
    brokers: ServerSet, topic: str
) -> None:
    with brokers.client(NODE) as writer:
        for _ in range(5):
            writer.send(produce_request(topic, values_batch(b"a")), 12)
        for _ in range(5):
            assert writer.receive().responses[0].partition_responses[0].error_code == 0
        nothing_is_left(brokers)


def test_nothing_is_left_after_a_disconnect_during_a_produce(
    brokers: ServerSet, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition keeps only the callback, until the high watermark reaches the offset."""
    partition = brokers.services(NODE).replicas.find(topic, 0)
    flushes: list[Callable[[], None]] = []
    real = type(partition._host).flush
    monkeypatch.setattr(
        type(partition._host), "flush", lambda *each: flushes.append(lambda: real(*each))
    )
    with brokers.client(NODE) as writer:
        writer.send(produce_request(topic, values_batch(b"a"), timeout_ms=60_000), 12)
        wait_until(lambda: flushes, "the batch to be appended")
        assert living(brokers)["ProduceResponse"] == 1
    wait_until(lambda: not living(brokers)["ProduceResponse"], "the response to be gone")
    assert living(brokers)["_Slot"] == 0
    brokers.ask(flushes[0])
    nothing_is_left(brokers)


def test_nothing_is_left_after_a_join_that_waits(brokers: ServerSet) -> None:
    def join(group_id: str, member_id: str = "") -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=group_id,
            member_id=member_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
        )

    with brokers.client(NODE) as first, brokers.client(NODE) as second:
        find_coordinator(first, "g", GROUP)

        def joined() -> Any:
            return first.call(join("g"), 3).error_code == 0

        wait_until(joined, "the group")
        # The second member waits for the first one, which does not rejoin.
        second.send(join("g"), 3)
        wait_until(lambda: living(brokers)["_Slot"] == 1, "the second to wait")
    # The member keeps its reply, which is empty, until the rebalance completes.
    wait_until(lambda: not living(brokers) - Counter({"Reply": 9}), "the request to be gone")
