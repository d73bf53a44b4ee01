"""The counts of replication on brokers that replicate in this process."""

from __future__ import annotations

from pathlib import Path

from harness.in_process.replica_set import ReplicaSet, run, until
from millstream.broker.metrics.replication_summary import ReplicationSummary
from millstream.controller import decommission
from millstream.env.clock import SystemClock
from millstream.metadata.cluster_record import encode_configs
from millstream.metadata.store.port import Put
from millstream.model.map import Map


def summary_of(brokers: ReplicaSet, node_id: int) -> ReplicationSummary:
    node = brokers[node_id]
    return ReplicationSummary(node_id, node.catalog, node.replicas, SystemClock())


def test_a_leader_reports_its_followers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2, 3], min_insync_replicas=2)
            await brokers.create("u", [2, 1])
            await brokers.produce("t", b"a")
            await brokers.until_equal("t", [1, 2, 3])
            summary = summary_of(brokers, 1)
            leadership = brokers[1].partition("t").leadership
            assert leadership is not None
            followers = leadership.followers.values()
            await until(lambda: all(each.log_end_offset == 1 for each in followers), "their fetch")
            await summary.refresh()
            assert summary.led.lag_records_max == {2: 0, 3: 0}
            assert (summary.led.partitions, summary.led.under_replicated) == (1, 0)
            assert (summary.led.under_min_isr, summary.led.at_min_isr) == (0, 0)
            await brokers[3].replicator.stop()
            await brokers.change("t", isr=(1, 2))
            for value in (b"b", b"c"):
                await brokers.produce("t", value)
            await summary.refresh()
            assert (summary.led.under_replicated, summary.led.at_min_isr) == (1, 1)
            assert summary.led.lag_records_max[3] == 2
            assert summary.led.lag_seconds_max[3] > 0
            await brokers.change("t", isr=(1,))
            await summary.refresh()
            assert summary.led.under_min_isr == 1
            # The other brokers lead no partition.
            other = summary_of(brokers, 3)
            await other.refresh()
            assert other.led.partitions == 0

    run(scenario())


def test_a_partition_with_all_its_replicas_in_sync_is_not_at_its_minimum(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("one", [1])
            await brokers.create("two", [1, 2], min_insync_replicas=2)
            summary = summary_of(brokers, 1)
            await summary.refresh()
            assert (summary.led.partitions, summary.led.at_min_isr) == (2, 0)

    run(scenario())


def test_replicas_that_are_added_are_not_missed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2])
            await brokers.produce("t", b"a", b"b")
            await brokers[3].replicator.stop()
            await brokers.change("t", replicas=(1, 3, 2), adding=(3,), removing=(2,), isr=(1, 2))
            summary = summary_of(brokers, 1)
            await until(lambda: len(brokers[1].partition("t").state.replicas) == 3, "the change")
            await summary.refresh()
            assert (summary.led.under_replicated, summary.led.moving_records) == (0, 2)

    run(scenario())


def test_only_the_controller_reports_the_cluster(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicaSet(tmp_path) as brokers:
            await brokers.create("t", [1, 2])
            await brokers.create("u", [2, 3])
            await brokers.elect("t", -1, isr=(1, 2))
            await brokers.change("u", replicas=(2, 1, 3), adding=(1,), removing=(3,))
            catalog = brokers[1].catalog
            configs = encode_configs(Map({decommission.SETTING: "3"}))
            await catalog.transact([], [Put("configs/broker/default", configs)])
            summary = summary_of(brokers, 1)
            await summary.refresh()
            assert summary.cluster.partitions == 0
            await catalog.transact([], [Put("controller", b'{"id":1}')])
            await summary.refresh()
            cluster = summary.cluster
            assert (cluster.partitions, cluster.offline, cluster.reassigning) == (2, 1, 1)
            assert cluster.not_preferred == 1
            assert cluster.to_empty == {3: 1}

    run(scenario())
