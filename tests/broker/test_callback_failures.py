"""Every kind of callback raises once: the failure is counted, and the other callbacks are called.

Callbacks behind which a client's request waits are in `test_fault_injection.py`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.test_peer_link import ENDPOINT, FakeApi, FakePeer
from groups.coordinator_home import GroupHome, ReplyResults, commit_of
from harness.in_process.replica_home import ReplicaHome, picture
from harness.logged import tracebacks
from harness.raw.raw_client import values_batch
from millstream.broker import peer_link as link_module
from millstream.broker.peer_link import PeerConnector, PeerLink
from millstream.coordination import shards as shards_module
from millstream.coordination.shard import ShardState
from millstream.env.supervisor import Supervisor
from millstream.groups.group_shard import GroupShard
from millstream.log.log import PartitionLog
from millstream.model.error import ErrorCode
from millstream.model.failure import CallbackFailures, CallbackKind
from millstream.net.gate import ConnectionLimits, Gate
from millstream.records.batch import read_header
from millstream.replication import replicas as replicas_module
from millstream.replication.partition import Partition
from millstream.replication.waiting import OffsetWaiters

TOPICS = (("a", b"a" * 16, 1), ("b", b"b" * 16, 1))


class Once:
    """Wraps a function; the first call raises."""

    def __init__(self, call: Callable[..., Any] = lambda *_: None) -> None:
        self.calls = 0
        self._call = call

    def __call__(self, *arguments: Any, **others: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise OSError("a fault that the test asked for")
        return self._call(*arguments, **others)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], Any]) -> None:
    deadline = asyncio.get_running_loop().time() + 30
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)


def append(partition: Partition) -> None:
    batch = values_batch(b"x", timestamp=1)
    partition.append(memoryview(batch), read_header(batch), acks_all=True)


class Watcher:
    def __init__(self, wake: Callable[[], None]) -> None:
        self.more_readable = wake

    def failed(self, error: Exception) -> None:
        raise AssertionError from error


class Reader:
    def __init__(self, call: Callable[..., None]) -> None:
        self.more_appended = self.changed = call


Patch = pytest.MonkeyPatch


async def offset_waiter(path: Path, patch: Patch) -> CallbackFailures:
    for fire in (lambda waiters: waiters.advance(1), OffsetWaiters.fire_all):
        failures, call = CallbackFailures(), Once()
        waiters = OffsetWaiters(failures, "t-0")
        waiters.add(1, call, None)
        waiters.add(1, call, None)
        fire(waiters)
        assert call.calls == 2
        assert len(waiters) == 0
    return failures


async def fetch_wake_up(path: Path, patch: Patch) -> CallbackFailures:
    """The error response fails as well."""
    replicas = ReplicaHome(path, picture(*TOPICS)).open_replicas()
    call = Once()
    for name, _, _ in TOPICS:
        replicas.find(name, 0).watch(Watcher(call))
        append(replicas.find(name, 0))
    await turns()
    assert call.calls == 2
    return replicas.failures


async def follower_session(path: Path, patch: Patch) -> CallbackFailures:
    replicas = ReplicaHome(path, picture(*TOPICS)).open_replicas()
    partition, call = replicas.find("a", 0), Once()
    partition.readers = (Reader(call), Reader(call))
    append(partition)
    # Both were notified of the records and of the new high watermark.
    assert call.calls == 4
    assert partition.high_watermark == 1
    return replicas.failures


async def leadership(path: Path, patch: Patch) -> CallbackFailures:
    patch.setattr(replicas_module, "_RETRY_S", 0.001)
    home = ReplicaHome(path, picture(*TOPICS, leader=2, isr=(1, 2)))
    replicas = home.open_replicas()
    both = [replicas.find(name, 0) for name, _, _ in TOPICS]
    patch.setattr(PartitionLog, "assign_epoch", Once(lambda *_: None))
    home.apply_image(picture(*TOPICS, leader=1, isr=(1, 2), epoch=1))
    assert sorted(each.is_leader for each in both) == [False, True]
    await until(lambda: all(each.is_leader for each in both))
    return replicas.failures


async def flush(path: Path, patch: Patch) -> CallbackFailures:
    replicas = ReplicaHome(path, picture(*TOPICS)).open_replicas()
    call = Once()
    patch.setattr(Partition, "flushed", lambda *_: call())
    for name, _, _ in TOPICS:
        append(replicas.find(name, 0))
        replicas.flush(replicas.find(name, 0))
    await until(lambda: call.calls == 2)
    return replicas.failures


async def journal(path: Path, patch: Patch) -> CallbackFailures:
    home, responses = GroupHome(path), ReplyResults()
    home.open()
    real = Partition.append
    call = Once(real)
    patch.setattr(Partition, "append", lambda *each, **others: call(*each, **others))
    groups = ["g", next(name for name in map(str, range(99)) if _apart(home, name, "g"))]
    for name in groups:
        home.coordinator.commit(commit_of(name, ("t", 0, 5)), responses.reply(name))
    await turns()
    assert responses.got == {groups[0]: ErrorCode.NOT_COORDINATOR, groups[1]: None}
    # The shard was loaded again, and serves.
    home.coordinator.commit(commit_of("g", ("t", 0, 5)), responses.reply("once more"))
    await turns()
    assert responses.got["once more"] is None
    await home.close()
    return home.replicas.failures


def _apart(home: GroupHome, one: str, other: str) -> bool:
    return home.shards.index_of(one) != home.shards.index_of(other)


async def timer(path: Path, patch: Patch) -> CallbackFailures:
    home = GroupHome(path)
    home.open()
    call = Once()
    patch.setattr(type(home.shards), "_expire_timer", lambda *_: call())
    for member in ("one", "two"):
        home.shards._set_timer((0, "g", ("session", member)), home.shards.now_ms + 5)
    home.pass_time(10)
    assert call.calls == 2
    await home.close()
    return home.replicas.failures


async def shard(path: Path, patch: Patch) -> CallbackFailures:
    home = GroupHome(path)
    home.open()
    shards = list(home.shards._shards.values())
    patch.setattr(type(shards[0]), "close", call := Once())
    home.apply_image(home.picture(leader=2, isr=(1, 2), epoch=1))
    assert call.calls == len(shards) > 1
    assert home.shards._shards == {}
    await home.close()
    return home.replicas.failures


async def shard_opening(path: Path, patch: Patch) -> CallbackFailures:
    """A shard that cannot be opened is opened later; the others serve at once."""
    patch.setattr(shards_module, "_LOAD_RETRY_S", 0.001)
    home = GroupHome(path)
    opened = Once(GroupShard.open)
    patch.setattr(GroupShard, "open", lambda *each: opened(*each))
    home.open()
    states = [each.state for each in home.shards._shards.values()]
    assert states.count(ShardState.ACTIVE) == len(states) - 1
    await until(
        lambda: all(each.state is ShardState.ACTIVE for each in home.shards._shards.values())
    )
    await home.close()
    return home.replicas.failures


async def transaction_end(path: Path, patch: Patch) -> CallbackFailures:
    from transactions.coordinator_home import TransactionHome

    home = TransactionHome(path)
    home.open()
    found, call = home.shards.of("x"), Once()
    for _ in range(2):
        found.when_ended("x", lambda: call())
    found._notify_waiting("x")
    assert call.calls == 2
    await home.close()
    return home.replicas.failures


async def link(path: Path, patch: Patch) -> CallbackFailures:
    api, peer, failures = FakeApi(), FakePeer(), CallbackFailures()
    patch.setattr(link_module.Peer, "connect", peer.connect)
    patch.setattr(api, "complete", Once(api.complete))
    network: Any = None
    connector = PeerConnector(network, "PLAINTEXT", "test", Supervisor(), failures)
    one: PeerLink[str] = PeerLink(ENDPOINT, api, connector)
    for number, item in enumerate(("first", "second")):
        one.put(item)
        await turns()
        peer.sent[number][1].set_result("it")
        await turns()
    assert api.responses == {"first": ErrorCode.UNKNOWN_SERVER_ERROR, "second": "it"}
    one.close()
    return failures


async def connection(path: Path, patch: Patch) -> CallbackFailures:
    failures, call = CallbackFailures(), Once()
    gate = Gate(ConnectionLimits(request_bytes_max=100), failures)
    taken = gate.reserve(100)
    assert taken is not None
    gate.wait(10, call)
    gate.wait(10, call)
    gate.release(taken)
    assert call.calls == 2
    return failures


Scenario = Callable[[Path, Patch], Awaitable[CallbackFailures]]


async def _counts(scenario: Scenario, path: Path, patch: Patch) -> Counter[str]:
    return (await scenario(path, patch)).counts


SCENARIOS: dict[CallbackKind, Scenario] = {
    CallbackKind.OFFSET_WAITER: offset_waiter,
    CallbackKind.FETCH_WAKE_UP: fetch_wake_up,
    CallbackKind.FOLLOWER_SESSION: follower_session,
    CallbackKind.LEADERSHIP: leadership,
    CallbackKind.FLUSH: flush,
    CallbackKind.JOURNAL: journal,
    CallbackKind.TIMER: timer,
    CallbackKind.SHARD: shard,
    CallbackKind.TRANSACTION_END: transaction_end,
    CallbackKind.LINK: link,
    CallbackKind.CONNECTION: connection,
}


def test_a_coordinators_partition_that_can_t_be_opened_is_tried_again(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    failures = asyncio.run(_counts(shard_opening, tmp_path, monkeypatch))
    assert failures == {CallbackKind.SHARD: 1}


def test_every_kind_has_a_scenario() -> None:
    # Handlers fail in `test_fault_injection.py`.
    assert SCENARIOS.keys() | {CallbackKind.HANDLER} == set(CallbackKind)


@pytest.mark.parametrize("kind", SCENARIOS)
def test_a_callback_that_raises_does_not_affect_the_others(
    kind: CallbackKind, tmp_path: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    assert asyncio.run(_counts(SCENARIOS[kind], tmp_path, monkeypatch)) == {kind: 1}
    assert "a fault that the test asked for" in tracebacks(caplog)
