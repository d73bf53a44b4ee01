"""Whether the replicas of a broker are in sync."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from harness.in_process.replica_set import ReplicaSet, run, until
from harness.process.broker_process import BrokerProcess, wait_until
from harness.process.process_cluster import ProcessCluster
from harness.raw.raw_client import RawClient, values_batch
from millstream.broker.lifecycle.replica_sync import sync_problem
from millstream.metadata.registration import Registration
from millstream.model.sentinel import NO_LEADER
from millstream.process.readiness import responds
from millstream.wire.messages.metadata import MetadataRequest


def registration(*, is_fenced: bool = False) -> Registration:
    return cast("Registration", SimpleNamespace(is_fenced=is_fenced))


async def problem(brokers: ReplicaSet, node_id: int, *, is_fenced: bool = False) -> str | None:
    return await sync_problem(brokers[node_id].replicas, registration(is_fenced=is_fenced))


def test_a_replica_outside_the_isr_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2, 3])
            await brokers.create("u", [3, 1])
            assert await problem(brokers, 3) is None
            await brokers[3].replicator.stop()
            await brokers.change("t", isr=(1, 2))
            await until(lambda: brokers[3].partition("t").state.isr == (1, 2), "the new ISR")
            assert await problem(brokers, 3) == "1 of 2 replicas are not in sync (t-0)"
            assert await problem(brokers, 2) is None

    run(scenario())


def test_many_late_replicas_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers[3].replicator.stop()
            for number in range(7):
                await brokers.create(f"t{number}", [1, 3])
                await brokers.change(f"t{number}", isr=(1,))
            await until(lambda: brokers[3].partition("t6").state.isr == (1,), "the last ISR")
            expected = "7 of 7 replicas are not in sync (t0-0, t1-0, t2-0, t3-0, t4-0, ...)"
            assert await problem(brokers, 3) == expected

    run(scenario())


def test_replicas_that_cannot_catch_up_do_not_count(tmp_path: Path) -> None:
    """A partition without a leader, and a replica that a reassignment adds."""

    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers[3].replicator.stop()
            await brokers.create("offline", [1, 3])
            await brokers.change("offline", isr=(1,), leader=NO_LEADER)
            await brokers.create("moving", [1, 3])
            await brokers.change("moving", isr=(1,), adding=(3,))
            await until(lambda: brokers[3].partition("moving").state.adding, "the reassignment")
            assert await problem(brokers, 3) is None

    run(scenario())


def test_a_fenced_broker_is_not_in_sync(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            found = await problem(brokers, 1, is_fenced=True)
            assert found is not None
            assert "fenced" in found

    run(scenario())


def is_in_sync(broker: BrokerProcess) -> bool:
    return responds(f"{broker.http_url}/readyz/in-sync")


def in_sync_replicas(cluster: ProcessCluster) -> list[int]:
    with cluster.client() as client:
        request = MetadataRequest(topics=[MetadataRequest.Topic(name="t")])
        (topic,) = client.call(request).topics
    return sorted(topic.partitions[0].isr_nodes)


def test_a_killed_broker_is_in_sync_once_it_is_in_the_isr_again(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, 2, {"offsets.topic.num.partitions": 1}) as cluster:
        cluster.create_topic("t", 1)
        for broker in cluster:
            wait_until(partial(is_in_sync, broker), "both brokers to be in sync")
        cluster[2].kill()
        wait_until(lambda: in_sync_replicas(cluster) == [1], "the ISR without broker 2")
        with RawClient(cluster[1].host, cluster[1].port) as client:
            client.produce("t", values_batch(b"a"))
        cluster[2].start()
        wait_until(partial(is_in_sync, cluster[2]), "broker 2 to be in sync")
        assert in_sync_replicas(cluster) == [1, 2]
