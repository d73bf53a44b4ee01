"""The etcd store: the contract on one member, and on three members of which one is dead.

Also what only this store has: members that die or do not respond, compaction, several clusters on
one etcd, logins and TLS.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.process.etcd_process import EtcdCluster, require_etcd
from millstream.env.clock import SystemClock
from millstream.env.supervisor import Supervisor
from millstream.metadata.catalog import Catalog
from millstream.metadata.store.etcd import watch as etcd_watch
from millstream.metadata.store.etcd.address import EtcdOptions, parse_etcd_address
from millstream.metadata.store.etcd.etcd_store import PROGRESS_KEY, EtcdStore
from millstream.metadata.store.etcd.watch import EtcdWatch
from millstream.metadata.store.port import (
    CompactedError,
    Compare,
    Delete,
    MetadataStore,
    MetadataStoreError,
    Put,
    UnavailableError,
    UncertainError,
    WatchEvent,
    WatchEvents,
)
from millstream.model.config import TopicConfig

sys.path.insert(0, str(Path(__file__).parent))
from harness.in_process.store_contract import StoreContract, collect

_prefixes = (f"test-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    require_etcd()
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def etcd_of_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    require_etcd()
    with EtcdCluster(tmp_path_factory.mktemp("etcds"), size=3) as cluster:
        yield cluster


@asynccontextmanager
async def opened(
    cluster: EtcdCluster, prefix: str = "", **options: object
) -> AsyncIterator[EtcdStore]:
    address = parse_etcd_address(cluster.address(prefix or next(_prefixes)))
    store = await EtcdStore.open(
        EtcdOptions(address=address, **options),  # type: ignore[arg-type]
        SystemClock(),
        random.Random(1),
        Supervisor(),
    )
    try:
        yield store
    finally:
        await store.close()


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await main()

    asyncio.run(bounded())


class _Contract(StoreContract):
    cluster: EtcdCluster

    def open_store(self) -> AbstractAsyncContextManager[MetadataStore]:
        return opened(self.cluster)

    async def pass_time(self, store: MetadataStore, milliseconds: int) -> None:
        # etcd's members use real time.
        await asyncio.sleep(milliseconds / 1000)

    async def compact(self, store: MetadataStore) -> None:
        await asyncio.to_thread(self.cluster.compact)


class TestContract(_Contract):
    @pytest.fixture(autouse=True)
    def _choose(self, etcd: EtcdCluster) -> None:
        self.cluster = etcd


class TestContractWithAMemberDead(_Contract):
    @pytest.fixture(autouse=True)
    def _choose(self, etcd_of_three: EtcdCluster) -> Iterator[None]:
        self.cluster = etcd_of_three
        etcd_of_three.members[2].kill()
        yield
        etcd_of_three.start(etcd_of_three.members[2])
        etcd_of_three.wait_until_healthy()


# Faults


async def watch_until(store: EtcdStore, start: int, seen: list[WatchEvents], last: str) -> None:
    """Append the events of a watch to `seen` until the key `last` changes."""
    async for events in store.watch("", start):
        seen.append(events)
        if any(event.key == last for event in events.events):
            return


async def count_up(store: EtcdStore, key: str, times: int) -> int:
    """Increment a counter by compare-and-swap; return the number of acknowledged swaps."""
    succeeded_count = 0
    while succeeded_count < times:
        try:
            found = await store.get(key)
            number = int(found.value) if found else 0
            put = Put(key, str(number + 1).encode())
            outcome = await store.transact([Compare(key, found.revision if found else 0)], [put])
            succeeded_count += outcome.succeeded
        except (UncertainError, UnavailableError):
            continue
    return succeeded_count


def test_the_leader_s_death_loses_no_change_and_repeats_none(etcd_of_three: EtcdCluster) -> None:
    async def main() -> None:
        prefix = next(_prefixes)
        async with opened(etcd_of_three, prefix) as one, opened(etcd_of_three, prefix) as other:
            lease = await one.grant(60_000)
            begun = await one.transact([], [Put("leased", b"", lease)])
            seen: list[WatchEvents] = []
            watching = asyncio.create_task(watch_until(one, begun.revision, seen, "end"))
            counting = [
                asyncio.create_task(count_up(store, f"n{n}", 60))
                for n, store in enumerate([one, other, one, other])
            ]
            await asyncio.wait(counting, timeout=0.2)
            await asyncio.to_thread(leader.kill)
            succeeded_count = await asyncio.gather(*counting)
            await other.transact([], [Put("end", b"")])
            await watching
            await one.keep_alive(lease)
            revisions = [events.revision for events in seen]
            assert revisions == sorted(set(revisions))
            for n, count in enumerate(succeeded_count):
                values = [e.value for events in seen for e in events.events if e.key == f"n{n}"]
                # Each number once and in order. Swaps without a response may be included.
                assert values == [str(i).encode() for i in range(1, len(values) + 1)]
                assert len(values) >= count

    leader = etcd_of_three.leader()
    try:
        run(main)
    finally:
        etcd_of_three.start(leader)
        etcd_of_three.wait_until_healthy()


def test_a_watch_moves_away_from_a_member_that_does_not_respond(
    etcd_of_three: EtcdCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(etcd_watch, "IDLE_S", 0.3)
    monkeypatch.setattr(etcd_watch, "SILENCE_S", 0.5)

    async def main() -> None:
        prefix = next(_prefixes)
        async with opened(etcd_of_three, prefix, attempt_ms_max=2_000) as store:
            first = await store.transact([], [Put("a", b"1")])
            events: list[WatchEvent] = []
            begun = asyncio.Event()

            async def watch_until() -> None:
                async for found in store.watch("", first.revision):
                    events.extend(found.events)
                    begun.set()
                    if len(events) >= 2:
                        return

            watching = asyncio.create_task(watch_until())
            await begun.wait()
            # The member that serves the watch and gets the next calls.
            url = store._gateway._urls[store._gateway._current]
            member = next(member for member in etcd_of_three.members if member.url == url)
            await asyncio.to_thread(member.pause)
            try:
                async with opened(etcd_of_three, prefix, attempt_ms_max=2_000) as other:
                    while True:
                        try:
                            await other.transact([], [Put("b", b"2")])
                            break
                        except UncertainError:
                            continue
                    await watching
            finally:
                member.resume()
            assert [event.key for event in events] == ["a", "b"]

    try:
        run(main)
    finally:
        etcd_of_three.wait_until_healthy()


def test_a_watch_from_a_compacted_revision_fails(etcd: EtcdCluster) -> None:
    async def main() -> None:
        async with opened(etcd) as store:
            put = await store.transact([], [Put("a", b"1")])
            # A deletion that is the last change before compaction is reported as compacted.
            gone = await store.transact([], [Delete("a")])
            await asyncio.to_thread(etcd.compact)
            with pytest.raises(CompactedError) as raised:
                await collect(store, "", gone.revision, 1)
            assert raised.value.oldest == gone.revision + 1
            with pytest.raises(CompactedError):
                await collect(store, "", put.revision, 1)

    run(main)


def test_a_catalog_continues_after_compaction_and_a_restart_of_etcd(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require_etcd()

    async def main() -> None:
        with EtcdCluster(tmp_path) as cluster:
            prefix = next(_prefixes)
            async with opened(cluster, prefix) as store, opened(cluster, prefix) as other:
                catalog = await Catalog.open(
                    store,
                    supervisor=Supervisor(),
                    random=random.Random(1),
                    topic_defaults=TopicConfig(),
                )
                await asyncio.to_thread(cluster.members[0].kill)
                with pytest.raises(UnavailableError, match=r"no etcd responds at"):
                    await asyncio.wait_for(_soon(cluster, prefix), 90)
                cluster.start(cluster.members[0])
                await asyncio.to_thread(cluster.wait_until_healthy)
                for n in range(5):
                    await _until_done(other, Put("configs/broker/1", b'{"n":"%d"}' % n))
                await asyncio.to_thread(cluster.compact)
                last = await _until_done(other, Put("configs/broker/2", b'{"x":"y"}'))
                async with asyncio.timeout(90):
                    await catalog.reached(last)
                assert dict(catalog.image.broker_configs[1]) == {"n": "4"}
                assert not catalog.failed.done()
                await catalog.close()

    run(main)


async def _soon(cluster: EtcdCluster, prefix: str) -> None:
    async with opened(cluster, prefix, call_ms_max=300):
        pass


async def _until_done(store: EtcdStore, put: Put) -> int:
    while True:
        try:
            return (await store.transact([], [put])).revision
        except (UncertainError, UnavailableError):
            continue


def test_other_clusters_in_the_same_etcd_are_invisible_and_delay_nothing(etcd: EtcdCluster) -> None:
    async def main() -> None:
        prefix = next(_prefixes)
        async with opened(etcd, prefix) as store, opened(etcd, next(_prefixes)) as foreign:
            await store.transact([], [Put("a", b"1")])
            catalog = await Catalog.open(
                store,
                supervisor=Supervisor(),
                random=random.Random(1),
                topic_defaults=TopicConfig(),
            )
            for _ in range(3):
                await foreign.transact([], [Put("a", b"2"), Put("topics/x", b"not for us")])
            failed = await store.transact([Compare("a", 0)], [Put("a", b"3")])
            assert failed.revision > catalog.image.revision
            async with asyncio.timeout(90):
                await catalog.reached(failed.revision)
            assert not catalog.image.topics
            assert [item.key for item in (await store.range("")).items] == ["a", "cluster"]
            await catalog.close()

    run(main)


def test_a_range_larger_than_a_page_is_complete(etcd: EtcdCluster) -> None:
    async def main() -> None:
        async with opened(etcd) as store:
            total = 10_100
            await asyncio.gather(
                *(
                    store.transact([], [Put(f"k{n:05}", b"v") for n in range(start, start + 100)])
                    for start in range(0, total, 100)
                )
            )
            found = await store.range("k")
            assert [item.key for item in found.items] == [f"k{n:05}" for n in range(total)]

    run(main)


# Opening a store


def test_an_unreachable_etcd_is_reported_with_its_address() -> None:
    async def main() -> None:
        address = parse_etcd_address("etcd://127.0.0.1:1,127.0.0.1:2/x")
        options = EtcdOptions(address=address, call_ms_max=200)
        with pytest.raises(UnavailableError, match=r"no etcd responds at 127.0.0.1:1, 127.0.0.1:2"):
            await EtcdStore.open(options, SystemClock(), random.Random(1), Supervisor())

    run(main)


def test_an_etcd_whose_revision_goes_back_is_rejected(etcd: EtcdCluster) -> None:
    async def main() -> None:
        async with opened(etcd) as store:
            await store.transact([], [Put("a", b"1")])
            store._newest += 1000
            with pytest.raises(MetadataStoreError, match="restored from a backup"):
                await store.get("a")

    run(main)


def test_members_of_different_clusters_are_rejected(etcd: EtcdCluster, tmp_path: Path) -> None:
    async def main() -> None:
        with EtcdCluster(tmp_path) as foreign:
            async with opened(etcd) as store:
                store._gateway._urls = (foreign.members[0].url,)
                with pytest.raises(MetadataStoreError, match="different clusters"):
                    await store.get("a")

    run(main)


def post(url: str, path: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(url + path, data=json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


def test_a_login_is_renewed_when_it_expires(tmp_path: Path) -> None:
    require_etcd()
    with EtcdCluster(tmp_path) as cluster:
        url = cluster.members[0].url
        post(url, "/v3/auth/user/add", {"name": "root", "password": "secret"})
        post(url, "/v3/auth/role/add", {"name": "root"})
        post(url, "/v3/auth/user/grant", {"user": "root", "role": "root"})
        post(url, "/v3/auth/enable", {})

        async def main() -> None:
            with pytest.raises(MetadataStoreError, match=r"metadata\.etcd\.username"):
                await _open_once(cluster)
            with pytest.raises(MetadataStoreError, match="the password is wrong"):
                await _open_once(cluster, username="root", password="guess")
            async with opened(cluster, "p", username="root", password="secret") as store:
                put = await store.transact([], [Put("a", b"1")])
                # etcd rejects this token like an expired one.
                store._gateway._token = stale = "abcdefghijklmnop.1"
                assert await store.get("a") == ("a", b"1", put.revision)
                assert store._gateway._token != stale
                store._gateway._token = stale
                assert len(await collect(store, "", put.revision, 1)) == 1

        run(main)


async def _open_once(cluster: EtcdCluster, **options: object) -> None:
    async with opened(cluster, "p", **options):
        pass


def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    require_etcd()
    make_certificates(tmp_path)
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "node.pem", "node.key"))
    flags = ["--cert-file", str(certificate), "--key-file", str(key)]
    flags += ["--trusted-ca-file", str(ca), "--client-cert-auth"]
    cluster = EtcdCluster(tmp_path, flags=flags)
    for member in cluster.members:
        member.scheme = "https"
        member.start(wait=False)

    async def main() -> None:
        own = {"certificate_file": certificate, "key_file": key}
        async with opened(cluster, "p", ca_file=ca, **own) as store:
            put = await store.transact([], [Put("a", b"1")])
            assert len(await collect(store, "", put.revision, 1)) == 1
        with pytest.raises(UnavailableError, match="certificate"):
            await _open_once(cluster, call_ms_max=300, **own)
        with pytest.raises(UnavailableError):
            await _open_once(cluster, call_ms_max=300, ca_file=ca)
        with pytest.raises(MetadataStoreError, match="files for TLS"):
            await _open_once(cluster, ca_file=tmp_path / "missing.pem")

    try:
        run(main)
    finally:
        cluster.kill()


def make_certificates(folder: Path) -> None:
    """Create a certificate authority and a certificate for 127.0.0.1."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    subject = ["-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj"]
    openssl("req", "-x509", *subject, "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *subject, "/CN=node", "-keyout", "node.key", "-out", "node.csr")
    (folder / "extensions").write_text(
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
    )
    signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions"]
    openssl("x509", "-req", "-in", "node.csr", *signing, "-out", "node.pem")


def test_a_nudge_that_raises_is_retried_when_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        supervisor = Supervisor()
        gateway: Any = None
        store = EtcdStore(gateway, "/prefix/", supervisor)
        watch = EtcdWatch(gateway, store, "/prefix/", "", PROGRESS_KEY, 0)
        store._watches.add(watch)
        bugs = [RuntimeError("a bug")]

        async def nudge(self: EtcdStore) -> int:
            if bugs:
                raise bugs.pop()
            watch.position = 5
            return 5

        monkeypatch.setattr(EtcdStore, "nudge", nudge)
        for _ in range(2):
            store._help_watches(5)
            (task,) = supervisor.tasks
            await task.ended()
        assert supervisor.failures == {"etcd-nudge": 1}
        assert watch.position == 5

    run(main)
