"""Loading, closing and reloading of shards, tested with the transaction coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harness.in_process.replica_home import run_home, turns, turns_until
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.model.error import BrokerError, ErrorCode
from millstream.replication.partition import Partition
from millstream.transactions.transaction_coordinator import InitProducerOptions
from transactions.coordinator_home import TransactionHome

TIMEOUT_MS = 60_000
Body = Callable[[TransactionHome], Awaitable[None]]


def run(path: Path, body: Body) -> None:
    run_home(TransactionHome(path), body)


async def loaded(home: TransactionHome, transactional_id: str = "x") -> None:
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await turns_until(lambda: code_of(home, transactional_id) != loading, "not loaded")


def init(home: TransactionHome, name: str) -> None:
    home.coordinator.init_producer(name, InitProducerOptions(TIMEOUT_MS), None, 7, home.reply(name))
    home.coordinator.flush(name)


def code_of(home: TransactionHome, transactional_id: str = "x") -> ErrorCode:
    try:
        home.shards.of(transactional_id)
    except BrokerError as error:
        return error.code
    return ErrorCode.NONE


def test_a_shard_is_not_served_before_all_its_records_are_committed(tmp_path: Path) -> None:
    """An earlier leader has appended records that are not committed. The next leader serves neither
    these records nor the state before them."""

    async def body(home: TransactionHome) -> None:
        home.apply_image(home.picture(isr=(1, 2), epoch=1))
        init(home, "x")
        assert home.responses == {}
        home.apply_image(home.picture(isr=(1, 2), epoch=2))
        assert home.responses["x"] == ErrorCode.NOT_COORDINATOR
        await turns(20)
        assert code_of(home) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        home.apply_image(home.picture(isr=(1,), epoch=2))
        await loaded(home)
        assert home.coordinator.describe("x").producer == ProducerIdAndEpoch(7, 0)

    run(tmp_path, body)


def test_a_wait_for_replicas_ends_with_the_leadership(tmp_path: Path) -> None:
    async def body(home: TransactionHome) -> None:
        home.apply_image(home.picture(isr=(1, 2), epoch=1))
        init(home, "x")
        home.apply_image(home.picture(isr=(1, 2), epoch=2))
        home.apply_image(home.picture(leader=2, isr=(1, 2), epoch=3))
        assert code_of(home) == ErrorCode.NOT_COORDINATOR
        home.apply_image(home.picture(isr=(1,), epoch=4))
        await loaded(home)
        assert code_of(home) == ErrorCode.NONE

    run(tmp_path, body)


def test_a_fenced_broker_closes_its_shards(tmp_path: Path) -> None:
    async def body(home: TransactionHome) -> None:
        home.apply_image(home.picture(isr=(1, 2), epoch=1))
        init(home, "x")
        home.replicas.fence(True)
        home.shards.match_leadership(home.image)
        assert home.responses["x"] == ErrorCode.NOT_COORDINATOR
        assert code_of(home) == ErrorCode.NOT_COORDINATOR
        home.replicas.fence(False)
        home.shards.match_leadership(home.image)
        assert code_of(home) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        home.apply_image(home.picture(isr=(1,), epoch=1))
        await loaded(home)
        assert code_of(home) == ErrorCode.NONE
        home.replicas.fence(True)
        home.shards.match_leadership(home.image)
        assert code_of(home) == ErrorCode.NONE

    run(tmp_path, body)


def test_repeated_append_failures_delay_the_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, "too few are left")

    async def body(home: TransactionHome) -> None:
        init(home, "x")
        await turns(20)
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
                assert home.responses[name] == ErrorCode.COORDINATOR_NOT_AVAILABLE
                if name == "first":
                    # The first reload is immediate.
                    await loaded(home)
                    assert rests == []
        await turns(20)
        assert code_of(home) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        (end_rest,) = rests
        end_rest()
        await loaded(home)
        init_again("last")
        assert home.responses["last"] == ProducerIdAndEpoch(7, 1)

    run(tmp_path, body)
