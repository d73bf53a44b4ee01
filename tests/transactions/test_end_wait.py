"""Actions that wait until transactions have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import uvloop

from millstream.model.error import ErrorCode
from millstream.model.failure import CallbackFailures
from millstream.model.reply import Reply, ReplyKind
from millstream.transactions.end_wait import EndWait

LONG_S = 90.0


class FakeEndings:
    """Transactions that the test ends."""

    def __init__(self, *ending: str) -> None:
        self.callbacks: dict[str, list[Callable[[], None]]] = {name: [] for name in ending}

    def is_ending(self, transactional_id: str) -> bool:
        return transactional_id in self.callbacks

    def when_ended(self, transactional_id: str, callback: Callable[[], None]) -> Callable[[], None]:
        callbacks = self.callbacks[transactional_id]
        callbacks.append(callback)
        return lambda: callbacks.remove(callback)

    def end(self, transactional_id: str) -> None:
        for callback in self.callbacks.pop(transactional_id):
            callback()


def reply() -> Reply[Any]:
    """Return a reply whose result is not checked."""
    return Reply(ReplyKind.ADMISSION, CallbackFailures(), lambda _: None)


def test_nothing_waits_for_a_transaction_that_is_not_ending() -> None:
    async def main() -> None:
        acted: list[str] = []
        EndWait(FakeEndings(), LONG_S).add("x", reply(), lambda: acted.append("x"))
        assert acted == ["x"]

    asyncio.run(main())


def test_each_action_waits_for_its_own_transaction() -> None:
    async def main() -> None:
        endings = FakeEndings("x", "y")
        acted: list[str] = []
        wait = EndWait(endings, LONG_S)
        for name in "xy":
            wait.add(name, reply(), lambda name=name: acted.append(name))  # type: ignore[misc]
        assert acted == []
        endings.end("y")
        assert acted == ["y"]
        endings.end("x")
        assert acted == ["y", "x"]

    asyncio.run(main())


def test_the_deadline_ends_all_waits() -> None:
    async def main() -> None:
        endings = FakeEndings("x")
        acted = asyncio.Event()
        EndWait(endings, 0.001).add("x", reply(), acted.set)
        await asyncio.wait_for(acted.wait(), LONG_S)
        assert endings.callbacks == {"x": []}

    asyncio.run(main())


def test_a_response_does_not_wait_long_for_the_slowest_transaction() -> None:
    async def main() -> None:
        endings = FakeEndings("fast", "slow")
        acted = asyncio.Event()
        wait = EndWait(endings, 10 * LONG_S)
        wait.add("fast", reply(), lambda: None)
        wait.add("slow", reply(), acted.set)
        endings.end("fast")
        await asyncio.wait_for(acted.wait(), LONG_S)

    asyncio.run(main())


def test_an_expired_deadline_does_not_wait() -> None:
    """Runs on the event loop that brokers use."""

    async def main() -> None:
        acted = asyncio.Event()
        wait = EndWait(FakeEndings("x"), -1.0)
        wait.add("y", reply(), lambda: None)
        wait.add("x", reply(), acted.set)
        await asyncio.wait_for(acted.wait(), LONG_S)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_an_action_that_raises_fails_only_its_request() -> None:
    async def main() -> None:
        endings = FakeEndings("x")
        codes: list[ErrorCode] = []
        acted: list[str] = []
        wait = EndWait(endings, LONG_S)
        refused: Reply[Any] = Reply(ReplyKind.ADMISSION, CallbackFailures(), codes.append)
        wait.add("x", refused, lambda: [].pop())
        wait.add("x", reply(), lambda: acted.append("x"))
        endings.end("x")
        assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR]
        assert acted == ["x"]

    asyncio.run(main())
