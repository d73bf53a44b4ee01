"""What every metadata store promises, as tests. A store's own test file subclasses
`StoreContract` and says how to open one, how to let time pass, and how to lose old changes.

A store may be shared with others and hold revisions from before: tests count from where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing

import pytest

from millstream.metadata.store.port import (
    CompactedError,
    Compare,
    Condition,
    Delete,
    LeaseExpiredError,
    MetadataStore,
    MetadataStoreError,
    Put,
    StoreClosedError,
    ValueIs,
    WatchEvent,
)

Scenario = Callable[[MetadataStore], Awaitable[None]]
DEADLINE = 20


async def collect(store: MetadataStore, prefix: str, start: int, size: int) -> list[WatchEvent]:
    """Return the first `size` changes of a watch, and those that came with them."""
    found: list[WatchEvent] = []
    async with asyncio.timeout(DEADLINE), aclosing(store.watch(prefix, start)) as changes:
        async for events in changes:
            assert all(event.revision <= events.revision for event in events.events)
            found += events.events
            if len(found) >= size:
                break
    return found


class StoreContract:
    """Override the three hooks."""

    def open_store(self) -> AbstractAsyncContextManager[MetadataStore]:
        raise NotImplementedError

    async def pass_time(self, store: MetadataStore, milliseconds: int) -> None:
        raise NotImplementedError

    async def compact(self, store: MetadataStore) -> None:
        """Make the store forget the changes so far."""
        raise NotImplementedError

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            async with asyncio.timeout(DEADLINE * 3), self.open_store() as store:
                await scenario(store)

        asyncio.run(main())

    def test_put_get_delete(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            assert await store.get("a") is None
            first = await store.transact([], [Put("a", b"1")])
            assert first.succeeded
            assert await store.get("a") == ("a", b"1", first.revision)
            second = await store.transact([], [Put("a", b"")])
            assert second.revision == first.revision + 1
            assert await store.get("a") == ("a", b"", second.revision)
            await store.transact([], [Delete("a"), Delete("never-there")])
            assert await store.get("a") is None

        self.run(scenario)

    def test_range_is_by_prefix_and_in_order(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            keys = ["topics/b", "topics/a", "topics", "topics0", "topics/\xff", "brokers/1", "u"]
            done = await store.transact([], [Put(key, key.encode()) for key in keys])
            found = await store.range("topics/")
            assert [item.key for item in found.items] == ["topics/a", "topics/b", "topics/\xff"]
            assert found.revision == done.revision
            assert {item.revision for item in found.items} == {done.revision}
            everything = await store.range("")
            assert [item.key for item in everything.items] == sorted(keys)
            assert (await store.range("nothing/")).items == []

        self.run(scenario)

    def test_compares_guard_a_transaction(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            absent = [Compare("a", 0)]
            first = await store.transact(absent, [Put("a", b"1")])
            again = await store.transact(absent, [Put("a", b"2"), Put("b", b"2")])
            assert first.succeeded
            assert again == (False, first.revision)
            assert await store.get("b") is None
            swapped = await store.transact([Compare("a", first.revision)], [Put("a", b"3")])
            assert swapped.succeeded
            stale = await store.transact([Compare("a", first.revision)], [Delete("a")])
            assert not stale.succeeded
            both = [Compare("a", swapped.revision), Compare("b", 7)]
            assert not (await store.transact(both, [Delete("a")])).succeeded
            found = await store.get("a")
            assert found == ("a", b"3", swapped.revision)

        self.run(scenario)

    def test_values_guard_a_transaction(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            for value in (b"", b"1"):
                assert not (await store.transact([ValueIs("a", value)], [Put("b", b"")])).succeeded
            put = await store.transact([], [Put("a", b"1"), Put("empty", b"")])
            assert (await store.transact([ValueIs("a", b"1"), ValueIs("empty", b"")], [])).succeeded
            for value in (b"", b"2", b"1\0"):
                wrong: list[Condition] = [Compare("a", put.revision), ValueIs("a", value)]
                assert not (await store.transact(wrong, [Delete("a")])).succeeded
            swapped = await store.transact([ValueIs("a", b"1")], [Put("a", b"2")])
            assert swapped.succeeded
            assert not (await store.transact([ValueIs("a", b"1")], [Delete("a")])).succeeded
            assert await store.get("a") == ("a", b"2", swapped.revision)

        self.run(scenario)

    def test_a_transaction_without_changes_only_checks(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            put = await store.transact([], [Put("a", b"1")])
            assert await store.transact([Compare("a", put.revision)], []) == (True, put.revision)
            assert await store.transact([Compare("a", 0)], []) == (False, put.revision)

        self.run(scenario)

    def test_concurrent_swaps_lose_no_update(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            await store.transact([], [Put("n", b"0")])

            async def increment() -> None:
                while True:
                    found = await store.get("n")
                    assert found is not None
                    put = Put("n", str(int(found.value) + 1).encode())
                    if (await store.transact([Compare("n", found.revision)], [put])).succeeded:
                        return

            await asyncio.gather(*(increment() for _ in range(20)))
            found = await store.get("n")
            assert found is not None
            assert found.value == b"20"

        self.run(scenario)

    def test_concurrent_transactions_get_revisions_of_their_own(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            start = (await store.range("")).revision
            outcomes = await asyncio.gather(
                *(store.transact([], [Put(f"k{n}", b"")]) for n in range(50))
            )
            assert sorted(outcome.revision for outcome in outcomes) == list(
                range(start + 1, start + 51)
            )

        self.run(scenario)

    def test_watch_yields_past_and_later_changes(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            one = await store.transact([], [Put("a/1", b"1"), Put("b/1", b"x")])
            two = await store.transact([], [Put("a/2", b"2"), Delete("a/1")])
            watching = asyncio.create_task(collect(store, "a/", one.revision, 4))
            three = await store.transact([], [Put("a/1", b"3")])
            assert await watching == [
                ("a/1", b"1", one.revision),
                ("a/2", b"2", two.revision),
                ("a/1", None, two.revision),
                ("a/1", b"3", three.revision),
            ]
            assert await collect(store, "a/", three.revision, 1) == [("a/1", b"3", three.revision)]

        self.run(scenario)

    def test_watch_never_splits_a_transaction(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            size = min(store.changes_max, 2500)
            start = (await store.range("")).revision + 1
            first = await store.transact([], [Put(f"a/{n}", b"") for n in range(size)])
            last = await store.transact([], [Put("a/0", b"last")])
            revisions: list[set[int]] = []
            async with asyncio.timeout(DEADLINE), aclosing(store.watch("a/", start)) as changes:
                async for events in changes:
                    revisions.append({event.revision for event in events.events})
                    if first.revision in revisions[-1]:
                        whole = [e for e in events.events if e.revision == first.revision]
                        assert len(whole) == size
                    if last.revision in revisions[-1]:
                        break
            assert all(left.isdisjoint(right) for left, right in _pairs(revisions))

        self.run(scenario)

    def test_watchers_see_the_same_order(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            start = (await store.range("")).revision + 1
            watchers = [asyncio.create_task(collect(store, "", start, 40)) for _ in range(3)]
            await asyncio.gather(*(store.transact([], [Put(f"k{n}", b"")]) for n in range(40)))
            seen = await asyncio.gather(*watchers)
            assert seen[0] == seen[1] == seen[2]
            assert [event.revision for event in seen[0]] == list(range(start, start + 40))

        self.run(scenario)

    def test_watch_of_compacted_changes_is_rejected(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            first = await store.transact([], [Put("a", b"1")])
            await self.compact(store)
            with pytest.raises(CompactedError) as raised:
                await collect(store, "", first.revision, 1)
            assert raised.value.wanted == first.revision
            assert raised.value.oldest > first.revision
            # Changes that are still kept can be watched.
            last = await store.transact([], [Put("a", b"2")])
            assert await collect(store, "", last.revision, 1) == [("a", b"2", last.revision)]

        self.run(scenario)

    def test_a_lease_that_is_not_kept_alive_deletes_its_keys(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            lease = await store.grant(2000)
            put = await store.transact([], [Put("a", b"1", lease), Put("b", b"1", lease)])
            await store.transact([], [Put("b", b"free")])
            await self.pass_time(store, 1200)
            await store.keep_alive(lease)
            await self.pass_time(store, 1200)
            assert await store.get("a") is not None
            await self.pass_time(store, 2500)
            events = await collect(store, "a", put.revision + 1, 1)
            assert [(event.key, event.value) for event in events] == [("a", None)]
            assert await store.get("a") is None
            assert await store.get("b") is not None
            with pytest.raises(LeaseExpiredError):
                await store.keep_alive(lease)
            with pytest.raises(LeaseExpiredError):
                await store.transact([], [Put("c", b"1", lease)])

        self.run(scenario)

    def test_a_revoked_lease_deletes_its_keys_at_once(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            lease, other = await store.grant(60_000), await store.grant(60_000)
            await store.transact([], [Put("a", b"1", lease), Put("b", b"1", other)])
            await store.revoke(lease)
            assert [item.key for item in (await store.range("")).items] == ["b"]
            await store.revoke(lease)

        self.run(scenario)

    def test_cancelled_callers_do_not_disturb_others(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            calls = [
                asyncio.create_task(store.transact([], [Put(f"k{n}", b"")])) for n in range(20)
            ]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            outcomes = await asyncio.gather(*calls[1::2])
            assert all(outcome.succeeded for outcome in outcomes)
            for n in range(1, 20, 2):
                assert await store.get(f"k{n}") is not None

        self.run(scenario)

    def test_a_key_follows_its_last_put_to_another_lease(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            first, second = await store.grant(60_000), await store.grant(60_000)
            await store.transact([], [Put("a", b"1", first), Put("b", b"1", first)])
            await store.transact([], [Put("a", b"2", second)])
            await store.revoke(first)
            assert [item.key for item in (await store.range("")).items] == ["a"]
            with pytest.raises(LeaseExpiredError):
                await store.keep_alive(first)
            await store.keep_alive(second)
            await store.revoke(second)
            assert (await store.range("")).items == []

        self.run(scenario)

    def test_watches_reach_the_revision_of_an_empty_transaction(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            put = await store.transact([], [Put("a", b"1")])
            reached = asyncio.create_task(_reach(store, put.revision))
            failed = await store.transact([Compare("a", 0)], [Put("a", b"2")])
            nothing = await store.transact([], [Delete("never-there")])
            assert not failed.succeeded
            assert nothing.succeeded
            async with asyncio.timeout(DEADLINE):
                assert await reached >= failed.revision

        self.run(scenario)

    def test_a_transaction_that_is_too_large_is_rejected(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            puts = [Put(f"k{n}", b"") for n in range(store.changes_max + 1)]
            with pytest.raises(MetadataStoreError, match="may hold"):
                await store.transact([], puts)
            assert (await store.range("")).items == []
            assert (await store.transact([], puts[:-1])).succeeded

        self.run(scenario)

    def test_closing_ends_watches_and_rejects_calls(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            put = await store.transact([], [Put("a", b"1")])
            watching = asyncio.create_task(collect(store, "never", put.revision, 1))
            await store.transact([], [Put("a", b"2")])
            await store.close()
            with pytest.raises(StoreClosedError):
                await watching
            with pytest.raises(StoreClosedError):
                await store.get("a")
            await store.close()

        self.run(scenario)


async def _reach(store: MetadataStore, revision: int) -> int:
    """Watch from this revision on until it is reached."""
    async with aclosing(store.watch("", revision)) as changes:
        async for events in changes:
            if events.revision >= revision:
                return events.revision
    raise AssertionError("the watch ended")


def _pairs(sets: list[set[int]]) -> list[tuple[set[int], set[int]]]:
    return [(left, right) for i, left in enumerate(sets) for right in sets[i + 1 :]]
