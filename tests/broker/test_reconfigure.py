"""Settings that are changed at run time reach the parts of the broker that use them."""

from __future__ import annotations

from pathlib import Path

from harness.in_process.server_set import ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import RawClient
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest

BROKER, GROUP = 4, 32


def change(client: RawClient, kind: int, name: str, setting: str, value: str) -> None:
    config = IncrementalAlterConfigsRequest.Resource.Config(
        name=setting, config_operation=0, value=value
    )
    resource = IncrementalAlterConfigsRequest.Resource(
        resource_type=kind, resource_name=name, configs=[config]
    )
    (row,) = client.call(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert row.error_code == 0, row


def join(client: RawClient, group_id: str) -> None:
    find = FindCoordinatorRequest(coordinator_keys=[group_id])
    wait_until(lambda: client.call(find).coordinators[0].error_code == 0, "the coordinator")
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    wait_until(lambda: client.call(request).error_code == 0, f"{group_id} to be joined")


def test_the_assignment_interval_of_groups(tmp_path: Path) -> None:
    one = {"default_replication_factor": "1", "offsets_topic_replication_factor": "1"}
    with ServerSet(tmp_path, 1, min_insync_replicas="1", **one) as brokers:
        shards = brokers.services(1).groups.shards

        def interval(group_id: str) -> int:
            group = brokers.ask(lambda: brokers.services(1).groups.find(group_id))
            assert isinstance(group, ConsumerGroup)
            return group.settings.assignment_interval_ms

        with brokers.client(1) as client:
            join(client, "present")
            join(client, "own")
            change(client, GROUP, "own", "consumer.assignment.interval.ms", "300")
            wait_until(lambda: interval("own") == 300, "the group's own interval")
            change(client, BROKER, "", "group.consumer.assignment.interval.ms", "700")
            wait_until(lambda: interval("present") == 700, "the broker's interval")
            join(client, "later")
            assert interval("later") == 700
            assert interval("own") == 300
            assert shards.options.groups.consumer.assignment_interval_ms == 700
