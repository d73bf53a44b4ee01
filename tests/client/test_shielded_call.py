from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from millstream.client import AsyncConsumer, BrokerError
from millstream.client.shielded_call import shielded


@pytest.mark.parametrize("error", [None, BrokerError("no response")])
def test_a_call_goes_on_when_its_wait_is_cancelled(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    unhandled: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        call: asyncio.Future[int] = loop.create_future()
        wait = asyncio.ensure_future(shielded(call))
        await asyncio.sleep(0)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        assert not call.cancelled()
        if error is None:
            call.set_result(1)
        else:
            call.set_exception(error)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert unhandled == []
    expected = [] if error is None else ["A call that was cancelled has failed: no response"]
    assert caplog.messages == expected


def test_the_result_and_the_error_are_those_of_the_call() -> None:
    async def main() -> None:
        call: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        call.set_result(1)
        assert await shielded(call) == 1
        failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        failed.set_exception(BrokerError("no response"))
        with pytest.raises(BrokerError, match="no response"):
            await shielded(failed)

    asyncio.run(main())


def test_the_error_of_a_cancelled_call_of_a_consumer_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio would report an exception that was never retrieved, with a traceback."""

    async def main() -> None:
        async with AsyncConsumer("127.0.0.1:1", topics=["t"], group_id="g") as consumer:
            loop = asyncio.get_running_loop()
            may_fail = asyncio.Event()

            def fail() -> None:
                asyncio.run_coroutine_threadsafe(may_fail.wait(), loop).result(60)
                raise BrokerError("no response")

            monkeypatch.setattr(consumer._core, "committed", fail)
            call = asyncio.ensure_future(consumer.committed())
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            may_fail.set()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    named = [each for each in caplog.records if each.name in ("asyncio", shielded.__module__)]
    assert [each.getMessage() for each in named] == [
        "A call that was cancelled has failed: no response"
    ]
