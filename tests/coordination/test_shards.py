"""When a coordinator serves: what it has loaded, and whether it may; that of transactions here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.model.error import BrokerError, ErrorCode
from millstream.replication.partition import Partition
from millstream.transactions.transaction_coordinator import InitProducerOptions
from transactions.coordinator_home import CoordinatorHome

TIMEOUT_MS = 60_000
Body = Callable[[CoordinatorHome], Awaitable[None]]


def run(path: Path, body: Body) -> None:
    async def main() -> None:
        home = CoordinatorHome(path)
        home.open()
        try:
            await body(home)
        finally:
            await home.close()

    asyncio.run(main())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def loaded(home: CoordinatorHome, transactional_id: str = "x") -> None:
    for _ in range(10_000):
        await asyncio.sleep(0)
        if code_of(home, transactional_id) != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return
    raise AssertionError("not loaded")


def init(home: CoordinatorHome, name: str) -> None:
    home.coordinator.init_producer(name, InitProducerOptions(TIMEOUT_MS), None, 7, home.reply(name))
    home.coordinator.flush(name)


def code_of(home: CoordinatorHome, transactional_id: str = "x") -> ErrorCode:
    try:
        home.shards.of(transactional_id)
    except BrokerError as error:
        return error.code
    return ErrorCode.NONE


def test_what_is_not_committed_is_not_served(tmp_path: Path) -> None:
    """An earlier leader has appended what nobody may have; the next one must not tell of it, nor
    of a state before it."""

    async def body(home: CoordinatorHome) -> None:
        home.follow(home.picture(isr=(1, 2), epoch=1))
        init(home, "x")
        assert home.answers == {}
        home.follow(home.picture(isr=(1, 2), epoch=2))
        assert home.answers["x"] == ErrorCode.NOT_COORDINATOR
        await turns()
        assert code_of(home) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        home.follow(home.picture(isr=(1,), epoch=2))
        await loaded(home)
        assert home.coordinator.describe("x").producer == ProducerIdAndEpoch(7, 0)

    run(tmp_path, body)


def test_a_wait_for_replicas_ends_with_the_leadership(tmp_path: Path) -> None:
    async def body(home: CoordinatorHome) -> None:
        home.follow(home.picture(isr=(1, 2), epoch=1))
        init(home, "x")
        home.follow(home.picture(isr=(1, 2), epoch=2))
        home.follow(home.picture(leader=2, isr=(1, 2), epoch=3))
        assert code_of(home) == ErrorCode.NOT_COORDINATOR
        home.follow(home.picture(isr=(1,), epoch=4))
        await loaded(home)
        assert code_of(home) == ErrorCode.NONE

    run(tmp_path, body)


def test_a_fenced_broker_coordinates_nothing_that_others_could(tmp_path: Path) -> None:
    async def body(home: CoordinatorHome) -> None:
        home.follow(home.picture(isr=(1, 2), epoch=1))
        init(home, "x")
        home.replicas.fence(True)
        home.shards.match_leadership(home.image)
        assert home.answers["x"] == ErrorCode.NOT_COORDINATOR
        assert code_of(home) == ErrorCode.NOT_COORDINATOR
        home.replicas.fence(False)
        home.shards.match_leadership(home.image)
        assert code_of(home) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        home.follow(home.picture(isr=(1,), epoch=1))
        await loaded(home)
        assert code_of(home) == ErrorCode.NONE
        home.replicas.fence(True)
        home.shards.match_leadership(home.image)
        assert code_of(home) == ErrorCode.NONE

    run(tmp_path, body)


def test_a_partition_that_can_t_be_written_is_not_loaded_without_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, "too few are left")

    async def body(home: CoordinatorHome) -> None:
        init(home, "x")
        await turns()
        rests: list[Callable[[], None]] = []
        monkeypatch.setattr(
            asyncio.get_running_loop(),
            "call_later",
            lambda _, callback, *arguments: rests.append(lambda: callback(*arguments)),
        )

        def init_again(name: str) -> None:
            home.coordinator.init_producer(
                "x", InitProducerOptions(TIMEOUT_MS), None, 7, home.reply(name)
            )
            home.coordinator.flush("x")

        with monkeypatch.context() as broken:
            broken.setattr(Partition, "append", fail)
            for name in ("first", "second"):
                init_again(name)
                assert home.answers[name] == ErrorCode.COORDINATOR_NOT_AVAILABLE
                if name == "first":
                    # It is back at once.
                    await loaded(home)
                    assert rests == []
        await turns()
        assert code_of(home) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        (end_rest,) = rests
        end_rest()
        await loaded(home)
        init_again("last")
        assert home.answers["last"] == ProducerIdAndEpoch(7, 1)

    run(tmp_path, body)
