"""Handlers that process each message once, by its id."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message

from millstream import UsageError
from millstream.client import Record as OwnRecord
from millstream.client.dedup import ClaimLostError, InProgressError, Store, message_id, once


class Record:
    """The fields of a record that its id needs."""

    def __init__(self, offset: int, headers: list[tuple[str, bytes]] | None = None) -> None:
        self._offset = offset
        self._headers = headers

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self._headers


def test_ids_of_messages() -> None:
    assert message_id(Record(5)) == "t/0/5"
    ours = OwnRecord(Message(topic="t", partition=0, offset=5, headers=[("x", b"1")]))
    assert message_id(ours) == "t/0/5"
    assert message_id(Record(5, [("x", b"1"), ("message-id", b"order-7")])) == "order-7"


def test_a_handler_gets_each_message_once(store: Store) -> None:
    got: list[int] = []

    @once(store)
    def handle(message: Any, note: str = "") -> str:
        got.append(message.offset())
        return f"done{note}"

    assert [handle(Record(1), note="!"), handle(Record(2)), handle(Record(1))] == [
        "done!",
        "done",
        None,
    ]
    assert got == [1, 2]


def test_scopes_do_not_share(store: Store) -> None:
    for scope in ("billing", "mail"):
        with once(store, scope=scope).claim("m") as first:
            assert first
    with once(store, scope="mail").claim("m") as first:
        assert not first


def test_a_failed_message_is_not_processed(store: Store) -> None:
    attempts: list[int] = []

    @once(store)
    def handle(message: Any) -> None:
        attempts.append(message.offset())
        if len(attempts) == 1:
            raise RuntimeError("first time")

    with pytest.raises(RuntimeError):
        handle(Record(1))
    handle(Record(1))
    handle(Record(1))
    assert attempts == [1, 1]


def test_async_handlers(store: Store) -> None:
    got: list[int] = []

    @once(store)
    async def handle(message: Any) -> str:
        got.append(message.offset())
        if len(got) == 1:
            raise RuntimeError("first time")
        return "done"

    async def scenario() -> list[Any]:
        with pytest.raises(RuntimeError):
            await handle(Record(1))
        return [await handle(Record(1)), await handle(Record(1))]

    assert asyncio.run(scenario()) == ["done", None]


def test_a_claim_waits_while_another_process_has_the_message(
    new_store: Callable[[], Store],
) -> None:
    first, second = new_store(), new_store()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with once(first).claim("m") as mine:
            assert mine
            held.set()
            assert release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    with pytest.raises(InProgressError), once(second, wait=0).claim("m"):
        pass
    release.set()
    with once(second).claim("m") as mine:
        assert not mine
    holder.join()
    first.close()
    second.close()


def test_a_handler_that_outlives_its_lease_raises(new_store: Callable[[], Store]) -> None:
    first, second = new_store(), new_store()
    with (
        pytest.raises(ClaimLostError, match="lease"),
        once(first, lease=0.02).claim("m"),
        once(second).claim("m") as taken_over,
    ):
        assert taken_over
    first.close()
    second.close()


def test_wrong_use_is_explained(store: Store) -> None:
    with pytest.raises(UsageError, match="handler is a function"):
        once(store)("no function")  # type: ignore[type-var]
    with pytest.raises(ValueError, match="above 0"):
        once(store, lease=0)
