"""`AsyncAdmin`: the same methods as `Admin`, and an event loop that never waits."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable

import pytest

from millstream.client import Admin, AsyncAdmin, BrokerError, ClosedError, Partition, TimedOut
from millstream.client.admin.handle import AdminHandle

TURNS = 50
SECONDS_MAX = 10.0


def public(owner: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }


def test_both_clients_have_the_same_methods_and_arguments() -> None:
    assert public(AsyncAdmin) == public(Admin)
    for name, method in inspect.getmembers(AsyncAdmin, inspect.isfunction):
        assert inspect.iscoroutinefunction(method) or name.startswith("_"), name
    documentation = {name: inspect.getdoc(getattr(Admin, name)) for name in public(Admin)}
    for name in public(Admin):
        if name not in ("__init__", "close"):
            assert inspect.getdoc(getattr(AsyncAdmin, name)) == documentation[name], name


def test_topics_and_offsets(bootstrap: str, name: Callable[[str], str]) -> None:
    asyncio.run(_topics_and_offsets(bootstrap, name("topic"), name("group")))


async def _topics_and_offsets(bootstrap: str, topic: str, group: str) -> None:
    async with AsyncAdmin(bootstrap) as admin:
        assert await admin.create_topic(topic, partitions=2)
        assert len((await admin.describe_topic(topic)).partitions) == 2
        with pytest.raises(BrokerError, match="Creating topic"):
            await admin.create_topic(topic)
        await admin.reset_group_offsets(group, topics=[topic], to="latest")
        assert await admin.list_group_offsets(group) == {
            Partition(topic, 0): 0,
            Partition(topic, 1): 0,
        }
        both = await asyncio.gather(admin.describe_cluster(), admin.list_topics())
        assert topic in both[1]
        await admin.delete_topic(topic)
    with pytest.raises(ClosedError):
        await admin.list_topics()
    with pytest.raises(AttributeError, match=r"AsyncAdmin\.list_groups"):
        admin.groups()


def test_the_loop_runs_while_a_call_waits() -> None:
    async def count_turns() -> int:
        async with AsyncAdmin("127.0.0.1:1", timeout=0.3) as admin:
            call = asyncio.ensure_future(admin.describe_cluster())
            turns = 0
            while not call.done():
                turns += 1
                await asyncio.sleep(0)
            with pytest.raises(TimedOut):
                call.result()
            return turns

    # A call that blocked the loop would be done after its first turns.
    assert asyncio.run(count_turns()) > 10


def test_the_loop_runs_while_the_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka waits for its threads, and these for a name server, for example."""
    turned = threading.Event()
    close = AdminHandle.close

    def close_after_turns(handle: AdminHandle) -> None:
        assert turned.wait(SECONDS_MAX), "the event loop waits for the close"
        close(handle)

    monkeypatch.setattr(AdminHandle, "close", close_after_turns)

    async def main() -> None:
        admin = AsyncAdmin("127.0.0.1:1")
        closed = asyncio.ensure_future(admin.close())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        turned.set()
        await closed

    asyncio.run(main())


def test_a_cancelled_call_stops_waiting() -> None:
    async def cancel() -> None:
        async with AsyncAdmin("127.0.0.1:1", timeout=1.0) as admin:
            call = asyncio.ensure_future(admin.list_topics())
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(cancel())
