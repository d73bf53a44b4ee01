"""A broker's registration: renewed while it runs, made again when lost, revoked at close."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millstream.controller.unregistration import unregister
from millstream.env.clock import SystemClock
from millstream.env.supervisor import Supervisor
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import BrokerRecord
from millstream.metadata.registration import Registration, until_gone
from millstream.metadata.store.memory import DirectLink, MemoryConnection, MemoryStore
from millstream.metadata.store.port import StoreClosedError, UnavailableError, UncertainError
from millstream.metadata.store.sqlite import SqliteStore
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode

BROKER = BrokerRecord(node_id=1, endpoints=(), incarnation="i")


def run(path: Path, scenario: Callable[[SqliteStore, Catalog], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(90):
            store = await SqliteStore.open(path, SystemClock())
            catalog = await Catalog.open(
                store,
                supervisor=Supervisor(),
                random=random.Random(1),
                topic_defaults=TopicConfig(),
            )
            await scenario(store, catalog)
            await catalog.close()
            await store.close()

    asyncio.run(main())


async def changes_of_broker(catalog: Catalog, count: int) -> list[bool]:
    """Return whether the broker was registered after each of its next `count` changes."""
    seen: list[bool] = []
    done = asyncio.Event()

    def record_change(image: object, delta: object) -> None:
        seen.append(1 in catalog.image.brokers)
        if len(seen) >= count:
            done.set()

    leave = catalog.subscribe(record_change)
    await done.wait()
    leave()
    return seen


def test_registered_until_closed(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        registration = Registration(catalog, store, BROKER, 60_000, SystemClock())
        await registration.start(supervisor := Supervisor())
        assert catalog.image.brokers[1].incarnation == "i"
        leaving = asyncio.create_task(changes_of_broker(catalog, 1))
        await asyncio.sleep(0)
        await registration.close()
        assert await leaving == [False]
        await registration.close()
        assert supervisor.failures == {"broker-registration": 0}

    run(tmp_path / "metadata.db", scenario)


def test_a_broker_registers_again_after_its_lease_is_lost(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        registration = Registration(catalog, store, BROKER, 300, SystemClock())
        await registration.start(Supervisor())
        first = catalog.image.brokers[1].epoch
        changes = asyncio.create_task(changes_of_broker(catalog, 2))
        await asyncio.sleep(0)
        await store.revoke(registration.lease)
        assert await changes == [False, True]
        assert catalog.image.brokers[1].epoch > first
        await registration.close()

    run(tmp_path / "metadata.db", scenario)


def test_a_closed_store_is_reported(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        registration = Registration(catalog, store, BROKER, 60, SystemClock())
        supervisor = Supervisor()
        failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        supervisor.on_fatal = failed.set_result
        await registration.start(supervisor)
        await store.close()
        assert isinstance(await failed, StoreClosedError)
        await registration.close()

    run(tmp_path / "metadata.db", scenario)


class FaultyLink(DirectLink):
    __slots__ = ("answers_to_lose", "failures", "is_cut")

    def __init__(self) -> None:
        self.is_cut = False
        self.failures = 0
        self.answers_to_lose = 0

    async def request(self) -> None:
        if self.is_cut:
            self.failures += 1
            raise UnavailableError("disconnected")

    async def respond(self, changed: bool) -> None:
        if changed and self.answers_to_lose:
            self.answers_to_lose -= 1
            raise UncertainError("lost")


def run_in_memory(
    scenario: Callable[[MemoryStore, MemoryConnection, Catalog, FaultyLink], Awaitable[None]],
) -> None:
    async def main() -> None:
        async with asyncio.timeout(90):
            data, link = MemoryStore(SystemClock()), FaultyLink()
            store = data.connect(link)
            catalog = await Catalog.open(
                store,
                supervisor=Supervisor(),
                random=random.Random(1),
                topic_defaults=TopicConfig(),
            )
            await scenario(data, store, catalog, link)
            await catalog.close()

    asyncio.run(main())


OTHER = BrokerRecord(node_id=1, endpoints=(), incarnation="other")


def test_a_second_process_is_rejected_while_the_first_is_alive() -> None:
    async def scenario(
        data: MemoryStore, store: MemoryConnection, catalog: Catalog, link: FaultyLink
    ) -> None:
        first = Registration(catalog, store, BROKER, 1000, SystemClock())
        await first.start(Supervisor())
        epoch = catalog.image.brokers[1].epoch
        second = Registration(catalog, store, OTHER, 1000, SystemClock())
        with pytest.raises(BrokerError) as raised:
            await second.start(Supervisor())
        assert raised.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert catalog.image.brokers[1].epoch == epoch
        await second.close()
        await first.close()

    run_in_memory(scenario)


def test_registration_waits_for_the_lease_of_a_dead_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(
        data: MemoryStore, store: MemoryConnection, catalog: Catalog, link: FaultyLink
    ) -> None:
        await catalog.register_broker(OTHER, await store.grant(200))
        registration = Registration(catalog, store, BROKER, 200, SystemClock())
        await registration.start(Supervisor())
        assert catalog.image.brokers[1].incarnation == "i"
        await registration.close()

    run_in_memory(scenario)
    assert "waiting for its lease to expire" in caplog.text


def test_registration_is_retried_while_the_store_is_unreachable() -> None:
    async def scenario(
        data: MemoryStore, store: MemoryConnection, catalog: Catalog, link: FaultyLink
    ) -> None:
        registration = Registration(catalog, store, BROKER, 100, SystemClock())
        await registration.start(supervisor := Supervisor())
        first = catalog.image.brokers[1].epoch
        gone = asyncio.create_task(changes_of_broker(catalog, 2))
        link.is_cut = True
        while link.failures < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        link.is_cut = False
        assert await gone == [False, True]
        assert catalog.image.brokers[1].epoch > first
        assert supervisor.failures == {"broker-registration": 0}
        await registration.close()
        assert data.get("brokers/1") is None

    run_in_memory(scenario)


def test_a_registration_without_a_response_is_retried() -> None:
    async def scenario(
        data: MemoryStore, store: MemoryConnection, catalog: Catalog, link: FaultyLink
    ) -> None:
        registration = Registration(catalog, store, BROKER, 200, SystemClock())
        link.answers_to_lose = 2
        await registration.start(Supervisor())
        assert catalog.image.brokers[1].incarnation == "i"
        await registration.close()
        assert data.get("brokers/1") is None

    run_in_memory(scenario)


def test_an_expired_lease_in_the_image_is_not_a_second_process() -> None:
    async def scenario(
        data: MemoryStore, store: MemoryConnection, catalog: Catalog, link: FaultyLink
    ) -> None:
        await catalog.register_broker(BROKER, await store.grant(60_000))
        # The image still has the registration. The store does not.
        data.revoke(1)
        assert 1 in catalog.image.brokers
        again = await catalog.register_broker(BROKER, await store.grant(60_000))
        assert catalog.image.brokers[1] == again

    run_in_memory(scenario)


def test_until_gone_waits_for_an_earlier_process(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        await until_gone(catalog, BROKER.node_id, 60_000)
        lease = await store.grant(60_000)
        await catalog.register_broker(BROKER, lease)
        waiting = asyncio.create_task(until_gone(catalog, BROKER.node_id, 200))
        await asyncio.sleep(0)
        assert not waiting.done()
        await store.revoke(lease)
        await waiting
        assert BROKER.node_id not in catalog.image.brokers

    run(tmp_path / "metadata.db", scenario)


def test_until_gone_stops_waiting_after_its_limit(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore, catalog: Catalog) -> None:
        await catalog.register_broker(BROKER, await store.grant(60_000))
        await until_gone(catalog, BROKER.node_id, 20)
        assert BROKER.node_id in catalog.image.brokers

    run(tmp_path / "metadata.db", scenario)


class _LeapingClock(SystemClock):
    """A clock that jumps ahead by `leap_s`, as if the process had been paused."""

    leap_s = 0.0

    def monotonic(self) -> float:  # type: ignore[override]
        return SystemClock.monotonic() + self.leap_s


def test_a_process_that_was_paused_is_fenced_before_it_acts() -> None:
    async def scenario(
        data: MemoryStore, store: MemoryConnection, catalog: Catalog, link: FaultyLink
    ) -> None:
        clock = _LeapingClock()
        registration = Registration(catalog, store, BROKER, 60_000, clock)
        fencings: list[bool] = []
        registration.on_fenced = fencings.append
        await registration.start(Supervisor())
        clock.leap_s = 30
        registration.check()
        assert fencings == [False]
        clock.leap_s = 60
        registration.check()
        registration.check()
        assert fencings == [False, True]
        await registration.close()

    run_in_memory(scenario)


def test_a_lease_that_expired_before_use_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    granted: list[int] = []

    async def scenario(
        data: MemoryStore, store: MemoryConnection, catalog: Catalog, link: FaultyLink
    ) -> None:
        grant = MemoryConnection.grant

        async def grant_late(self: MemoryConnection, ttl_ms: int) -> int:
            """Return a lease that has already expired, at the first grant of each registration."""
            lease = await grant(self, ttl_ms)
            granted.append(lease)
            if len(granted) in (1, 3):
                data.revoke(lease)
            return lease

        monkeypatch.setattr(MemoryConnection, "grant", grant_late)
        registration = Registration(catalog, store, BROKER, 2000, SystemClock())
        await registration.start(supervisor := Supervisor())
        assert registration.lease == granted[1]
        changes = asyncio.create_task(changes_of_broker(catalog, 2))
        await asyncio.sleep(0)
        data.revoke(granted[1])
        assert await changes == [False, True]
        assert len(granted) == 4
        assert supervisor.failures == {"broker-registration": 0}
        await registration.close()

    run_in_memory(scenario)


def test_leaving_is_announced_and_ends_with_the_registration() -> None:
    async def scenario(
        data: MemoryStore, store: MemoryConnection, catalog: Catalog, link: FaultyLink
    ) -> None:
        registration = Registration(catalog, store, BROKER, 60_000, SystemClock())
        await registration.start(Supervisor())
        await registration.announce_leaving()
        assert (set(catalog.image.brokers), set(catalog.image.eligible)) == ({1}, set())
        gone = asyncio.create_task(changes_of_broker(catalog, 1))
        await asyncio.sleep(0)
        await registration.close()
        assert await gone == [False]
        assert catalog.image.leaving == frozenset()

    run_in_memory(scenario)


class LoggedMessage(logging.Handler):
    """Sets an event when a log line contains the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self.event.set()


def test_an_unregistered_process_does_not_register_again() -> None:
    async def scenario(
        data: MemoryStore, store: MemoryConnection, catalog: Catalog, link: FaultyLink
    ) -> None:
        await catalog.register_broker(BrokerRecord(node_id=2, endpoints=(), incarnation="o"))
        registration = Registration(catalog, store, BROKER, 60_000, SystemClock())
        await registration.start(supervisor := Supervisor())
        catalog.subscribe(
            lambda image, _: registration.deleted() if 1 not in image.brokers else None
        )
        logged, logger = (
            LoggedMessage("was unregistered"),
            logging.getLogger(Registration.__module__),
        )
        logger.addHandler(logged)
        await unregister(catalog, 1)
        await logged.event.wait()
        logger.removeHandler(logged)
        assert registration.is_fenced
        assert 1 not in catalog.image.brokers
        assert supervisor.failures == {"broker-registration": 0}
        await registration.close()
        # The next process of the same broker can register.
        again = Registration(catalog, store, OTHER, 60_000, SystemClock())
        await again.start(Supervisor())
        assert catalog.image.brokers[1].incarnation == "other"
        await again.close()

    run_in_memory(scenario)
