"""Which replica a consumer should read from (KIP-392): an in-sync one in its own rack. Pure.

Only replicas that have the requested offset qualify. The leader is chosen in its own rack, and if
no other replica qualifies. Among several followers the one with the highest log end is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.metadata.cluster_record import BrokerRecord
from millstream.replication.partition import Partition


def nearest_replica(
    partition: Partition, brokers: Mapping[int, BrokerRecord], rack: str, offset: int
) -> int:
    """Return the broker that a consumer in `rack` should read `offset` from."""
    leadership = partition.leadership
    if leadership is None or _rack_of(brokers, partition.broker_id) == rack:
        return partition.broker_id
    candidates = [
        follower
        for broker_id, follower in leadership.followers.items()
        if broker_id in partition.state.isr
        and _rack_of(brokers, broker_id) == rack
        and follower.log_start_offset <= offset <= follower.log_end_offset
    ]
    if not candidates:
        return partition.broker_id
    return max(candidates, key=lambda follower: follower.log_end_offset).broker_id


def _rack_of(brokers: Mapping[int, BrokerRecord], broker_id: int) -> str | None:
    broker = brokers.get(broker_id)
    return broker.rack if broker is not None else None
