from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from millstream.metadata.cluster_record import BrokerRecord, PartitionRecord
from millstream.replication.leader.follower_state import FollowerFetch
from millstream.replication.leader.isr import LeaderView
from millstream.replication.leader.leadership import Leadership
from millstream.replication.leader.read_replica import nearest_replica
from millstream.replication.partition import Partition

RECORD = PartitionRecord(replicas=(1, 2, 3, 4), leader=1, leader_epoch=0, isr=(1, 2, 3))
RACKS = {1: "a", 2: "b", 3: "b", 4: "c", 5: None}
BROKERS = {
    each: BrokerRecord(node_id=each, endpoints=(), rack=rack) for each, rack in RACKS.items()
}


@pytest.fixture
def partition() -> Partition:
    leadership = Leadership(1, RECORD, 0, 0.0)
    view = LeaderView(1, 9, 5, 0, {}, 0.0, 10.0)
    for follower, start, end in ((2, 0, 6), (3, 2, 9), (4, 0, 9)):
        leadership.fetched(FollowerFetch(follower, 1, end, start, 0.0), view)
    found = SimpleNamespace(broker_id=1, state=RECORD, leadership=leadership)
    return cast("Partition", found)


@pytest.mark.parametrize(
    ("rack", "offset", "expected", "why"),
    [
        ("a", 3, 1, "the leader is in the rack"),
        ("b", 3, 3, "the replica with the highest log end offset"),
        ("b", 1, 2, "the other replica starts later"),
        ("b", 0, 2, "the other replica starts later"),
        ("b", 10, 1, "no follower has the offset yet"),
        ("c", 3, 1, "the replica in the rack is not in sync"),
        ("z", 3, 1, "the rack has no replica"),
    ],
)
def test_the_nearest_replica(
    partition: Partition, rack: str, offset: int, expected: int, why: str
) -> None:
    assert nearest_replica(partition, BROKERS, rack, offset) == expected, why


def test_without_followers_the_leader_is_nearest() -> None:
    alone = cast("Partition", SimpleNamespace(broker_id=1, state=RECORD, leadership=None))
    assert nearest_replica(alone, BROKERS, "b", 0) == 1
