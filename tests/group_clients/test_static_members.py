"""A rolling restart of static members revokes no partition and starts no new generation or epoch.

Each new process gets the assignment of the old one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from group_clients.member import Member, Orders, Start
from harness.process.broker_process import wait_until
from harness.process.brokers import ONE, THREE, Brokers, started
from harness.raw.raw_client import RawClient
from harness.raw.raw_transaction import GROUP
from millstream.coordination.key_partition import partition_of
from millstream.groups.group_record import (
    GroupMetadataKey,
    GroupMetadataValue,
    decode_key,
    decode_value,
)
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest

#: The number of partitions per member.
PART = 3
OFFSETS_PARTITIONS = 4
SESSION_MS = 30_000
HEARTBEAT_MS = 500
SETTINGS = {
    "group.initial.rebalance.delay.ms": 500,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.heartbeat.interval.ms": HEARTBEAT_MS,
    "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
}


def generation_of(client: RawClient, group: str) -> int:
    """Return the generation of a classic group from its last record.

    No request returns the generation to a client that is not a member."""
    partition = partition_of(group, OFFSETS_PARTITIONS)
    found = []
    for record in client.read_all(OFFSETS_TOPIC, partition):
        assert record.key is not None
        key = decode_key(record.key)
        if isinstance(key, GroupMetadataKey) and key.group_id == group:
            value = decode_value(key, record.value)
            assert isinstance(value, GroupMetadataValue)
            found.append(value.generation)
    return found[-1]


def epoch_of(client: RawClient, group: str) -> int:
    """Return the epoch of a consumer group once all members have reached it."""
    found: list[int] = []

    def is_even() -> bool:
        (description,) = client.call(ConsumerGroupDescribeRequest(group_ids=[group]), 0).groups
        assert description.error_code == 0, description.error_message
        members = [member.member_epoch for member in description.members]
        found[:] = [description.group_epoch, description.assignment_epoch, *members]
        return len(set(found)) == 1

    wait_until(is_even, "all members to reach the group's epoch")
    return found[0]


def roll(
    brokers: Brokers, start: Start, count: int, epoch: Callable[[RawClient, str], int]
) -> None:
    topic, group = f"work-{uuid4().hex}", f"rolling-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.create_topics([NewTopic(topic, PART * count, len(brokers))])[topic].result(20)

    def new_member(place: int, life: int) -> Member:
        orders = Orders(
            brokers.bootstrap, group, topic, SESSION_MS, HEARTBEAT_MS, instance_id=f"place-{place}"
        )
        member = Member(start, f"place-{place}-{life}", orders)
        stack.callback(member.dispose)
        return member

    with ExitStack() as stack, brokers.coordinator_client(group, GROUP) as client:
        members = [new_member(place, 0) for place in range(count)]
        for member in members:
            wait_for_part(member)
        parts = [member.owned for member in members]
        assert len(frozenset().union(*parts)) == PART * count
        before = epoch(client, group)
        for place in range(count):
            others = members[:place] + members[place + 1 :]
            moves = [moves_of(member) for member in others]
            # A classic member may also be killed: its replacement has the same instance id.
            if start.client.protocol == "classic" and place % 2:
                members[place].kill()
            else:
                members[place].end()
            successor = members[place] = new_member(place, 1)
            wait_for_part(successor)
            assert successor.owned == parts[place]
            assert moves_of(successor) == PART
            assert [moves_of(member) for member in others] == moves, (
                "partitions of other members moved"
            )
        assert [member.owned for member in members] == parts
        assert epoch(client, group) == before


def wait_for_part(member: Member) -> None:
    wait_until(lambda: len(member.owned) == PART, f"{member.name} to own {PART} partitions", 60)


def moves_of(member: Member) -> int:
    """Return how often partitions were assigned to the member or revoked from it."""
    member.read()
    ownerships = member.history.ownerships
    return len(ownerships) + sum(each.end_at is not None for each in ownerships)


@pytest.fixture(scope="module", params=[ONE, THREE])
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brokers]:
    with started(tmp_path_factory.mktemp("brokers"), request.param, SETTINGS) as running:
        yield running
        running.check_logs()


@pytest.mark.parametrize(
    ("count", "name"),
    [
        (3, "confluent-classic"),
        (3, "confluent-consumer"),
        pytest.param(8, "confluent-classic", marks=pytest.mark.soak),
        pytest.param(8, "confluent-consumer", marks=pytest.mark.soak),
        pytest.param(8, "java-classic", marks=pytest.mark.soak),
        pytest.param(8, "java-consumer", marks=pytest.mark.soak),
    ],
)
def test_a_rolling_restart_moves_no_partition(
    brokers: Brokers, start_of: Callable[[str], Start], count: int, name: str
) -> None:
    start = start_of(name)
    epoch = generation_of if start.client.protocol == "classic" else epoch_of
    roll(brokers, start, count, epoch)
